"""What indexing by tensors does to owner ids: it may choose tokens or places, but not channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from .operation import Operation
from .rules import rule


@rule("index")
def index(op: Operation) -> Any:
    """Select by tables of numbers, such as those of relative positions. The indexed dimensions must not be channels."""
    indices = op.arguments["indices"]
    tables = [item.meta["val"] if isinstance(item, Node) else None for item in indices]
    places: list[Tensor | None] = []
    for table in tables:
        if table is not None and table.dtype == torch.bool:  # a mask selects in as many dimensions as it has
            count = op.output.shape[len(places)]
            places += [torch.zeros(count, dtype=torch.int64)] * table.dim()
        else:
            places.append(None if table is None else torch.zeros(tuple(table.shape), dtype=torch.int64))
    first = _choose_any(op, [dim for dim, place in enumerate(places) if place is not None])
    return torch.ops.aten.index(first, places)


@rule("gather", "take_along_dim", "index_select")
def gather(op: Operation) -> Tensor:
    first, shape = _choose_any(op, [op.arguments["dim"]]), tuple(op.output.shape)
    return first[tuple(slice(0, size) for size in shape)].expand(shape)


@rule("im2col")
def unfold_patches(op: Operation) -> Tensor:
    """Every channel becomes as many as a patch has pixels."""
    channels = op.channel_ids(op.ids(0), 1)
    return op.spread(channels.repeat_interleave(op.output.shape[1] // len(channels)), 1)


@rule("col2im")
def fold_patches(op: Operation) -> Tensor:
    channels = op.channel_ids(op.ids(0), 1)
    return op.spread(op.channel_ids(channels.reshape(op.output.shape[1], -1), 0), 1)


@rule("unfold")
def slide_windows(op: Operation) -> Any:
    return op.run_on_ids()


def _choose_any(op: Operation, dims: Sequence[int]) -> Tensor:
    """The ids at the first place of some dimensions, along which all must belong together."""
    ids = first = op.ids(0)
    for dim in dims:
        first = first.narrow(dim, 0, 1)
    if op.is_parameter(0) or (op.owners.rules >= 4 and not op.owners.is_made(ids)):
        op.tie(ids, first)  # a table of the model's own: its rows have the same owners
    else:
        op.mark_unprunable_unless_tied(ids, first, "selected by computed numbers")
    return first
