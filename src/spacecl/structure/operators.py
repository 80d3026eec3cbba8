"""What each operation does to owner ids: one small rule each. This is the only room that knows operators.

A shape operation is the same operation run on the ids. An elementwise one ties the ids that meet. Layers and norms note
the owners of their parameters. What mixes channels otherwise pins them. Anything else is unknown, and refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from .graph import export_graph, layer_of, matches, source_of
from .owners import NOBODY, Arguments, Owners, Walk, spread_along

Rule = Callable[[Walk, Node, Arguments], Any]
_RULES: dict[str, Rule] = {}

_POOL = re.compile(r"(?:(?:adaptive_)?(?:max|avg)_pool|upsample_\w+?|(?:reflection|replication)_pad)([123])d(?:_with_indices)?")
_NEW = re.compile(r"new_\w+|zeros|ones|full|arange|empty|eye|linspace|scalar_tensor|tensor|_assert\w*|sym_\w+")
_UNTAGGED = ("where", "hardswish", "log_sigmoid", "divide", "multiply", "subtract", "special_expit", "absolute", "negative")


def walk(model: nn.Module, example: Tensor, head: str | None = None, shared: Sequence[str] = ()) -> Owners:
    """Push owner ids through a model and return what they met; all layers that cannot be served are named in one error."""
    first: dict[int, str] = {}
    aliases = {n: first.setdefault(id(p), n) for n, p in model.named_parameters(remove_duplicate=False)}
    return Walk(export_graph(model, example), head, shared, aliases, apply).run()


def apply(walk: Walk, node: Node, name: str, arguments: Arguments) -> Any:
    """The ids of an operation's result."""
    tags = node.target.tags  # type: ignore[union-attr]
    training = arguments.get("train", arguments.get("training", True))
    if torch.Tag.nondeterministic_seeded in tags and training and arguments.get("dropout_p") != 0:
        walk.problem(node, f"{name} is random in eval mode too; pass training=self.training")
        return walk.nobody(node.meta["val"])
    pool = _POOL.fullmatch(name)
    if name in _RULES:
        return _RULES[name](walk, node, arguments)
    if pool:
        return resample(walk, node, int(pool[1]))
    if _NEW.fullmatch(name):
        return walk.nobody(node.meta.get("val"))
    if name.endswith("_like"):
        return walk.ids(node.args[0])
    if torch.Tag.pointwise in tags:
        return pointwise(walk, node, walk.activations(node))
    return walk.unknown(node, f"unknown operation {name}")


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


# -- shapes -----------------------------------------------------------------------------------------------------------


@rule("permute", "transpose", "t", "squeeze", "unsqueeze", "flatten", "ravel", "movedim", "moveaxis", "swapaxes", "swapdims")
@rule("expand", "expand_as", "repeat", "tile", "repeat_interleave", "cat", "concat", "hstack", "vstack", "roll", "flip")
@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "mT", "numpy_T", "rot90")
def same_operation(walk: Walk, node: Node, arguments: Arguments) -> Any:
    keywords = {key: walk.ids(value) for key, value in node.kwargs.items()}
    result = node.target(*[walk.ids(argument) for argument in node.args], **keywords)  # type: ignore[operator]
    return list(result) if isinstance(result, (list, tuple)) else result


@rule("contiguous", "clone", "detach", "alias", "to", "_to_copy", "type_as", "lift_fresh_copy")
@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def unchanged(walk: Walk, node: Node, arguments: Arguments) -> Any:
    return walk.ids(node.args[0])


