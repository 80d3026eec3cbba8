"""Which filters a task keeps: the core's, and as many new ones as its residual needs (algorithms 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...learning.analysis import Analysis, LayerSpectrum
from ...learning.core import Core
from ...structure.channels import Channels, Group, Place
from .moments import Moments
from .spectrum import Spectrum, analyze_residual, explained_fraction, pivot

_SAMPLES_PER_CHANNEL = 5  # with fewer, PCA takes chance for structure


@dataclass(frozen=True)
class Selection:
    """The units of a task's network, what was seen in each layer, and the layers that had too few samples."""

    units: Tensor  # (units,) booleans
    analysis: Analysis
    undersampled: tuple[str, ...]  # in words, such as "conv1 (90 samples for 64 channels)"


@dataclass(frozen=True)
class _Site:
    """What was seen of a group of channels at one place."""

    covariance: Tensor  # (units of the group, units of the group)
    samples: int
    threshold: float
    residual: Spectrum

    @property
    def needed(self) -> int:
        """New filters with which the threshold is reached here."""
        return self.residual.needed(self.threshold)


def select_filters(
    core: Core,
    moments: Mapping[Place, Moments],
    threshold: Callable[[str], float],
    *,
    activations: Literal["post", "pre"] = "post",
    projection: bool = True,
    order: Literal["pivoted", "first"] = "pivoted",
    tasks_left: int | None = None,
) -> Selection:
    """Choose the units of a task's network from the moments of its activations. A pure function: it changes nothing.

    `threshold(layer)` is the fraction of the residual's variance that core and new filters must explain. `order` says which
    of the free filters are taken. With `tasks_left`, this task included, each group leaves enough units for the later ones.
    """
    channels, committed = core.channels, core.committed_units
    units = committed.clone()
    first_task = core.tasks[0].units if core.tasks else units
    summaries: dict[str, LayerSpectrum] = {}
    minima: dict[str, dict[str, float]] = {"explained": {}, "core_explained": {}, "samples": {}}  # over sites, by layer
    undersampled = []
    for group in channels.groups:
        places = find_places(channels, group, activations)
        if not places:  # nothing to judge by
            units[group.units] = True
            continue
        in_core = committed[group.units]
        sites = [_analyze(place, local, group, moments[place], in_core, threshold, projection) for place, local in places]
        wanted = max(site.needed for site in sites)
        if not bool(in_core.any()):
            wanted = max(1, wanted)  # a layer needs at least one channel
        free = group.units[~in_core]
        count = wanted if tasks_left is None else min(wanted, allowance(len(free), tasks_left))
        chosen = pivot([site.residual for site in sites], count) if order == "pivoted" else range(count)
        units[free[list(chosen)]] = True

        summary = _summarize(sites, in_core, first_task[group.units], units[group.units], count, wanted, projection)
        values = {
            "explained": min(site.residual.explained(count) for site in sites),
            "core_explained": min(site.residual.core_explained for site in sites) if bool(in_core.any()) else 0.0,
            "samples": min(site.samples for site in sites),
        }
        for layer in group.layers:  # a layer may belong to several groups
            channels_per_unit = int(torch.isin(channels.layers[layer], group.units).sum()) // len(group.units)
            scaled = _in_channels(summary, channels_per_unit)
            summaries[layer] = _merge(summaries[layer], scaled) if layer in summaries else scaled
            for key, value in values.items():
                minima[key][layer] = min(value, minima[key].get(layer, value))
        if values["samples"] < _SAMPLES_PER_CHANNEL * len(group.units):
            undersampled.append(f"{', '.join(group.layers)} ({values['samples']} samples for {len(group.units)} channels)")
    analysis = Analysis(**minima, spectrum=summaries)  # type: ignore[arg-type]
    return Selection(units, analysis, tuple(undersampled))


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


def _analyze(
    place: Place,
    local: Tensor,
    group: Group,
    moments: Moments,
    in_core: Tensor,
    threshold: Callable[[str], float],
    projection: bool,
) -> _Site:
    covariance = moments.covariance[local][:, local]
    layers = [place.layer] if place.side == "output" else group.layers
    residual = analyze_residual(covariance, in_core, projection)
    return _Site(covariance, moments.count, max(threshold(layer) for layer in layers), residual)


def _summarize(
    sites: Sequence[_Site], in_core: Tensor, first: Tensor, kept: Tensor, count: int, wanted: int, projection: bool
) -> LayerSpectrum:
    """What was seen of a group, in units; where sites disagree, the one that needs most filters decides."""
    decisive = max(sites, key=lambda site: site.needed)
    residuals = [site.residual for site in sites]
    if projection and bool(in_core.any()):
        residuals = [analyze_residual(site.covariance, in_core, projection=False) for site in sites]
    return LayerSpectrum(
        threshold=decisive.threshold,
        core=int(in_core.sum()),
        new=count,
        wanted=wanted,
        lost=round(max(0.0, *(site.threshold - site.residual.explained(count) for site in sites)), 5),
        new_without_projection=max(residual.needed(site.threshold) for residual, site in zip(residuals, sites)),
        first_core=round(explained_fraction(decisive.covariance, first), 5),
        kept=round(explained_fraction(decisive.covariance, kept), 5),
        **decisive.residual.summarize(),  # type: ignore[typeddict-item]
    )


_COUNTS = ("core", "new", "wanted", "new_without_projection")


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
