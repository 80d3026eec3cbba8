"""What several processes compute together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from ..data.task import Batch
from ..errors import DataError
from ..structure.calling import count_rows, move_tensors, select_rows

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def all_sum(fabric: Fabric, tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes, the same bits in each."""
    if fabric.world_size == 1:
        return tensor
    result = fabric.all_reduce(tensor.to(fabric.device), reduce_op="sum")
    assert isinstance(result, Tensor)
    return result.to(tensor.device)


def shards(batches: Iterator[Batch], fabric: Fabric) -> Iterator[Batch]:
    """This process's rows of every batch, on its device. A last batch too short to give every process two rows is dropped."""
    world, size = fabric.world_size, 0
    for x, y in batches:
        count = count_rows(x)
        size = size or count
        if size < world:
            raise DataError(f"A batch of {count} cannot be shared by {world} processes. Use a larger batch size.")
        if count == size or count >= 2 * world:
            rows = slice(fabric.global_rank, None, world)
            yield move_tensors(select_rows(x, rows), fabric.device), y[rows].to(fabric.device, non_blocking=True)
