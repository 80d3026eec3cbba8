"""What several processes compute together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from ..errors import DataError

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def all_sum(fabric: Fabric, tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes, the same bits in each."""
    if fabric.world_size == 1:
        return tensor
    result = fabric.all_reduce(tensor.to(fabric.device), reduce_op="sum")
    assert isinstance(result, Tensor)
    return result.to(tensor.device)


def shards(batches: Iterator[tuple[Tensor, Tensor]], fabric: Fabric) -> Iterator[tuple[Tensor, Tensor]]:
    """This process's rows of every batch, on its device. A last batch too short to give every process two rows is dropped."""
    world, size = fabric.world_size, 0
    for x, y in batches:
        size = size or len(x)
        if size < world:
            raise DataError(f"A batch of {len(x)} cannot be shared by {world} processes. Use a larger batch size.")
        if len(x) == size or len(x) >= 2 * world:
            x, y = x[fabric.global_rank :: world], y[fabric.global_rank :: world]
            yield x.to(fabric.device, non_blocking=True), y.to(fabric.device, non_blocking=True)
