"""What PyTorch's own operators do to owner ids: one short rule each. Those of larger families are in `rules_*`.

An elementwise operation ties the ids that meet. Layers and norms record the owners of their parameters. What mixes channels in
any other way makes them unprunable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from .operation import Operation
from .owners import NO_OWNER

Rule = Callable[[Operation], Any]
BUILT_IN: dict[str, Rule] = {}  # by the operator's name in aten

_UNTAGGED = ("where", "hardswish", "log_sigmoid", "divide", "multiply", "subtract", "special_expit", "absolute", "negative")


SINCE_2 = {"index", "gather", "take_along_dim", "im2col", "col2im", "unfold", "lstm", "gru", "rnn_tanh", "rnn_relu"} | {
    f"{kind}_cell" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")
}  # operators without a rule in version 1 of the rules


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Make a function the rule of these operators."""

    def register(function: Rule) -> Rule:
        BUILT_IN.update(dict.fromkeys(names, function))
        return function

    return register


# -- values -----------------------------------------------------------------------------------------------------------


@rule(*_UNTAGGED)
def combine_elements(op: Operation) -> Tensor:
    """Elements that meet belong together."""
    return combine(op, op.all_ids())


def combine(op: Operation, arguments: list[Tensor]) -> Tensor:
    """Tie the elements of `arguments` that meet; a single channel that is spread over many becomes unprunable instead."""
    if not arguments:
        return op.no_owner()
    full = torch.broadcast_tensors(*arguments)
    shape = full[0].shape
    result = torch.full(shape, NO_OWNER)
    for index, ids in enumerate(arguments):
        sizes = [1] * (len(shape) - ids.dim()) + list(ids.shape)
        if bool((ids == NO_OWNER).all()):  # what was expanded to the others' size has no size of its own
            sizes = [1] * (len(shape) - ids.dim()) + [1 if stride == 0 else s for s, stride in zip(ids.shape, ids.stride())]
        others = [other for k, other in enumerate(full) if k != index]
        varying = [d for d in range(len(shape)) if any(bool((o != o.narrow(d, 0, 1)).any()) for o in others)]
        thin = all(sizes[d] == 1 for d in varying)
        if varying and thin and any(op.owners.varies(other, varying) for other in others):
            op.mark_unprunable(ids, "one channel spread over many")
            continue
        if varying:  # as many channels as the others have: where they have no owner, their number is fixed
            for other in others:
                op.mark_unprunable(other[full[index] == NO_OWNER], "meets values that no layer owns")
        op.tie(result, full[index])
        result = torch.where(full[index] >= 0, full[index], result)  # what came last: of a residual sum, the ids of one layer
    return result


@rule("glu")
def gate(op: Operation) -> Tensor:
    return combine(op, list(op.ids(0).chunk(2, op.arguments["dim"])))


@rule("mean", "sum", "amax", "amin", "max", "min", "var", "std", "logsumexp", "prod", "norm", "linalg_vector_norm")
def reduce(op: Operation) -> Any:
    """Over space or tokens each channel stays itself; over channels all of them are needed."""
    if isinstance(op.arguments.get("other"), Node):  # max(a, b) and min(a, b)
        return combine(op, op.all_ids())
    ids, output, dims = op.ids(0), op.output, op.arguments.get("dim")
    first = ids
    for dim in _list_dims(dims, ids):
        first = first.narrow(dim, 0, 1)
    if op.node in op.owners.sizes.means and op.arguments.get("keepdim") and op.owners.varies(ids, _list_dims(dims, ids)):
        op.owners.sizes.statistics.add(op.owners.sizes.means[op.node])  # as a norm does, over however many channels there are
        return op.no_owner()
    op.mark_unprunable_unless_tied(ids, first, "reduced over channels")
    return [first.reshape(item.shape) for item in output] if isinstance(output, (list, tuple)) else first.reshape(output.shape)