@rule("stack")
def stack(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    """What is stacked has one shape: it belongs together, element by element."""
    parts = walk.ids(node.args[0])
    for part in parts[1:]:
        walk.tie(part, parts[0])
    return same_operation(walk, node, arguments)


@rule("view", "reshape", "unflatten", "_unsafe_view", "view_as", "reshape_as")
def divide(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    """A dimension divided into (lanes, channels): channels at the same place in all lanes belong together."""
    before, shape = walk.ids(node.args[0]), tuple(node.meta["val"].shape)
    after = before.reshape(shape)  # ids may lie in memory otherwise than the values, which a view could not take
    source, target = list(before.shape), list(shape)
    i = j = 0
    while i < len(source) and j < len(target):
        size_in, size_out, parts = source[i], target[j], [j]
        i, j = i + 1, j + 1
        while size_in != size_out:
            if size_in < size_out:
                size_in, i = size_in * source[i], i + 1
            else:
                parts, size_out, j = [*parts, j], size_out * target[j], j + 1
        for dim in [dim for dim in parts if target[dim] > 1][:-1]:
            walk.tie(after, after.narrow(dim, 0, 1))
    return after


@rule("chunk", "split", "split_with_sizes", "unbind", "tensor_split")
def parts(walk: Walk, node: Node, arguments: Arguments) -> list[Tensor]:
    """Equal parts of a channel dimension are lanes, too; unequal ones need all channels."""
    found = same_operation(walk, node, arguments)
    for part in found:
        if all(other.shape == part.shape for other in found):
            walk.tie(part, found[0])
        else:
            walk.whole_if_lost(walk.ids(node.args[0]), part, f"split into unequal parts{source_of(node)}")
    return found


@rule("slice", "select", "narrow", "index_select")
def take(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    after = same_operation(walk, node, arguments)
    walk.whole_if_lost(walk.ids(node.args[0]), after, f"taken by number{source_of(node)}")
    return after


@rule("pad", "constant_pad_nd")
def pad(walk: Walk, node: Node, arguments: Arguments) -> Any:
    """Space around a channel belongs to the channel; channels added by padding belong to nobody."""
    if arguments.get("mode", "constant") != "constant":
        return resample(walk, node, len(arguments["pad"]) // 2)
    ids, amounts = walk.ids(node.args[0]), list(arguments["pad"])
    for dim, (before, after) in enumerate(zip(amounts[::2], amounts[1::2]), start=1):
        first = ids.narrow(-dim, 0, 1)
        if bool((ids == first).all()):
            ids = first.expand([s + before + after if d == ids.dim() - dim else s for d, s in enumerate(ids.shape)])
        else:
            ids = nn.functional.pad(ids, [0, 0] * (dim - 1) + [before, after], value=NOBODY)
    return ids


def resample(walk: Walk, node: Node, spatial: int) -> Any:
    """Pooling and resizing: the last dimensions change size, their elements keep their channel."""
    ids, value = walk.ids(node.args[0]), node.meta["val"]
    first = ids[(..., *[slice(0, 1)] * spatial)]
    walk.tie(ids, first)
    return [first.expand(item.shape) for item in value] if isinstance(value, (list, tuple)) else first.expand(value.shape)


# -- values -----------------------------------------------------------------------------------------------------------


@rule(*_UNTAGGED)
def elementwise(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    return pointwise(walk, node, walk.activations(node))


def pointwise(walk: Walk, node: Node, arguments: list[Tensor]) -> Tensor:
    """Elements that meet belong together; a single channel that is spread over many stays whole instead."""
    if not arguments:
        return walk.nobody(node.meta["val"])
    full = torch.broadcast_tensors(*arguments)
    shape = full[0].shape
    result = torch.full(shape, NOBODY)
    for index, ids in enumerate(arguments):
        sizes = [1] * (len(shape) - ids.dim()) + list(ids.shape)
        if bool((ids == NOBODY).all()):  # what was expanded to the others' size has no size of its own
            sizes = [1] * (len(shape) - ids.dim()) + [1 if stride == 0 else s for s, stride in zip(ids.shape, ids.stride())]
        others = [other for k, other in enumerate(full) if k != index]
        varying = [d for d in range(len(shape)) if any(bool((o != o.narrow(d, 0, 1)).any()) for o in others)]
        if any(sizes[d] == 1 for d in varying):
            walk.pin(ids, f"one channel spread over many{source_of(node)}")
            continue
        if varying:  # as many channels as the others have: where nobody owns them, their number is fixed
            for other in others:
                walk.pin(other[full[index] == NOBODY], f"meets values that no layer owns{source_of(node)}")
        walk.tie(result, full[index])
        result = torch.where(result >= 0, result, full[index])
    return result


@rule("glu")
def gated(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    return pointwise(walk, node, list(walk.ids(node.args[0]).chunk(2, arguments["dim"])))


@rule("mean", "sum", "amax", "amin", "max", "min", "var", "std", "logsumexp", "prod", "norm", "linalg_vector_norm")
def reduce(walk: Walk, node: Node, arguments: Arguments) -> Any:
    """Over space or tokens each channel stays itself; over channels all of them are needed."""
    if isinstance(arguments.get("other"), Node):  # max(a, b) and min(a, b)
        return pointwise(walk, node, walk.activations(node))
    ids, value, dims = walk.ids(node.args[0]), node.meta["val"], arguments.get("dim")
    first = ids
    for dim in [dims] if isinstance(dims, int) else dims or range(ids.dim()):
        first = first.narrow(dim, 0, 1)
    walk.whole_if_apart(ids, first, f"summarised over channels{source_of(node)}")
    return [first.reshape(item.shape) for item in value] if isinstance(value, (list, tuple)) else first.reshape(value.shape)


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    ids = walk.ids(node.args[0])
    walk.whole_if_apart(ids, ids.narrow(arguments["dim"], 0, 1), f"normalised over channels{source_of(node)}")
    return ids


@rule("matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "scaled_dot_product_attention", "cumsum")
def mix(walk: Walk, node: Node, arguments: Arguments) -> Any:
    name = node.target._schema.name.split("::")[1]  # type: ignore[union-attr]
    for ids in walk.activations(node):
        walk.pin(ids, f"mixed by {name}{source_of(node)}")
    return walk.nobody(node.meta["val"])


@rule("prelu")
def prelu(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    ids, weight = walk.ids(node.args[0]), walk.ids(node.args[1])
    if weight.numel() > 1:
        walk.tie(walk.along(ids, 1), weight)
    return ids


# -- layers -----------------------------------------------------------------------------------------------------------


def read(walk: Walk, node: Node, arguments: Arguments, dim: int) -> Tensor:
    """A layer that mixes the channels it reads: a linear layer or an ordinary convolution."""
    weight, bias = arguments["weight"], arguments.get("bias")
    name = walk.attribute(weight)
    if name is None:
        return walk.unknown(node, "its weight is computed, not a parameter of its own")
    walk.own(weight, 1, walk.along(walk.ids(arguments["input"]), dim))
    result = walk.make(node, weight, 0, dim)
    walk.found.readers[name] = dim
    bias_name = walk.own(bias, 0, torch.arange(*walk.found.made[name]))
    if bias_name is not None:
        known = walk.found.biases.setdefault(name, [])
        known += [bias_name] if bias_name not in known else []
    return result


@rule("linear")
def linear(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    return read(walk, node, arguments, -1)


@rule("conv1d", "conv2d", "conv3d")
def convolution(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    groups, ids, shape = arguments["groups"], walk.ids(arguments["input"]), tuple(node.meta["val"].shape)
    if groups == 1:
        return read(walk, node, arguments, 1)
    weight = walk.attribute(arguments["weight"])
    if groups != ids.shape[1] or weight is None:
        return walk.unknown(node, f"grouped convolution, groups={groups}")
    owners = walk.along(ids, 1).repeat_interleave(shape[1] // groups)  # depthwise: each channel keeps its owner
    walk.own(arguments["weight"], 0, owners)
    walk.own(arguments.get("bias"), 0, owners)
    walk.found.followers[weight] = owners
    if matches(layer_of(weight), walk.shared):
        walk.pin(owners, None)
    return spread_along(owners, 1, shape)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(walk: Walk, node: Node, arguments: Arguments) -> Any:
    return walk.unknown(node, "transposed convolution")


@rule("embedding")
def embedding(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    if walk.attribute(arguments["weight"]) is None:
        return walk.unknown(node, "its weight is computed, not a parameter of its own")
    return walk.make(node, arguments["weight"], 1, -1)


# -- norms ------------------------------------------------------------------------------------------------------------


def note_norm(walk: Walk, arguments: Arguments, ids: Tensor) -> None:
    for key in ("weight", "bias", "running_mean", "running_var"):
        name = walk.own(arguments.get(key), 0, ids)
        if name is not None:
            walk.found.norms.add(name)


@rule("batch_norm", "instance_norm")
def batch_norm(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    ids = walk.ids(arguments["input"])
    if arguments.get("running_mean") is None and "training" in arguments:
        walk.problem(node, "no running statistics, so an answer would depend on its batch; set track_running_stats=True")
    note_norm(walk, arguments, walk.along(ids, 1))
    return ids


@rule("group_norm")
def group_norm(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    ids = walk.ids(arguments["input"])
    channels = walk.along(ids, 1)
    lanes = channels.reshape(arguments["num_groups"], -1)
    walk.tie(lanes, lanes[:1])  # every group of the norm keeps as many channels as the others
    note_norm(walk, arguments, channels)
    return ids


@rule("layer_norm", "rms_norm")
def layer_norm(walk: Walk, node: Node, arguments: Arguments) -> Tensor:
    ids, last = walk.ids(arguments["input"]), len(arguments["normalized_shape"])
    if arguments.get("weight") is None:
        walk.pin(ids, f"normalised to a fixed shape{source_of(node)}")
    elif last == 1:
        note_norm(walk, arguments, walk.along(ids, -1))
    else:
        channels = walk.along(ids.flatten(ids.dim() - last), -1).reshape(ids.shape[-last:])
        for key in ("weight", "bias"):
            name = walk.attribute(arguments.get(key))
            if name is not None:
                walk.tie(walk.ids(arguments[key]), channels)
                walk.found.norms.add(name)
    return ids
