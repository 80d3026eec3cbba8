"""What several processes compute together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..data.task import Batch
from ..errors import DataError
from ..structure.calling import count_rows, move_tensors, select_rows
from ..structure.tensors import named_tensors

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


@torch.no_grad()
def synchronize(fabric: Fabric, module: nn.Module) -> None:
    """Give every process the first one's tensors: running statistics differ, and rounding may on machines of several kinds."""
    if fabric.world_size > 1:
        for tensor in named_tensors(module).values():
            tensor.copy_(fabric.broadcast(tensor))


def gather_tensors(fabric: Fabric, tensor: Tensor) -> list[Tensor]:
    """A tensor of every process, in the order of their ranks. All have the same shape."""
    rows = tensor.new_zeros((fabric.world_size, *tensor.shape))
    rows[fabric.global_rank] = tensor
    return list(all_sum(fabric, rows).unbind())


def gather_values(fabric: Fabric, value: Any) -> list[Any]:
    """A value of every process, in the order of their ranks. It travels as JSON, so that nothing is unpickled."""
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [int(size) for size in gather_tensors(fabric, torch.tensor([len(data)]))]
    padded = torch.nn.functional.pad(data, (0, max(sizes) - len(data)))
    return [json.loads(bytes(row[:size].tolist())) for row, size in zip(gather_tensors(fabric, padded), sizes)]