def _list_dims(dims: Any, ids: Tensor) -> list[int]:
    """The dimensions that a reduction names: one, several or all."""
    return [dims] if isinstance(dims, int) else list(dims or range(ids.dim()))


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(op: Operation) -> Tensor:
    ids = op.ids(0)
    op.mark_unprunable_unless_tied(ids, ids.narrow(op.arguments["dim"], 0, 1), "normalised over channels")
    return ids


@rule("addmm", "baddbmm", "cumsum")
def mix(op: Operation) -> Any:
    for ids in op.all_ids():
        op.mark_unprunable(ids, f"mixed by {op.name}")
    return op.no_owner()


@rule("prelu")
def prelu(op: Operation) -> Tensor:
    ids, weight = op.ids(0), op.ids(1)
    if weight.numel() > 1:
        op.tie(op.channel_ids(ids, 1), weight)
    return ids


# -- layers -----------------------------------------------------------------------------------------------------------


@rule("linear")
def linear(op: Operation) -> Tensor:
    """Channels along the last dimension are mixed; those along another one stay what they are, as where tokens are mixed."""
    ids = op.ids("input")
    if not _varies_elsewhere(op, ids):
        return op.map_channels(dim=-1)
    first = ids.narrow(-1, 0, 1)
    op.tie(ids, first)
    op.mark_unprunable(op.create_channels("weight", 0, -1), "mixes positions, not channels")
    return first.expand(op.output.shape)


def _varies_elsewhere(op: Operation, ids: Tensor) -> bool:
    """Whether channels lie along another dimension than the last: where tokens are mixed, and within the heads of attention."""
    others = range(ids.dim() - 1)
    if op.owners.rules < 2:
        return False
    if bool((ids == ids[..., :1]).all()):
        return op.owners.varies(ids, others)
    return not op.owners.in_heads.isdisjoint(torch.unique(ids).tolist()) and op.owners.varies(ids, others)


@rule("embedding")
def embedding(op: Operation) -> Tensor:
    return op.create_channels("weight", 1, -1)


# -- norms ------------------------------------------------------------------------------------------------------------


def _vectors(op: Operation) -> list[str]:
    """The arguments of a norm that have one number per channel."""
    return [name for name in ("weight", "bias", "running_mean", "running_var") if name in op.arguments]


@rule("batch_norm", "instance_norm")
def batch_norm(op: Operation) -> Tensor:
    ids = op.ids("input")
    if op.arguments.get("running_mean") is None and "training" in op.arguments and not op.takes_only_parameters():
        op.report_problem("no running statistics, so a prediction would depend on its batch; set track_running_stats=True")
    op.assign_norm(op.channel_ids(ids, 1), *_vectors(op))
    return ids


@rule("group_norm")
def group_norm(op: Operation) -> Tensor:
    ids = op.ids("input")
    channels = op.channel_ids(ids, 1)
    lanes = channels.reshape(op.arguments["num_groups"], -1)
    op.tie(lanes, lanes[:1])  # every group of the norm keeps as many channels as the others
    op.assign_norm(channels, *_vectors(op))
    return ids


@rule("layer_norm", "rms_norm")
def layer_norm(op: Operation) -> Tensor:
    ids, last = op.ids("input"), len(op.arguments["normalized_shape"])
    if op.arguments.get("weight") is None:
        op.mark_unprunable(ids, "normalised to a fixed shape")
    elif last == 1 and _varies_elsewhere(op, ids):  # within heads, for instance
        op.tie(ids, ids.narrow(-1, 0, 1))
        op.owners.norms.update(name for key in ("weight", "bias") if key in op.arguments and (name := op.parameter_name(key)))
    elif last == 1:
        op.assign_norm(op.channel_ids(ids, -1), *_vectors(op))
    else:
        channels = op.channel_ids(ids.flatten(ids.dim() - last), -1).reshape(ids.shape[-last:])
        for key in ("weight", "bias"):
            name = op.parameter_name(key)
            if name is not None:
                op.tie(op.ids(key), channels)
                op.owners.norms.add(name)
    return ids


# -- families of operators --------------------------------------------------------------------------------------------


def create_constant(op: Operation) -> Any:
    """The rule of operators that create tensors, such as zeros(), or none, such as an assertion."""
    return op.no_owner()
