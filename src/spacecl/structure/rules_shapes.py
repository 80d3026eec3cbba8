"""What operations on shapes do to owner ids: the same operation is run on the ids, and lanes of channels are tied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .graph import RESHAPES
from .operation import Operation
from .owners import NO_OWNER
from .rules import rule


@rule("permute", "transpose", "t", "squeeze", "unsqueeze", "flatten", "ravel", "movedim", "moveaxis", "swapaxes", "swapdims")
@rule("expand_as", "repeat", "tile", "repeat_interleave", "cat", "concat", "hstack", "vstack", "roll", "flip")
@rule("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "mT", "numpy_T", "rot90")
def move_elements(op: Operation) -> Any:
    return op.run_on_ids()


@rule("expand")
def expand(op: Operation) -> Tensor:
    """What is repeated as often as a module says, such as once for every head, may be repeated less often."""
    ids = op.run_on_ids()
    uses = op.owners.sizes.uses.get(op.node, {})
    if bool((ids == NO_OWNER).all()) and len(uses) == 1:
        (dim,) = uses
        return op.spread(op.owners.new_ids(ids.shape[dim]), dim)
    return ids


@rule("contiguous", "clone", "detach", "alias", "to", "_to_copy", "type_as", "lift_fresh_copy", "zero", "fill")
@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def keep_elements(op: Operation) -> Any:
    return op.ids(0)


@rule("stack")
def stack(op: Operation) -> Tensor:
    """Stacked tensors have one shape: they belong together, element by element."""
    parts = op.ids(0)
    for part in parts[1:]:
        op.tie(part, parts[0])
    return op.run_on_ids()


@rule(*RESHAPES)
def reshape(op: Operation) -> Tensor:
    """A dimension divided into (lanes, channels): channels at the same place in all lanes belong together.

    Lanes that are heads of attention need not be alike: see `contractions`.
    """
    before, shape = op.ids(0), tuple(op.output.shape)
    after = before.reshape(shape)  # not view(): ids may have other strides than the values
    if op.node in op.owners.head_splits:
        op.owners.in_heads.update(torch.unique(after).tolist())
        return after
    parts = _divide_dimensions(before.shape, shape) if op.owners.rules >= 4 else None
    return _tie_blocks(op, before, shape) if parts is None else _tie_lanes(op, before, parts).reshape(shape)


def _divide_dimensions(source: Sequence[int], target: Sequence[int]) -> list[list[int]] | None:
    """The sizes into which a reshape divides each dimension of what it gets, before it merges some; None if it does more.

    >>> _divide_dimensions((2, 6, 8), (2, 3, 2, 4, 2)), _divide_dimensions((2, 3, 8), (6, 4, 2))
    ([[2], [3, 2], [4, 2]], [[2], [3], [4, 2]])
    >>> _divide_dimensions((4, 6), (6, 4))
    """
    parts: list[list[int]] = []
    remaining, left = list(target), 1
    for size in source:
        parts.append([])
        while size > 1:
            while left == 1:
                left = remaining.pop(0)
            step = min(size, left)
            if max(size, left) % step:
                return None
            size, left = size // step, left // step
            parts[-1].append(step)
    return parts


def _tie_lanes(op: Operation, ids: Tensor, parts: list[list[int]]) -> Tensor:
    """Divide dimensions: of the parts along which channels change, only the last may be narrowed."""
    divided = ids.reshape([size for sizes in parts for size in sizes])
    start = 0
    for sizes in parts:
        dims, start = range(start, start + len(sizes)), start + len(sizes)
        changing = [dim for dim in dims if op.owners.varies(divided, [dim])] if len(sizes) > 1 else []
        for dim in changing[:-1]:
            first = divided.narrow(dim, 0, 1)
            op.tie(divided, first)
            divided = first.expand(divided.shape)
    return divided


def _tie_blocks(op: Operation, before: Tensor, shape: tuple[int, ...]) -> Tensor:
    """As `_tie_lanes`, along all but the last dimension: for what is merged and divided at once, and in older rules."""
    after = before.reshape(shape)
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
            first = after.narrow(dim, 0, 1)
            op.tie(after, first)
            after = first.expand(shape)
    return after


@rule("chunk", "split", "split_with_sizes", "unbind", "tensor_split")
def split(op: Operation) -> list[Tensor]:
    """Equal parts of a channel dimension are lanes, too; unequal parts need all channels, or sizes that are corrected."""
    parts = op.run_on_ids()
    if op.owners.sizes.corrects(op.node) and any(part.shape != parts[0].shape for part in parts):
        return parts
    for part in parts:
        if all(other.shape == part.shape for other in parts):
            op.tie(part, parts[0])
        else:
            op.mark_unprunable_unless_contained(op.ids(0), part, "split into unequal parts")
    return parts


@rule("slice", "select", "narrow")
def select(op: Operation) -> Tensor:
    part = op.run_on_ids()
    if op.node not in op.owners.sizes.slices:  # numbers that modules store follow the channels
        op.mark_unprunable_unless_contained(op.ids(0), part, "selected by number")
    return part


@rule("pad", "constant_pad_nd")
def pad(op: Operation) -> Any:
    """Space around a channel belongs to the channel; channels added by padding have no owner."""
    if op.arguments.get("mode", "constant") != "constant":
        return resample(op, len(op.arguments["pad"]) // 2)
    ids, amounts = op.ids(0), list(op.arguments["pad"])
    for dim, (before, after) in enumerate(zip(amounts[::2], amounts[1::2]), start=1):
        first = ids.narrow(-dim, 0, 1)
        if bool((ids == first).all()):
            ids = first.expand([s + before + after if d == ids.dim() - dim else s for d, s in enumerate(ids.shape)])
        else:
            ids = nn.functional.pad(ids, [0, 0] * (dim - 1) + [before, after], value=NO_OWNER)
    return ids


def resample(op: Operation, spatial: int) -> Any:
    """Pooling and resizing: the last dimensions change size, their elements stay in their channel."""
    ids, output = op.ids(0), op.output
    first = ids[(..., *[slice(0, 1)] * spatial)]
    op.tie(ids, first)
    return [first.expand(item.shape) for item in output] if isinstance(output, (list, tuple)) else first.expand(output.shape)
