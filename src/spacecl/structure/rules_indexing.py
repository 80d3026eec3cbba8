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
    if any(table is not None and table.dtype in (torch.bool, torch.uint8) for table in tables):
        return op.reject("selects by a mask, so that the number of elements depends on values")
    first = _choose_any(op, [dim for dim, table in enumerate(tables) if table is not None])
    places = [None if table is None else torch.zeros(tuple(table.shape), dtype=torch.int64) for table in tables]
    return torch.ops.aten.index(first, places)


@rule("gather", "take_along_dim")
def gather(op: Operation) -> Tensor:
    first = _choose_any(op, [op.arguments["dim"]])
    sizes = [1 if size == 1 else size for size in op.output.shape]
    return first[tuple(slice(0, size) for size in sizes)].expand(tuple(sizes))


def _choose_any(op: Operation, dims: Sequence[int]) -> Tensor:
    """The ids at the first place of some dimensions, along which all must belong together."""
    ids = first = op.ids(0)
    for dim in dims:
        first = first.narrow(dim, 0, 1)
    if isinstance(op.node.args[0], Node) and op.is_parameter(0):
        op.tie(ids, first)  # a table of the model's own: its rows have the same owners
    else:
        op.mark_unprunable_unless_tied(ids, first, "selected by computed numbers")
    return first
