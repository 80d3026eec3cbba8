"""Streaming moments of activations: a count, a mean and a second moment per place, without storing activations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...learning.distributed import all_sum
from ...structure.channels import Place
from ...structure.memory_format import run_model

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_READS = {F.linear, F.conv1d, F.conv2d, F.conv3d}
_ROWS = 1 << 12  # rows of one float32 product: small enough for the cache, and for rounding errors far below any threshold


class Moments:
    """Mean and covariance of rows that arrive in batches.

    Rows are shifted by the first batch's mean before they are squared, and sums are kept in float64, so that float32
    activations with a large mean do not cancel.

    >>> moments = Moments(features=2)
    >>> moments.update(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    >>> moments.mean.tolist(), moments.covariance.tolist()
    ([2.0, 4.0], [[2.0, 4.0], [4.0, 8.0]])
    """

    def __init__(self, features: int):
        self.count = 0
        self.shift = torch.zeros(features, dtype=torch.float64)
        self.total = torch.zeros(features, dtype=torch.float64)  # of shifted rows
        self.second = torch.zeros(features, features, dtype=torch.float64)  # of shifted rows

    def update(self, rows: Tensor) -> None:
        """Add some rows, of shape (samples, features)."""
        rows = rows if rows.dtype == torch.float64 else rows.float()
        if not self.count:
            self.shift = rows.mean(0)
        self.count += len(rows)
        for part in rows.split(_ROWS):
            part = part - self.shift
            self.total += part.sum(0).cpu()
            self.second += (part.mT @ part).cpu()

    @property
    def mean(self) -> Tensor:
        return self.shift.cpu().double() + self.total / max(1, self.count)

    @property
    def scatter(self) -> Tensor:
        """Sum of the outer products of centred rows, of shape (features, features)."""
        return self.second - torch.outer(self.total, self.total) / max(1, self.count)

    @property
    def covariance(self) -> Tensor:
        return self.scatter / max(1, self.count - 1)

    def reduce(self, fabric: Fabric) -> None:
        """Add the rows of all other processes; all end with the same moments."""
        count = int(all_sum(fabric, torch.tensor(float(self.count), dtype=torch.float64)))
        mean = all_sum(fabric, self.mean * self.count) / count
        offset = self.mean - mean
        scatter = all_sum(fabric, self.scatter + self.count * torch.outer(offset, offset))
        self.count, self.shift, self.total, self.second = count, mean, torch.zeros_like(mean), scatter


class _Watch(TorchFunctionMode):
    """Passes the input or output of every watched layer to its moments, whichever module calls it."""

    def __init__(self, watched: Mapping[int, Sequence[tuple[Place, Moments]]]):
        super().__init__()
        self.watched = watched

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _READS:
            arguments = dict(zip(("input", "weight"), args)) | (kwargs or {})
            for place, moments in self.watched.get(id(arguments["weight"]), ()):
                moments.update(rows_at(place, arguments["input"] if place.side == "input" else result))
        return result


def rows_at(place: Place, activation: Tensor) -> Tensor:
    """The samples of a place's units in an activation, of shape (samples, units)."""
    activation = activation.detach()
    columns = place.columns.mT.to(activation.device)  # (units, occurrences)
    if torch.equal(columns.flatten(), torch.arange(activation.shape[place.dim], device=columns.device)):
        rows = activation.movedim(place.dim, -1)
        if columns.shape[1] == 1 and rows.is_contiguous():  # already in this order, such as images that are channels-last
            return rows.reshape(-1, len(columns))
        channels = activation.movedim(place.dim, 0)
    else:
        channels = activation.movedim(place.dim, 0)[columns]
    return channels.reshape(len(place.units), -1).mT  # channel by channel in memory: one copy, and a fast product


@torch.no_grad()
def collect_moments(
    module: nn.Module, places: Sequence[Place], batches: Iterable[Tensor], fabric: Fabric
) -> dict[Place, Moments]:
    """Run batches of inputs through a module in eval mode and return the moments at some places."""
    parameters = dict(module.named_parameters())
    moments_at = {place: Moments(len(place.units)) for place in places}
    watched: dict[int, list[tuple[Place, Moments]]] = {}
    for place, moments in moments_at.items():
        watched.setdefault(id(parameters[place.weight]), []).append((place, moments))
    training = module.training
    module.eval()
    with _Watch(watched):
        for batch in batches:
            run_model(module, batch)
    module.train(training)
    for moments in moments_at.values():
        if fabric.world_size > 1:
            moments.reduce(fabric)
    return moments_at
