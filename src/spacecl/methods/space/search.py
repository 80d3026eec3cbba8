"""The search for a task's widths: what was seen of the full network, which units follow, and what they would cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...data.task_data import Data
from ...errors import TrainingError, warn_user
from ...learning.analysis import Analysis
from ...learning.context import TaskContext
from ...learning.core import Core
from ...learning.normalization import reestimate_norms
from ...structure.channels import GroupKey, Place
from ...structure.memory_format import set_memory_format
from ...structure.tensors import Tensors
from .compensation import compensate
from .moments import Statistics, collect_statistics
from .selection import Ranking, describe_selection, find_places, find_undersampled, rank_units, select_units
from .target import HeldOut, find_level, size_so_far, split_examples

if TYPE_CHECKING:
    from .method import SPACE

_STEPS = 6  # of bisection when core units are left out
_WORTH_EXAMPLES = 1000  # by which it is judged what a core unit is worth
TOLERANCE = 0.02  # the default
_MOST = 0.2  # of what is free of the network, at most, for one task with a tolerance and no budget


@dataclass(frozen=True)
class Choice:
    """The units of a task's network, and why these."""

    units: Tensor  # (units,) booleans
    asked: dict[str, float]
    level: float | None  # the price of a parameter; None if each layer has a threshold of its own
    analysis: Analysis


@dataclass(frozen=True)
class _Demand:
    """How many new units a task asks for, and why."""

    wanted: Callable[[Ranking], int]
    asked: dict[str, float]
    level: float | None
    threshold: Callable[[str], float] | None = None


