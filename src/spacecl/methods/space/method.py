"""SPACE: structured compression and sharing of representational space (Saha, Garg, Ankit, Roy 2020)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...errors import ConfigError, FullError, TrainingError, warn_user
from ...learning.core import Core
from ...learning.freezing import make_freeze_hook
from ...learning.recipe import Recipe
from ...learning.record import TaskContext, told
from ...structure.channels import Channels, Group, Place
from ...structure.graph import matches
from ...structure.memory_format import set_memory_format
from ...validation import Rule, faults, flag, integer, number, one_of, show
from .compensation import compensated
from .moments import Moments, collect
from .spectrum import analyse, pivot, share

Variance = float | Mapping[str, float]

_SHARE = number(lambda v: 0 < v <= 1, "above 0 and at most 1")
_RULES: dict[str, Rule] = {
    "activations": one_of(("post", "pre")),
    "selection": one_of(("pivoted", "first")),
    "freeze": one_of(("subnet", "filters")),
    "on_full": one_of(("continue", "error", "grow")),
    "projection": flag(),
    "compensate": flag(),
    "samples": integer(2),
    "growth": number(lambda v: 1 < v <= 100, "above 1 and at most 100"),
    "offer": _SHARE,
    "budget": integer(1),
}
_OPTIONAL = ("samples", "budget")
_COUNTS = ("core", "new", "wanted", "new_without_projection")


@dataclass(frozen=True)
class SPACE:
    """Learn tasks in a network of fixed size without forgetting any, and give each a small network of its own.

    `variance` is the share of the residual's variance that the core and the new filters must explain: one number, or
    one per layer by dotted name or pattern, the first that matches. `task_variance` gives single tasks, by name, values
    of their own. More variance means more filters and, up to a point, more accuracy.

    >>> SPACE(variance={"conv1": 0.98, "*": 0.92}, task_variance={"birds": 0.95}).threshold("birds", "conv1")
    0.95
    """

    variance: Variance = 0.95
    task_variance: Mapping[str, Variance] = field(default_factory=dict)
    projection: bool = True  # subtract what the core explains before PCA; False is the paper's ablation
    activations: str = "post"  # analyse what the next layers read, or "pre": what a layer puts out (the paper)
    selection: str = "pivoted"  # keep the filters that explain most, or the "first" ones (the paper)
    freeze: str = "subnet"  # fix what committed tasks use, or whole "filters" with all their weights (the paper)
    compensate: bool = True  # give the readers of removed channels what the kept ones say of them
    offer: float = 1.0  # the share of a layer's free channels with which a task is trained
    samples: int | None = None  # training examples to analyse; default: at least 1,000, and ten per neuron
    on_full: str = "continue"  # when a layer has no free channel: learn with what is there, raise an "error", or "grow"
    budget: int | None = None  # for how many tasks in all the network must last; default: each task takes what it needs
    growth: float = 1.5  # by which factor every layer gets more channels when the network grows

    forgets: ClassVar[bool] = False
    needs_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.task_variance, Mapping):
            raise ConfigError(f"task_variance={show(self.task_variance)} must be a mapping from task names to variances.")
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        wrong = faults(given, {name: rule for name, rule in _RULES.items() if given[name] is not None or name not in _OPTIONAL})
        wrong += [f"task_variance has the key {show(key)}, not a task's name" for key in _not_text(self.task_variance)]
        for name, variance in self._variances():
            by_layer = variance if isinstance(variance, Mapping) else {"*": variance}
            wrong += [f"{name} has the key {show(key)}, not a layer's name or pattern" for key in _not_text(by_layer)]
            wrong += [fault for value in by_layer.values() for fault in faults({name: value}, {name: _SHARE})]
        if wrong:
            raise ConfigError(f"SPACE cannot be used like this: {'; '.join(wrong)}.")
        for name in ("growth", "offer"):
            object.__setattr__(self, name, float(given[name]))
        for name in _OPTIONAL:
            object.__setattr__(self, name, None if given[name] is None else int(given[name]))
        object.__setattr__(self, "variance", _plain(self.variance))  # numbers of any library, so that JSON can hold them
        object.__setattr__(self, "task_variance", {task: _plain(value) for task, value in self.task_variance.items()})

    def _variances(self) -> list[tuple[str, Variance]]:
        """All variances with the names that messages give them."""
        return [("variance", self.variance), *((f"task_variance[{show(t)}]", v) for t, v in self.task_variance.items())]

    @staticmethod
    def paper(variance: Variance = 0.99, **options: Any) -> SPACE:
        """The method as published: pre-activations, the first filters, whole filters frozen, 1,000 examples.

        >>> SPACE.paper(variance=0.995).activations
        'pre'
        """
        from ...data.benchmarks.published import PUBLISHED

        return SPACE(variance=variance, **(PUBLISHED | options))  # type: ignore[arg-type]

    def threshold(self, task: str, layer: str) -> float:
        """The variance that a task must reach in a layer."""
        variance = self.task_variance.get(task, self.variance)
        if not isinstance(variance, Mapping):
            return variance
        return next(value for pattern, value in variance.items() if matches(layer, [pattern]))

    def check(self, channels: Channels) -> None:
        """Every pattern matches a layer, and every layer that can be narrowed has a threshold."""
        layers = [layer for group in channels.groups for layer in group.layers]
        wrong = []
        for name, variance in self._variances():
            if isinstance(variance, Mapping):
                lost = [p for p in variance if not any(matches(layer, [p]) for layer in channels.layers)]
                bare = [layer for layer in layers if not matches(layer, variance)]
                wrong += [f'{name}: the pattern "{pattern}" matches no layer' for pattern in lost]
                wrong += [f'{name}: no pattern matches {", ".join(bare)}; add "*" for the rest'] if bare else []
        if wrong:
            raise ConfigError(f"{'; '.join(wrong)}. The layers are: {', '.join(channels.layers)}.")

    def plan(self, recipe: Recipe, number: int) -> dict[str, int]:
        return {"train": recipe.epochs, "retrain": recipe.for_retraining().epochs}

    def learn(self, core: Core, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        """Train with the core held, measure what is new, keep that much, retrain, commit (algorithm 1)."""
        self._check_budget(core, job)
        full = core.channels.full_layers(core.committed)
        core = self._make_room(core, job, full)
        channels, start = core.channels, core.start(job.classes)
        offered = self._offered(core)
        module = core.blueprint.build(channels.gather(start, offered))
        held = channels.gather(core.held(self.freeze), offered)
        history = job.trainer.fit(module, job.train, job.valid, phase="train", after_step=make_freeze_hook(module, held))
        if not bool(offered.all()):  # channels that were not offered are dead
            dead = {name: tensor if name in channels.private else torch.zeros_like(tensor) for name, tensor in start.items()}
            module = core.blueprint.build(channels.scatter(core.blueprint.extract_tensors(module), offered, dead))
        core, found = self.compress(core, module, job)
        found |= told([*history, *found["history"]], analyse=found["seconds"]["analyse"])
        grown = bool(full) and self.on_full == "grow"
        return core, found | {"full": tuple(full), "grown": grown}

    def compress(self, core: Core, module: nn.Module, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        """Analyse a trained full-width network, narrow it in one shot, retrain it and commit what comes out."""
        started = time.perf_counter()
        channels, held = core.channels, core.held(self.freeze)
        moments = self._measure(channels, module, job)
        keep, found = self._select(core, moments, job)
        tensors = core.blueprint.extract_tensors(module)
        if self.compensate:
            tensors = compensated(channels, tensors, moments, keep, core.committed, held, core.blueprint.frozen)
        small = core.blueprint.build(channels.gather(tensors, keep))
        analysed = time.perf_counter() - started
        narrow = channels.gather(held, keep)
        recipe = job.trainer.recipe.for_retraining()
        history = job.trainer.fit(
            small, job.train, job.valid, phase="retrain", recipe=recipe, after_step=make_freeze_hook(small, narrow)
        )
        done = core.commit(core.blueprint.extract_tensors(small), keep)
        return done, found | told(history, analyse=analysed)

    def _offered(self, core: Core) -> Tensor:
        """The units that a task is trained with: the core's, and the first so many of each group's free ones."""
        offered = core.committed.clone()
        for group in core.channels.groups:
            free = group.units[~offered[group.units]]
            offered[free[: math.ceil(self.offer * len(free))]] = True
        return offered

    def _make_room(self, core: Core, job: TaskContext, full: list[str]) -> Core:
        if not full:
            return core
        layers = ", ".join(full)
        if self.on_full == "error":
            raise FullError(
                f"Task {job.name!r} finds no free channel in: {layers}. Nothing was changed. "
                'Use a wider network, a lower variance, or on_full="grow" or "continue".'
            )
        if self.on_full == "grow":
            return core.grow(self.growth)
        warn_user(
            f"Task {job.name!r} finds no free channel in: {layers}. It learns with the core's filters there. "
            'on_full="grow" would add channels.'
        )
        return core

    def _check_budget(self, core: Core, job: TaskContext) -> None:
        if self.budget is not None and len(core.own) >= self.budget:
            warn_user(
                f"Task {job.name!r} is number {len(core.own) + 1}, but the budget is for {self.budget} tasks. "
                "It learns as if it were the last, with all free channels for itself."
            )

    def _watched(self, channels: Channels, group: Group) -> list[tuple[Place, Tensor]]:
        """Where a group is measured; one that no layer reads, or puts out, as a whole is watched on the other side."""
        sides = ("input", "output") if self.activations == "post" else ("output", "input")
        return [*channels.places(group, sides[0])] or [*channels.places(group, sides[1])]

    def _measure(self, channels: Channels, module: nn.Module, job: TaskContext) -> dict[Place, Moments]:
        wanted = [place for group in channels.groups for place, _ in self._watched(channels, group)]
        places = list(dict.fromkeys([*wanted, *(channels.readings if self.compensate else ())]))
        set_memory_format(module, job.trainer.channels_last)
        moments = collect(module, places, job.examples(self.samples or _enough(places)), job.trainer.fabric)
        broken = [place.layer for place, found in moments.items() if not bool(torch.isfinite(found.covariance).all())]
        if broken:
            raise TrainingError(
                f"Task {job.name!r}: activations overflow at {', '.join(dict.fromkeys(broken))}. "
                "Nothing was committed; the learner is as it was. "
                f"Lower the learning rate (lr={job.trainer.recipe.lr}) or check the scale of the inputs."
            )
        return moments

    def _select(self, core: Core, moments: Mapping[Place, Moments], job: TaskContext) -> tuple[Tensor, dict[str, Any]]:
        """The units of the task's network, and for every layer what was found there."""
        channels, keep = core.channels, core.committed.clone()
        found: dict[str, dict[str, Any]] = {"explained": {}, "core_ratio": {}, "samples": {}, "spectrum": {}}
        few = []
        for group in channels.groups:
            watched = self._watched(channels, group)
            if not watched:  # nothing to measure by
                keep[group.units] = True
                continue
            held = core.committed[group.units]
            covariances = [moments[place].covariance[local][:, local] for place, local in watched]
            spectra, needs, counts, thresholds = [], [], [], []
            for (place, _), covariance in zip(watched, covariances):
                spectra.append(analyse(covariance, held, self.projection))
                layers = [place.layer] if place.side == "output" else group.layers
                thresholds.append(max(self.threshold(job.name, layer) for layer in layers))
                needs.append(spectra[-1].needed(thresholds[-1]))
                counts.append(moments[place].count)
            residual = group.units[~held]
            wanted = max(needs)
            if not bool(held.any()):
                wanted = max(1, wanted)  # a layer without any channel is no layer
            count = wanted
            if self.budget is not None:
                count = min(wanted, allowance(len(residual), max(1, self.budget - len(core.own))))
            chosen = pivot(spectra, count) if self.selection == "pivoted" else range(count)
            keep[residual[list(chosen)]] = True
            most = needs.index(max(needs))  # the place that decides
            first = core.keep(0) if core.own else keep
            other = self.projection and bool(held.any())
            plain = [analyse(covariance, held, projection=False) for covariance in covariances] if other else spectra
            counted = {
                "core": int(held.sum()),
                "new": count,
                "wanted": wanted,
                "new_without_projection": max(s.needed(t) for s, t in zip(plain, thresholds)),
            }
            told = {
                "threshold": thresholds[most],
                "lost": round(max(0.0, *(t - s.explained(count) for s, t in zip(spectra, thresholds))), 5),
                "first_core": round(share(covariances[most], first[group.units]), 5),
                "kept": round(share(covariances[most], keep[group.units]), 5),
                **spectra[most].told(),
            }
            for layer in group.layers:
                lanes = int(torch.isin(channels.layers[layer], group.units).sum()) // len(group.units)  # channels of a unit
                seen = _in_channels(counted | told, lanes)
                if layer in found["spectrum"]:
                    seen = _together(found["spectrum"][layer], seen)
                found["spectrum"][layer] = seen
                values = {
                    "explained": min(spectrum.explained(count) for spectrum in spectra),
                    "core_ratio": min(spectrum.core_ratio for spectrum in spectra) if bool(held.any()) else 0.0,
                    "samples": min(counts),
                }
                for key, value in values.items():  # a layer may belong to several groups
                    found[key][layer] = min(value, found[key].get(layer, value))
            if min(counts) < 5 * len(group.units):
                few.append(f"{', '.join(group.layers)} ({min(counts)} samples for {len(group.units)} channels)")
        if few:
            warn_user(
                f"Task {job.name!r}: too few samples to tell new channels from chance in {'; '.join(few)}. "
                "Give more training data or raise samples=..."
            )
        return job.trainer.fabric.broadcast(keep), found


