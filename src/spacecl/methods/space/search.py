"""The search for a task's widths: what was seen of the full network, which units follow, and what they would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...data.task_data import Data
from ...errors import TrainingError, warn_user
from ...learning.analysis import Analysis
from ...learning.context import TaskContext
from ...learning.core import Core
from ...learning.normalization import reestimate_norms
from ...structure.channels import Place
from ...structure.memory_format import set_memory_format
from .compensation import compensate
from .moments import Statistics, collect_statistics
from .selection import Ranking, describe_selection, find_places, find_undersampled, rank_units, select_units
from .target import HeldOut, bisect, find_level, size_so_far, split_examples

if TYPE_CHECKING:
    from .method import SPACE

_ROUNDS = 3
TOLERANCE = 0.02  # the default


@dataclass(frozen=True)
class Choice:
    """The units of a task's network, and why these."""

    units: Tensor  # (units,) booleans
    asked: dict[str, float]
    level: float | None  # what every layer may cost; None if each has a threshold of its own
    analysis: Analysis


class Search:
    """Finds the units of a task's network from the trained full-width network."""

    def __init__(self, method: SPACE, core: Core, task: TaskContext, network: nn.Module):
        self.method, self.core, self.task, self.network = method, core, task, network
        self.tensors = core.blueprint.extract_tensors(network)
        examples, judged = split_examples(task)
        self.held_out = HeldOut(network, judged, task.trainer)
        self.analyze(task.train if self._knows_counts else examples)

    @property
    def _knows_counts(self) -> bool:
        """Whether the user has said how many filters, so that no network need be compared to find out."""
        return self.method.size is not None or self.method._variance_of(self.task.name) is not None

    def analyze(self, examples: Data) -> None:
        """Collect what the full network's activations are like on some examples, and rank the free units by it."""
        self.examples = examples
        self.statistics = self._collect_statistics()
        self.rankings = rank_units(
            self.core,
            self.statistics,
            activations=self.method.activations,
            projection=self.method.projection,
            order=self.method.selection,
        )

    def choose(self) -> Choice:
        """Choose units by whichever of variance, size and tolerance the user gave."""
        method, task = self.method, self.task
        if method._variance_of(task.name) is not None:
            return self._choose_by_variance()
        if method.size is not None:
            return self._choose_by_size(method.size)
        tolerance = TOLERANCE if method.tolerance is None else method.tolerance
        accept = lambda level: self._lost(level) <= tolerance  # noqa: E731
        level, _ = find_level(self.rankings, accept)
        if self.examples is not task.train:  # found on examples that were held out; the units are chosen by all of them
            self.analyze(task.train)
            if not accept(level):
                level = min(level, find_level(self.rankings, accept)[0])
        return self._choose_by_level(level, {"tolerance": tolerance})

    def narrow(self, units: Tensor) -> nn.Module:
        """The network with these units alone; with compensation, what was removed is estimated, and norms are re-estimated."""
        core, method, tensors = self.core, self.method, self.tensors
        if method.compensate:
            frozen = core.frozen_positions(method.freeze)
            committed, untrained = core.committed_units, core.blueprint.frozen
            tensors = compensate(core.channels, tensors, self.statistics, units, committed, frozen, untrained)
        network = core.blueprint.build(core.channels.gather(tensors, units))
        if method.compensate:
            reestimate_norms(network, replace(self.task, train=self.examples))
        return network

    def leave_out(self, units: Tensor, allowed: float) -> Tensor:
        """The units without those of the core that the task does not need.

        What a core unit is worth is the effect of its activations in the network that is left so far. A unit whose readers have
        all been left out is worth nothing, so whole chains go, from the top down.
        """
        for _ in range(_ROUNDS):
            worth = self._worth(units)
            candidates = worth[units & self.core.committed_units]
            if not len(candidates):
                break
            highest = float(candidates.max())
            tried: list[Tensor] = []

            def accept(level: float, before: Tensor = units, worth: Tensor = worth, tried: list[Tensor] = tried) -> bool:
                tried.append(self._without(before, worth, level))
                return self.held_out.compare(self.narrow(tried[-1]))["lost"] <= allowed

            level = bisect(accept, highest)
            units = self._without(units, worth, level)
        return units

    def _without(self, units: Tensor, worth: Tensor, level: float) -> Tensor:
        """The units without those of the core that are worth less; every group keeps one."""
        result = units & ~(self.core.committed_units & (worth < level))
        for group in self.core.channels.groups:
            if not bool(result[group.units].any()):
                result[group.units[worth[group.units].argmax()]] = True
        return result

    def _worth(self, units: Tensor) -> Tensor:
        """The effect of each unit on the loss of the network with some units, if nothing stood in for it."""
        channels = self.core.channels
        tensors = compensate(
            channels,
            self.tensors,
            self.statistics,
            units,
            self.core.committed_units,
            self.core.frozen_positions(self.method.freeze),
            self.core.blueprint.frozen,
        )
        for place in channels.readings:
            tensors[place.weight] = tensors[place.weight].clone()
            tensors[place.weight][:, place.columns[:, ~units[place.units]].flatten()] = 0
        masked = self.core.blueprint.build(tensors)
        reestimate_norms(masked, replace(self.task, train=self.examples))
        statistics = collect_statistics(
            masked,
            channels.readings,
            replace(self.task, train=self.examples).examples(1000),
            self.task.trainer.fabric,
            gradients=torch.Generator().manual_seed(self.task.trainer.seed),
        )
        worth = torch.zeros(channels.units, dtype=torch.float64)
        for place, seen in statistics.items():
            assert seen.gradient is not None
            square = seen.covariance.diagonal() + seen.mean.square()
            worth.index_add_(0, place.units, seen.gradient.diagonal() * square / 2)
        return worth

    def _choose_by_variance(self) -> Choice:
        method, name = self.method, self.task.name
        if not method.shrinkage:
            undersampled = find_undersampled(self.rankings)
            if undersampled:
                warn_user(
                    f"Task {name!r}: too few samples to tell new channels from chance in {'; '.join(undersampled)}. "
                    "Give more training data or raise samples=..."
                )
        variance = method._variance_of(name)
        asked = {"variance": variance} if isinstance(variance, float) else {}
        threshold = lambda layer: method.threshold(name, layer)  # noqa: E731
        return self._describe(lambda ranking: ranking.needed(threshold), asked, None, threshold)

    def _choose_by_size(self, size: float) -> Choice:
        assert self.method.budget is not None  # checked when the learner was made
        budget, number = self.method.budget, len(self.core.tasks) + 1
        allowed = size_so_far(self.core, size, number, budget)
        _, level = find_level(self.rankings, lambda level: self.core.size(self._select(level)) > allowed, steps=14)
        return self._choose_by_level(level, {"size": size, "budget": budget, "so_far": round(allowed, 5)})

    def _choose_by_level(self, level: float, asked: dict[str, float]) -> Choice:
        return self._describe(lambda ranking: ranking.count(level), asked, level, None)

    def _describe(
        self,
        wanted: Callable[[Ranking], int],
        asked: dict[str, float],
        level: float | None,
        threshold: Callable[[str], float] | None,
    ) -> Choice:
        units = self.task.trainer.fabric.broadcast(select_units(self.core, self.rankings, wanted, self._tasks_left))
        analysis = describe_selection(self.core, self.rankings, units, wanted, threshold, self.method.projection)
        return Choice(units, asked, level, analysis)

    def _select(self, level: float) -> Tensor:
        return select_units(self.core, self.rankings, lambda ranking: ranking.count(level), self._tasks_left)

    @property
    def _tasks_left(self) -> int | None:
        """For how many tasks, this one included, every layer must have a channel; None if nobody asked for that."""
        budget = self.method.budget
        return None if budget is None or self.method.size is not None else max(1, budget - len(self.core.tasks))

    def _lost(self, level: float) -> float:
        return self.held_out.compare(self.narrow(self._select(level)))["lost"]

    def _places(self) -> Iterator[Place]:
        """Where activations are analyzed: a few places for every group, and with compensation wherever a layer reads."""
        for group in self.core.channels.groups:
            yield from (place for place, _ in find_places(self.core.channels, group, self.method.activations))
        yield from self.core.channels.readings if self.method.compensate else ()

    def _collect_statistics(self) -> Mapping[Place, Statistics]:
        """Mean and covariance of the activations at every place that is analyzed, and moments of the gradient there."""
        task, method = replace(self.task, train=self.examples), self.method
        places = list(dict.fromkeys(self._places()))
        samples = method.samples or max(1000, 10 * max((len(place.units) for place in places), default=0))
        set_memory_format(self.network, task.trainer.channels_last)
        statistics = collect_statistics(
            self.network,
            places,
            task.examples(samples),
            task.trainer.fabric,
            shrinkage=method.shrinkage,
            distinct=len(self.examples),
            gradients=torch.Generator().manual_seed(task.trainer.seed) if method.selection == "effect" else None,
        )
        broken = [place.layer for place, values in statistics.items() if not bool(torch.isfinite(values.covariance).all())]
        if broken:
            raise TrainingError(
                f"Task {task.name!r}: activations overflow at {', '.join(dict.fromkeys(broken))}. "
                "Nothing was committed; the learner is unchanged. "
                f"Lower the learning rate (lr={task.trainer.recipe.lr}) or check the scale of the inputs."
            )
        return statistics