class Search:
    """Finds the units of a task's network from the trained full-width network.

    `home` is the core that the task will be committed to; `core` is that, or one in a wider network (see `widen`).
    """

    def __init__(self, method: SPACE, core: Core, task: TaskContext, network: nn.Module, home: Core):
        self.method, self.core, self.task, self.network, self.home = method, core, task, network, home
        self.tensors = core.blueprint.extract_tensors(network)
        self.reused = core.committed_units  # the units of the core that the task's network has
        examples, judged = split_examples(task)
        self.held_out = HeldOut(network, judged, task.trainer)
        self._analyze(task.train if self._knows_counts else examples)

    @property
    def _knows_counts(self) -> bool:
        """Whether the user has said how many filters, so that no network need be compared to find out."""
        return self.method.size is not None or self.method._variance_of(self.task.name) is not None

    def _analyze(self, examples: Data) -> None:
        """Collect what the full network's activations are like on some examples."""
        self.examples = examples
        self.statistics = self._collect_statistics()

    def _rank(self) -> None:
        """Rank the free units by what the reused units of the core do not explain."""
        self.rankings = rank_units(
            self.core,
            self.reused,
            self.statistics,
            space=self._space,
            activations=self.method.activations,
            projection=self.method.projection,
            order=self.method.selection,
            scarce=self._tasks_left > 1,
            multiple=self.method.multiple_of,
        )

    @cached_property
    def _space(self) -> dict[GroupKey, int]:
        """How many new units the network has space for, by the key of a group."""
        committed = self.home.committed_units
        return {group.key: int((~committed[group.units]).sum()) for group in self.home.channels.groups}

    def choose(self) -> Choice:
        """Choose new units by whichever of variance, size and tolerance the user gave, and leave out core units not needed."""
        if self.method.reuse == "needed" and self.core.tasks and self.core is self.home:  # a wide network needs none of them
            self.reused = self.leave_out(self.core.channels.all_units(), self._tolerance) & self.reused
        self._rank()
        demand = self._find_demand()
        units = self._select(demand.wanted)
        if self.method.reuse == "needed" and self.core.tasks:
            demand, units = self._leave_out_more(demand, units)
        units = self.task.trainer.fabric.broadcast(units)
        analysis = describe_selection(self.core, self.rankings, units, demand.wanted, demand.threshold, self.method.projection)
        return Choice(units, demand.asked, demand.level, analysis)

    def _leave_out_more(self, demand: _Demand, units: Tensor) -> tuple[_Demand, Tensor]:
        """Leave out core units that the pruned network does not need, or all of them if that is better."""
        reused = self.leave_out(units, self._lost(units) + self._tolerance) & self.reused
        if "size" not in demand.asked:
            self.reused = reused
            self.rankings = [replace(ranking, reused=reused[ranking.group.units]) for ranking in self.rankings]
            return demand, self._select(demand.wanted)
        # What is left out makes space for new units. How much is best is seen in the answers. Units that no task had together
        # bring weights that count: a large part of the core may exceed the size without any new unit.
        tried = []
        for some in (reused, self._reused_in_full_groups()):
            self.reused = some
            self._rank()
            demand = self._find_demand()
            units = self._select(demand.wanted)
            excess = max(0.0, self.core.size(units) - demand.asked["so_far"])
            tried.append((excess, self._lost(units), self.reused, self.rankings, demand, units))
        _, _, self.reused, self.rankings, demand, units = min(tried, key=lambda entry: entry[:2])
        return demand, units

    def _reused_in_full_groups(self) -> Tensor:
        """The reused units of groups that have no space for new ones."""
        units = self.reused.clone()
        for group in self.core.channels.groups:
            units[group.units] &= self._space[group.key] == 0
        return units

    @property
    def _tolerance(self) -> float:
        return TOLERANCE if self.method.tolerance is None else self.method.tolerance

    def _find_demand(self) -> _Demand:
        """How many new units each group needs."""
        if self.method._variance_of(self.task.name) is not None:
            return self._demand_by_variance()
        if self.method.size is not None:
            return self._demand_by_size(self.method.size)
        return self._demand_by_tolerance(self._tolerance)

    def _demand_by_tolerance(self, tolerance: float) -> _Demand:
        def accept(level: float) -> bool:
            return self._lost(self._select(lambda ranking: ranking.count(level))) <= tolerance

        level, _ = find_level(self.rankings, accept)
        if self.examples is not self.task.train:  # found on examples that were held out; units are chosen by all of them
            self._analyze(self.task.train)
            self._rank()
            if not accept(level):
                level = min(level, find_level(self.rankings, accept)[0])
        least = self.core.size(self._select(lambda ranking: ranking.count(math.inf)))  # without new units
        taken = self.core.size() if self.core.tasks else least  # by earlier tasks, or unprunable
        level = max(level, self._level_for_size(max(least, taken + (1 - taken) * self._share)))
        return _Demand(lambda ranking: ranking.count(level), {"tolerance": tolerance}, level)

    def _demand_by_size(self, size: float) -> _Demand:
        assert self.method.budget is not None  # checked when the learner was made
        level = self._level_for_size(self._size_so_far)
        if self.core.size(self._select(lambda ranking: ranking.count(level))) > self._size_so_far:
            self.rankings = [replace(ranking, step=1) for ranking in self.rankings]  # rounding alone would exceed the size
            level = self._level_for_size(self._size_so_far)
        asked = {"size": size, "budget": self.method.budget, "so_far": round(self._size_so_far, 5)}
        return _Demand(lambda ranking: ranking.count(level), asked, level)

    def _level_for_size(self, size: float) -> float:
        """The lowest level with which all tasks up to this one use at most this much of the network."""

        def exceeds(level: float) -> bool:
            return self.core.size(self._select(lambda ranking: ranking.count(level))) > size

        return find_level(self.rankings, exceeds, steps=14)[1]

    @cached_property
    def _size_so_far(self) -> float:
        """How much of the network all tasks up to this one may use, with a size for a budget of tasks."""
        assert self.method.size is not None
        assert self.method.budget is not None
        return size_so_far(self.method.size, len(self.core.tasks) + 1, self.method.budget)

    def _demand_by_variance(self) -> _Demand:
        method, name = self.method, self.task.name
        undersampled = [] if method.shrinkage else find_undersampled(self.rankings)
        if undersampled:
            warn_user(
                f"Task {name!r}: too few samples to tell new channels from chance in {'; '.join(undersampled)}. "
                "Give more training data or raise samples=..."
            )
        variance = method._variance_of(name)
        asked = {"variance": variance} if isinstance(variance, float) else {}
        threshold = partial(method.threshold, name)
        return _Demand(lambda ranking: ranking.needed(threshold), asked, None, threshold)

    def narrow(self, units: Tensor) -> nn.Module:
        """The network with these units alone; with compensation, what was removed is estimated, and norms are re-estimated."""
        network = self.core.blueprint.build(self.core.channels.gather(self._compensate(units), units))
        if self.method.compensate:
            reestimate_norms(network, replace(self.task, train=self.examples))
        return network

    def leave_out(self, units: Tensor, allowed: float) -> Tensor:
        """The units without those of the core that the task does not need, so that at most `allowed` of the answers is lost.

        What a core unit is worth is the effect of its activations in the network with these units. One whose readers have been
        left out before is worth nothing, so whole chains go, from the top down.
        """
        worth = self._estimate_worth(units)
        known = (units & self.core.committed_units).nonzero()[:, 0]
        order = known[worth[known].argsort(stable=True)]  # the least needed first
        few, many = 0, len(order) + 1
        for _ in range(_STEPS):
            middle = (few + many) // 2
            needless = self._lost(self._without(units, order[:middle])) <= allowed
            few, many = (middle, many) if needless else (few, middle)
        return self._without(units, order[:few])

    def _without(self, units: Tensor, some: Tensor) -> Tensor:
        """The units without some, of which the last of a group stays if nothing else does."""
        result = units.index_fill(0, some, False)
        for group in self.core.channels.groups:
            if not bool(result[group.units].any()):
                result[some[torch.isin(some, group.units)][-1]] = True
        return result

    def _estimate_worth(self, units: Tensor) -> Tensor:
        """The effect of each unit on the loss of the network with some units, if nothing stood in for it."""
        channels, task = self.core.channels, replace(self.task, train=self.examples)
        tensors = self._compensate(units)
        for place in channels.readings:
            columns = place.columns[:, ~units[place.units]].flatten()
            tensors[place.weight] = tensors[place.weight].index_fill(1, columns, 0.0)
        masked = self.core.blueprint.build(tensors)
        reestimate_norms(masked, task)
        generator = torch.Generator().manual_seed(task.trainer.seed)
        examples = task.examples_of_step(_WORTH_EXAMPLES, self.core.blueprint.example)
        statistics = collect_statistics(
            masked, channels.readings, examples, task.trainer.fabric, gradients=generator, objective=task.objective
        )
        worth = torch.zeros(channels.units, dtype=torch.float64)
        for place, seen in statistics.items():
            assert seen.gradient is not None
            square = seen.covariance.diagonal() + seen.mean.square()
            worth.index_add_(0, place.units, seen.gradient.diagonal() * square / 2)
        return task.trainer.fabric.broadcast(worth)

    def _compensate(self, units: Tensor) -> Tensors:
        """The full tensors, in which the channels of some units stand in for the others if the method compensates."""
        core = self.core
        if not self.method.compensate:
            return dict(self.tensors)
        frozen, untrained = core.frozen_positions(self.method.freeze), core.blueprint.frozen
        return compensate(core.channels, self.tensors, self.statistics, units, core.committed_units, frozen, untrained)

    def _select(self, wanted: Callable[[Ranking], int]) -> Tensor:
        budget_of_variance = self.method.budget is not None and self.method._variance_of(self.task.name) is not None
        tasks_left = int(self._tasks_left) if budget_of_variance else None
        return select_units(self.core, self.rankings, wanted, tasks_left) & (self.reused | ~self.core.committed_units)

    @property
    def _tasks_left(self) -> float:
        """How many tasks the network must have capacity for, this one included; without a budget, more may always come."""
        return math.inf if self.method.budget is None else max(1, self.method.budget - len(self.core.tasks))

    @property
    def _share(self) -> float:
        """How much of what is free of the network a task with a tolerance may take."""
        return _MOST if self.method.budget is None else 1 / self._tasks_left

    def _lost(self, units: Tensor) -> float:
        return self.held_out.compare(self.narrow(units))["lost"]

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
            task.examples_of_step(samples, self.core.blueprint.example),
            task.trainer.fabric,
            shrinkage=method.shrinkage,
            distinct=len(self.examples),
            gradients=torch.Generator().manual_seed(task.trainer.seed) if method.selection == "effect" else None,
            objective=task.objective,
        )
        broken = [place.layer for place, values in statistics.items() if not values.finite]
        if broken:
            raise TrainingError(
                f"Task {task.name!r}: activations overflow at {', '.join(dict.fromkeys(broken))}. "
                "Nothing was committed; the learner is unchanged. "
                f"Lower the learning rate (lr={task.trainer.recipe.lr}) or check the scale of the inputs."
            )
        return statistics