def allowance(free: int, tasks: int) -> int:
    """How many of a group's free units a task may take when so many tasks, this one included, must find one.

    If all take what they may, the shares fall evenly to the last task's, for the core serves later tasks, too: of 55 units
    ten tasks get 10, 9, 8 and so on to 1.

    >>> allowance(free=55, tasks=10), allowance(free=45, tasks=9), allowance(free=3, tasks=10)
    (10, 9, 1)
    """
    return min(free, max(1, min(2 * free // (tasks + 1), free - (tasks - 1))))


def _in_channels(seen: dict[str, Any], lanes: int) -> dict[str, Any]:
    """What was seen of units, for a layer of which every unit has so many channels."""
    counts = {key: lanes * seen[key] for key in _COUNTS}
    lists = {"filters": [lanes * n for n in seen["filters"]], "needed": {k: lanes * n for k, n in seen["needed"].items()}}
    return seen | counts | lists


def _together(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """What was seen of a layer whose channels form several groups: counts added up, the rest of the one that lost most."""
    counts = {key: one[key] + two[key] for key in _COUNTS}
    needed = {key: one["needed"][key] + two["needed"][key] for key in one["needed"]}
    return max(one, two, key=lambda seen: (seen["lost"], seen["new"])) | counts | {"needed": needed}


def _not_text(keys: Iterable[Any]) -> list[Any]:
    return [key for key in keys if not isinstance(key, str)]


def _plain(variance: Variance) -> Variance:
    return {layer: float(v) for layer, v in variance.items()} if isinstance(variance, Mapping) else float(variance)


def _enough(places: list[Place]) -> int:
    """Examples for at least ten samples per channel: where a place has one sample per example, channels decide."""
    return max(1000, 10 * max((len(place.units) for place in places), default=0))
