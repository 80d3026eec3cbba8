"""Streaming moments of activations and of gradients, place by place, without storing any of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...learning.distributed import all_sum
from ...learning.objective import Objective
from ...structure.calling import Inputs, count_rows
from ...structure.channels import Place
from ...structure.memory_format import run_model

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_READS = dict.fromkeys([F.linear, F.conv1d, F.conv2d, F.conv3d], (0, 1))  # the positions of input and weight
_READS |= dict.fromkeys([F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, torch.matmul, Tensor.matmul], (0, 1))
_READS |= {torch.addmm: (1, 2)} | dict.fromkeys([torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu], (0, 2))
_READS |= dict.fromkeys([torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell], (0, 2))
_ROWS = 1 << 12  # rows of one float32 product: small enough for the cache, and for rounding errors far below any threshold
_DIRECTIONS = 8  # along which the number of independent rows is estimated
_SMOOTHING = 0.1  # share of the answers that is spread over all classes: a network that is sure of itself has gradients, too


@dataclass(frozen=True, eq=False)
class Statistics:
    """What was seen of the activations at one place."""

    count: int  # rows: examples, times the positions of an image
    independent: float  # how many independent rows these are worth
    mean: Tensor  # (units,)
    covariance: Tensor  # (units, units)
    gradient: Tensor | None = None  # (units, units) second moment of the loss's gradient, summed over an example's positions

    @property
    def finite(self) -> bool:
        """Whether nothing has overflowed."""
        return all(bool(torch.isfinite(values).all()) for values in (self.covariance, self.gradient) if values is not None)


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
        self.examples = 0
        self.directions = torch.randn(features, _DIRECTIONS, generator=torch.Generator().manual_seed(features))
        self.energy = torch.zeros(2, _DIRECTIONS, dtype=torch.float64)  # sums of examples' mean squares, and of their squares

    def update(self, rows: Tensor, examples: int | None = None, occurrences: int = 1) -> None:
        """Add some rows, of shape (samples, features).

        The rows of some `examples` are ordered by occurrence, example and position. By default every row is an example.
        """
        rows = rows if rows.dtype == torch.float64 else rows.float()
        examples = examples or len(rows)
        if not self.count:
            self.shift = rows.mean(0)
            scale = (rows - self.shift).square().mean(0).sqrt()
            scale = torch.where(scale > 0, 1 / scale, 0.0)
            self.directions = self.directions.to(rows) * scale[:, None]
        self.count += len(rows)
        self.examples += examples
        along = []
        for part in rows.split(_ROWS):
            part = part - self.shift
            self.total += part.sum(0).cpu()
            self.second += (part.mT @ part).cpu()
            along.append((part @ self.directions).square())
        mean_squares = torch.cat(along).reshape(occurrences, examples, -1, _DIRECTIONS).double().mean((0, 2)).cpu()
        self.energy += torch.stack([mean_squares.sum(0), mean_squares.square().sum(0)])

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

    @property
    def independent(self) -> float:
        """How many independent normal rows would give estimates of variances that are as reliable; at most `count`.

        The positions of one image are alike, so they are worth less than their number. The mean square along a random
        direction is computed for every example; from one example to another it varies the less, the more independent rows
        each has: n rows have a relative variance of 2 / n.
        """
        if self.examples < 2:
            return float(min(self.count, 1))
        mean = self.energy[0] / self.examples
        variance = (self.energy[1] / self.examples - mean.square()).clamp(min=0) * self.examples / (self.examples - 1)
        relative = float((variance / mean.square().clamp(min=1e-300)).mean())
        return min(float(self.count), 2 * self.examples / max(relative, 1e-300))

    def reduce(self, fabric: Fabric) -> None:
        """Add the rows of all other processes; all end with the same moments."""
        count = int(all_sum(fabric, torch.tensor(float(self.count), dtype=torch.float64)))
        mean = all_sum(fabric, self.mean * self.count) / count
        offset = self.mean - mean
        scatter = all_sum(fabric, self.scatter + self.count * torch.outer(offset, offset))
        self.count, self.shift, self.total, self.second = count, mean, torch.zeros_like(mean), scatter
        self.examples = int(all_sum(fabric, torch.tensor(float(self.examples), dtype=torch.float64)))
        self.energy = all_sum(fabric, self.energy)


def shrink(covariance: Tensor, samples: float) -> Tensor:
    """Shrink a covariance towards its diagonal, the more the fewer independent samples it was estimated from.

    From few samples, channels seem to depend on each other by chance. The weight is that of the oracle approximating
    shrinkage (Chen et al. 2010) of the correlations towards none.

    >>> covariance = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    >>> shrink(covariance, samples=2).tolist(), round(float(shrink(covariance, samples=10_000)[0, 1]), 3)
    ([[1.0, 0.0], [0.0, 1.0]], 0.499)
    """
    diagonal = covariance.diagonal()
    alive = diagonal > 0
    size = int(alive.sum())
    if size < 2:
        return covariance
    scale = torch.where(alive, diagonal.clamp(min=1e-300).rsqrt(), 0.0)
    mean_square = float((covariance * scale[:, None] * scale).square().sum()) / size**2  # of the correlations
    excess = mean_square - 1 / size
    weight = min(1.0, (mean_square + 1) / ((samples + 1) * excess)) if excess > 0 else 1.0
    return torch.lerp(covariance, torch.diag(diagonal), weight)


class _Watch(TorchFunctionMode):
    """Passes the input or output of every watched layer to its moments, whichever module calls it.

    Gradients by these tensors, as they come in a backward pass, are added to `seconds` if it has the place; a tensor that two
    layers read is two there.
    """

    def __init__(self, watched: Mapping[int, Sequence[tuple[Place, Moments]]], seconds: Mapping[Place, Tensor]):
        super().__init__()
        self.watched, self.seconds = watched, seconds
        self.examples = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _READS:
            return func(*args, **kwargs)
        first, second = _READS[func]
        weight = args[second] if len(args) > second else kwargs.get("weight")
        weights = weight if isinstance(weight, list) else [weight]  # recurrent layers have one for each direction
        watched = [pair for weight in weights for pair in self.watched.get(id(weight), ())]
        x = args[first] if len(args) > first else kwargs.get("input")
        x = self._separate(x) if any(place.side == "input" for place, _ in watched) else x
        result = func(*args[:first], x, *args[first + 1 :], **kwargs) if len(args) > first else func(**kwargs | {"input": x})
        if any(place.side == "output" for place, _ in watched):
            result = self._separate(result)
        for place, moments in watched:
            activation = x if place.side == "input" else result
            examples = self.examples if activation.shape[0] % self.examples == 0 else None
            rows = rows_at(place, activation)
            moments.update(rows, examples or len(rows), len(place.columns) if examples else 1)
            if place in self.seconds:
                activation.register_hook(partial(_add_gradient, self.seconds[place], place))
        return result

    def _separate(self, x: Tensor) -> Tensor:
        """The same values as a tensor of its own, which gradients can be asked for."""
        if not self.seconds:
            return x
        return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


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


def collect_statistics(
    module: nn.Module,
    places: Sequence[Place],
    batches: Iterable[Inputs],
    fabric: Fabric,
    *,
    shrinkage: bool = False,
    distinct: int | None = None,
    gradients: torch.Generator | None = None,
    objective: Objective | None = None,
) -> dict[Place, Statistics]:
    """Run batches of inputs through a module in eval mode and return what was seen of the activations at some places.

    With `shrinkage`, covariances are shrunk. `distinct` is the number of different examples, if some were seen several
    times with random changes. With `gradients`, there are second moments of the gradients of the loss, for targets drawn from
    the module's own answers by that generator, as the `objective` says (default: classes).
    """
    objective = Objective() if objective is None else objective
    parameters = dict(module.named_parameters())
    moments_at = {place: Moments(len(place.units)) for place in places}
    seconds = {place: torch.zeros(2 * (len(place.units),), dtype=torch.float64) for place in places if gradients is not None}
    watched: dict[int, list[tuple[Place, Moments]]] = {}
    for place, moments in moments_at.items():
        watched.setdefault(id(parameters[place.weight]), []).append((place, moments))
    training, examples = module.training, torch.zeros((), dtype=torch.float64)
    module.eval()
    watch = _Watch(watched, seconds)
    with torch.set_grad_enabled(gradients is not None), _frozen(module):
        for batch in batches:
            watch.examples = count_rows(batch)
            examples += watch.examples
            with watch:
                outputs = run_model(module, batch)
            if gradients is not None and outputs.requires_grad:
                outputs.backward(objective.sample_gradient(outputs, gradients, _SMOOTHING))
            del outputs  # and what it was computed from, before the next batch
    module.train(training)
    examples = all_sum(fabric, examples)
    result = {}
    watched.clear()
    for place in list(moments_at):
        moments = moments_at.pop(place)  # what is summed up is freed place by place: wide layers have large matrices
        if fabric.world_size > 1:
            moments.reduce(fabric)
        repeated = max(1.0, float(examples) / distinct) if distinct else 1.0
        independent = moments.independent / repeated
        covariance = shrink(moments.covariance, independent) if shrinkage else moments.covariance
        gradient = all_sum(fabric, seconds.pop(place)).div_(float(examples)) if gradients is not None else None
        result[place] = Statistics(moments.count, independent, moments.mean, covariance, gradient)
    return result


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Ask for no gradients by a module's parameters: a backward pass then ends at the first activations that are watched."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_()


def _add_gradient(second: Tensor, place: Place, gradient: Tensor) -> None:
    """Add the second moment of the gradients of an activation, while they are there: never those of a whole network at once."""
    for rows in rows_at(place, gradient).float().split(_ROWS):
        second += (rows.mT @ rows).cpu()
