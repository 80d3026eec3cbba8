"""Which filters a task keeps: the core's, and as many new ones as its residual needs (algorithms 2 and 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from ...learning.analysis import Analysis, LayerSpectrum
from ...learning.core import Core
from ...structure.channels import Channels, Group, GroupKey, Place
from .effect import rank_by_effect
from .moments import Statistics
from .spectrum import Spectrum, analyze_residual, explained_fraction, pivot

_SAMPLES_PER_CHANNEL = 5  # with fewer, PCA takes chance for structure


@dataclass(frozen=True)
class Site:
    """What was seen of a group of channels at one place."""

    covariance: Tensor  # (units of the group, units of the group)
    samples: int
    layers: Sequence[str]  # whose thresholds count here
    residual: Spectrum

    def needed(self, threshold: Callable[[str], float]) -> int:
        """New filters with which the thresholds of the layers are reached here."""
        return self.residual.needed(max(map(threshold, self.layers)))


@dataclass(frozen=True)
class Ranking:
    """The free units of a group: in what order to keep them, and what keeping only some of them costs.

    Ordered by their effect, the cost is an estimate of the rise of the loss; otherwise it is a share of variance.
    """

    group: Group
    sites: Sequence[Site]
    space: int  # new units that the network has space for
    in_core: Tensor  # (units of the group,) booleans
    reused: Tensor  # (units of the group,) booleans: those of the core that the task's network has
    costs: Tensor  # (free units + 1,) of keeping 0, 1, 2, ... of them; never rising
    pick: Callable[[int], Sequence[int]]  # how many -> which, as numbers among the free ones
    prices: Tensor  # (free units + 1,) of 0, 1, 2, ... new units: the parameters that they bring with them
    step: int = 1  # the number of units, reused and new together, is rounded up to a multiple of this

    @property
    def free(self) -> Tensor:
        return self.group.units[~self.in_core]

    @property
    def highest_level(self) -> float:
        """The level from which on no new unit is worth its price."""
        return float(((self.costs[0] - self.costs[1:]) / self.prices[1:]).amax()) if len(self.costs) > 1 else 0.0

    def count(self, level: float) -> int:
        """The number of new units with which cost and price are lowest together, if a parameter costs `level`."""
        cheapest = 0 if level == math.inf else int((self.costs + level * self.prices).argmin())
        return self._round_up(cheapest)

    def needed(self, threshold: Callable[[str], float]) -> int:
        """The least number of new units with which `threshold(layer)` of the residual's variance is explained."""
        return self._round_up(max(site.needed(threshold) for site in self.sites))

    def _round_up(self, count: int) -> int:
        """At least one unit with the reused ones, and a multiple of `step` if the network has space for it."""
        reused = int(self.reused.sum())
        count = max(count, 0 if reused else 1)
        rounded = -(-(reused + count) // self.step) * self.step - reused
        return rounded if rounded <= min(self.space, len(self.costs) - 1) else count


def rank_units(
    core: Core,
    reused: Tensor,
    statistics: Mapping[Place, Statistics],
    *,
    space: Mapping[GroupKey, int] | None = None,
    activations: Literal["post", "pre"] = "post",
    projection: bool = True,
    order: Literal["effect", "pivoted", "first"] = "pivoted",
    scarce: bool = False,
    multiple: Callable[[str], int] = lambda layer: 1,
) -> list[Ranking]:
    """Rank the free units of every group that can be judged, from what was seen of a task's activations.

    A pure function: it changes nothing. `order` says which of the free filters come first. `space` says how many of them the
    network has space for, by the key of a group; by default all. With `scarce`, more tasks are to come: units become dearer
    the fewer are left. Widths of layers are rounded up to a `multiple(layer)`.
    """
    rankings = []
    parameters = core.channels.parameters_of_units()
    for group in core.channels.groups:
        places = find_places(core.channels, group, activations)
        if not places:
            continue
        in_core = core.committed_units[group.units]
        present = (reused | ~core.committed_units)[group.units]
        sites = [_analyze(place, local, group, statistics[place], in_core, present, projection) for place, local in places]
        residuals = [site.residual for site in sites]
        costs = torch.stack([residual.costs() for residual in residuals]).amax(0)
        pick: Callable[[int], Sequence[int]] = range
        if order == "pivoted":
            pick = partial(pivot, residuals)
        elif order == "effect":
            gradients = [_select(statistics[place].gradient, local[~in_core]) for place, local in places]
            best, costs = rank_by_effect([(r.new * r.variance, gradient) for r, gradient in zip(residuals, gradients)])
            pick = partial(_take, best)
        allowed = int((~in_core).sum()) if space is None else space[group.key]
        prices = _list_prices(float(parameters[group.units].mean()), len(costs), allowed, scarce)
        step = core.channels.step(group, multiple)
        rankings.append(Ranking(group, sites, allowed, in_core, reused[group.units], costs, pick, prices, step))
    return rankings


def select_units(
    core: Core, rankings: Sequence[Ranking], wanted: Callable[[Ranking], int], tasks_left: int | None = None
) -> Tensor:
    """The units of a task's network: the core's, and as many new ones of every group as `wanted` says.

    With `tasks_left`, this task included, each group leaves enough units for the later ones. A group that cannot be judged is
    kept whole.
    """
    units = core.channels.all_units()
    for ranking in rankings:
        count = _allowed(ranking, wanted(ranking), tasks_left)
        units[ranking.free] = False
        units[ranking.free[list(ranking.pick(count))]] = True
    return units


def describe_selection(
    core: Core,
    rankings: Sequence[Ranking],
    units: Tensor,
    wanted: Callable[[Ranking], int],
    threshold: Callable[[str], float] | None = None,
    projection: bool = True,
) -> Analysis:
    """What was seen in each layer, and what was kept. Without thresholds, they are what the wanted filters explain."""
    channels = core.channels
    first_task = core.tasks[0].units if core.tasks else units
    summaries: dict[str, LayerSpectrum] = {}
    minima: dict[str, dict[str, float]] = {"explained": {}, "core_explained": {}, "samples": {}}  # over sites, by layer
    for ranking in rankings:
        group, sites, in_core = ranking.group, ranking.sites, ranking.in_core
        count = int(units[ranking.free].sum())
        asked = min(site.residual.explained(wanted(ranking)) for site in sites)
        limit = (lambda _, asked=asked: asked) if threshold is None else threshold
        summary = _summarize(ranking, first_task[group.units], units[group.units], wanted, limit, projection)
        values = {
            "explained": min(site.residual.explained(count) for site in sites),
            "core_explained": min(site.residual.core_explained for site in sites) if bool(in_core.any()) else 0.0,
            "samples": min(site.samples for site in sites),
        }
        for layer in group.layers:  # a layer may belong to several groups
            scaled = _in_channels(summary, channels.per_unit(layer, group))
            summaries[layer] = _merge(summaries[layer], scaled) if layer in summaries else scaled
            for key, value in values.items():
                minima[key][layer] = min(value, minima[key].get(layer, value))
    return Analysis(**minima, spectrum=summaries)  # type: ignore[arg-type]


def find_undersampled(rankings: Sequence[Ranking]) -> list[str]:
    """The groups that have too few samples for a covariance that is not shrunk, as "conv1 (90 samples for 64 channels)"."""
    result = []
    for ranking in rankings:
        samples, channels = min(site.samples for site in ranking.sites), len(ranking.group.units)
        if samples < _SAMPLES_PER_CHANNEL * channels:
            result.append(f"{', '.join(ranking.group.layers)} ({samples} samples for {channels} channels)")
    return result


def find_places(channels: Channels, group: Group, activations: Literal["post", "pre"]) -> list[tuple[Place, Tensor]]:
    """Where a group is analyzed: where layers read it ("post") or put it out ("pre"); on the other side if there is none."""
    sides = ("input", "output") if activations == "post" else ("output", "input")
    return [*channels.places(group, sides[0])] or [*channels.places(group, sides[1])]


def allowance(free: int, tasks: int) -> int:
    """How many of a group's free units a task may take when `tasks` tasks, this one included, must find one.

    If all take what they may, the shares fall evenly to the last task's, since the core serves later tasks, too: of 55 units
    ten tasks get 10, 9, 8 and so on to 1.

    >>> allowance(free=55, tasks=10), allowance(free=45, tasks=9), allowance(free=3, tasks=10)
    (10, 9, 1)
    """
    return min(free, max(1, min(2 * free // (tasks + 1), free - (tasks - 1))))


def _list_prices(parameters: float, length: int, space: int, scarce: bool) -> Tensor:
    """The prices of 0, 1, 2, ... units, each of so many parameters: the sum, and infinite where there is no space.

    If they are scarce, a unit costs the more the fewer are free: of n free ones, the next costs 1 / n of all that are. So the
    last one is never sold, and thin layers, which bring few parameters, may still give most of what they have.
    """
    counts = torch.arange(length, dtype=torch.float64)
    prices = -space * torch.log1p(-counts.clamp(max=space) / max(1, space)) if scarce else counts
    prices[counts > space] = math.inf
    return parameters * prices


def _analyze(
    place: Place,
    local: Tensor,
    group: Group,
    statistics: Statistics,
    in_core: Tensor,
    present: Tensor,
    projection: bool,
) -> Site:
    covariance = _select(statistics.covariance, local)
    layers = [place.layer] if place.side == "output" else group.layers
    residual = analyze_residual(_select(covariance, present), in_core[present], projection)
    return Site(covariance, statistics.count, layers, residual)


def _select(matrix: Tensor | None, some: Tensor) -> Tensor:
    """Rows and columns of a symmetric matrix."""
    assert matrix is not None
    return matrix[some][:, some]


def _take(order: Sequence[int], count: int) -> Sequence[int]:
    return order[:count]


def _allowed(ranking: Ranking, wanted: int, tasks_left: int | None) -> int:
    return min(wanted, ranking.space if tasks_left is None else allowance(ranking.space, tasks_left))


def _summarize(
    ranking: Ranking,
    first: Tensor,
    kept: Tensor,
    wanted: Callable[[Ranking], int],
    threshold: Callable[[str], float],
    projection: bool,
) -> LayerSpectrum:
    """What was seen of a group, in units; where sites disagree, the one that needs most filters decides."""
    in_core = ranking.in_core
    count = int(kept[~in_core].sum())
    sites = [(site, max(map(threshold, site.layers))) for site in ranking.sites]
    decisive, limit = max(sites, key=lambda pair: pair[0].residual.needed(pair[1]))
    residuals = [(site.residual, limit) for site, limit in sites]
    if projection and bool(in_core.any()):
        residuals = [(analyze_residual(site.covariance, in_core, projection=False), limit) for site, limit in sites]
    return LayerSpectrum(
        threshold=round(limit, 5),
        core=int(in_core.sum()),
        reused=int(kept[in_core].sum()),
        new=count,
        wanted=wanted(ranking),
        rounded=max(0, count - wanted(replace(ranking, step=1))),
        cost=float(f"{float(ranking.costs[count]):.4g}"),
        cost_of_none=float(f"{float(ranking.costs[0]):.4g}"),
        lost=round(max(0.0, *(limit - site.residual.explained(count) for site, limit in sites)), 5),
        new_without_projection=max(residual.needed(limit) for residual, limit in residuals),
        first_core=round(explained_fraction(decisive.covariance, first), 5),
        kept=round(explained_fraction(decisive.covariance, kept), 5),
        **decisive.residual.summarize(),  # type: ignore[typeddict-item]
    )


_COUNTS = ("core", "reused", "new", "wanted", "rounded", "new_without_projection")


def _in_channels(summary: LayerSpectrum, channels_per_unit: int) -> LayerSpectrum:
    """A summary in units as one in channels, for a layer in which every unit has several."""
    scaled = {key: channels_per_unit * summary[key] for key in _COUNTS}  # type: ignore[literal-required]
    filters = [channels_per_unit * count for count in summary["filters"]]
    needed = {threshold: channels_per_unit * count for threshold, count in summary["needed"].items()}
    return summary | scaled | {"filters": filters, "needed": needed}  # type: ignore[return-value,operator]


def _merge(one: LayerSpectrum, two: LayerSpectrum) -> LayerSpectrum:
    """One summary of a layer whose channels form several groups: counts added up, the rest from the group that lost most."""
    added = {key: one[key] + two[key] for key in _COUNTS}  # type: ignore[literal-required]
    needed = {threshold: count + two["needed"][threshold] for threshold, count in one["needed"].items()}
    worst = max(one, two, key=lambda summary: (summary["lost"], summary["new"]))
    return worst | added | {"needed": needed}  # type: ignore[return-value,operator]
