"""What several processes do together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def summed(fabric: Fabric, tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes, the same bits in each."""
    if fabric.world_size == 1:
        return tensor
    result = fabric.all_reduce(tensor.to(fabric.device), reduce_op="sum")
    assert isinstance(result, Tensor)
    return result.to(tensor.device)


def shards(batches: Iterator[tuple[Tensor, Tensor]], fabric: Fabric) -> Iterator[tuple[Tensor, Tensor]]:
    """This process's rows of every batch, on its device; a last row alone is left out, since BatchNorm cannot take it."""
    world, first = fabric.world_size, True
    for x, y in batches:
        if first or len(x) >= 2 * world:
            x, y = x[fabric.global_rank :: world], y[fabric.global_rank :: world]
            yield x.to(fabric.device, non_blocking=True), y.to(fabric.device, torch.int64, non_blocking=True)
        first = False
