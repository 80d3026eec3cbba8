"""SPACE: structured compression and sharing of representational space (Saha, Garg, Ankit, Roy 2020)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PlainValidator, TypeAdapter, ValidationError
from torch import Tensor, nn

from ...data.benchmarks.published import PUBLISHED, TARGETS
from ...data.targets import TARGET_KINDS, TargetKind
from ...errors import ConfigError, FullError, renamed, warn_user
from ...learning.analysis import Target
from ...learning.checkpoints import Epoch
from ...learning.context import TaskContext
from ...learning.core import Core
from ...learning.distillation import make_matching_loss
from ...learning.growth import commit_into, grow, widen
from ...learning.method import Learned, Method
from ...learning.recipe import Recipe
from ...options import (
    Description,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    describe_type,
    option,
    options,
    to_plain,
)
from ...structure.channels import Channels
from ...structure.graph import matches
from ...validation import show
from .search import Search
from .selection import find_places


def _check_by_layer(number: TypeAdapter[Any], kind: Any, value: Any) -> Any:
    """One number, or a mapping from layer names or patterns to numbers, as plain values."""
    by_layer = value if isinstance(value, Mapping) else {"": value}
    plain: dict[str, Any] = {}
    for layer, entry in by_layer.items():
        if not isinstance(layer, str):
            raise ValueError(f" has the key {show(layer)}, which is not a layer's name or pattern")
        try:
            plain[layer] = number.validate_python(to_plain(entry), strict=True)
        except ValidationError:
            where = f"[{layer!r}]" if layer else ""
            raise ValueError(f"{where}={show(entry)} must be {describe_type(kind)}") from None
    return plain if isinstance(value, Mapping) else plain[""]


def _check_task_variance(value: Any) -> dict[str, float | dict[str, float]]:
    if not isinstance(value, Mapping):
        raise ValueError(f"={show(value)} must be a mapping from task names to variances")
    plain = {}
    for task, variance in value.items():
        if not isinstance(task, str):
            raise ValueError(f" has the key {show(task)}, which is not a task's name")
        try:
            plain[task] = _check_variance(variance)
        except ValueError as error:
            raise ValueError(f"[{show(task)}]{error}") from None
    return plain


_check_variance = partial(_check_by_layer, TypeAdapter(PositiveFraction), PositiveFraction)
_check_multiple = partial(_check_by_layer, TypeAdapter(PositiveInt), PositiveInt)
_VALUES = "a number above 0 and at most 1, or one for every layer, by name or pattern"
_MULTIPLES = "a whole number, at least 1, or one for every layer, by name or pattern"
Variance = float | Mapping[str, float]
Multiple = int | Mapping[str, int]
CheckedMultiple = Annotated[Multiple, PlainValidator(_check_multiple), Description(_MULTIPLES)]
CheckedVariance = Annotated[Variance, PlainValidator(_check_variance), Description(_VALUES)]
TaskVariance = Annotated[
    Mapping[str, Variance], PlainValidator(_check_task_variance), Description("a mapping from task names to variances")
]


@options
class SPACE(Method):
    """Learn tasks in a network of fixed size without forgetting any, and give each a small network of its own.

    After each task, the activations show which new filters it needs beyond what the frozen core of earlier tasks explains.
    The rest are pruned in one shot; the network is retrained once and frozen. How many filters a task gets follows from one of
    `tolerance`, `size` and `variance`. A lower tolerance, a larger size or more variance mean more filters and, up to a point,
    more accuracy.

    >>> SPACE().tolerance is None, SPACE(size=0.5, budget=10).size
    (True, 0.5)
    >>> SPACE(variance={"conv1": 0.98, "*": 0.92}, task_variance={"birds": 0.95}).threshold("birds", "conv1")
    0.95
    """

    tolerance: PositiveFloat | None = option(
        default=None,
        help="share of the information in the full network's answers that the pruned one may lose before it is retrained, "
        "measured on held-out examples; None: 0.02, unless size or variance is given",
    )
    size: PositiveFraction | None = option(
        default=None, help="fraction of the network that all tasks of the budget may use together; instead of a tolerance"
    )
    variance: CheckedVariance | None = option(
        default=None,
        help="fraction of the free channels' variance that core and new filters must explain (the paper), instead of a "
        "tolerance; of patterns, the first counts",
    )
    task_variance: TaskVariance = option(default={}, help="variance of single tasks, by their names")
    projection: bool = option(default=True, help="subtract what the core explains before PCA; False is the paper's ablation")
    activations: Literal["post", "pre"] = option(
        default="post", help="analyze what the next layers read, or pre-activations (the paper)"
    )
    selection: Literal["effect", "pivoted", "first"] = option(
        default="effect",
        help="keep the filters with the largest effect on the loss, those that explain most variance, or the first ones (the "
        "paper)",
    )
    reuse: Literal["needed", "all"] = option(
        default="needed", help="filters of the core that a task's network has: those that it needs, or all of them (the paper)"
    )
    freeze: Literal["subnet", "filters"] = option(
        default="subnet", help="freeze the weights that committed tasks use, or all weights of their filters (the paper)"
    )
    compensate: bool = option(
        default=True, help="let the kept channels stand in for the removed ones, by linear regression, and re-estimate norms"
    )
    shrinkage: bool = option(
        default=True, help="shrink covariances towards their diagonals, the more the fewer independent samples there are"
    )
    distill_below: NonNegativeInt = option(
        default=5000,
        help="number of training examples below which the pruned network is retrained to answer as the full one does, on "
        "mixtures of examples, instead of on labels; 0: never (the paper)",
    )
    trainable_fraction: PositiveFraction = option(
        default=1.0, help="fraction of each layer's free channels that a task is trained with"
    )
    samples: Annotated[int, Field(ge=2)] | None = option(
        default=None, help="training examples to analyze; None: at least 1,000, and ten for every channel of the widest layer"
    )
    on_full: Literal["continue", "error", "grow"] = option(
        default="continue",
        help="when a layer has no free channel: learn with the core's filters, raise an error, or grow the network",
    )
    budget: PositiveInt | None = option(
        default=None,
        help="number of tasks that the network must have capacity for; None: with a tolerance, each task takes at most a fifth "
        "of what is free of the network; with variance, what it needs",
    )
    growth: Annotated[float, Field(gt=1, le=100)] = option(
        default=1.5, help="factor by which every layer grows with on_full=grow"
    )

    multiple: CheckedMultiple = option(
        default=1,
        help="round the width of each layer of a task's network up to a multiple of this, where free filters and size "
        "allow it; of patterns, the first counts, and other layers are not rounded",
    )

    target_kinds: ClassVar[Sequence[TargetKind]] = TARGET_KINDS
    former_values: ClassVar[Mapping[str, Any]] = {
        "tolerance": None,
        "size": None,
        "reuse": "all",
        "shrinkage": False,
        "distill_below": 0,
    }
    renamed_options: ClassVar[Mapping[str, str]] = {"offer": "trainable_fraction"}
    offer = renamed("offer", "trainable_fraction")

    @staticmethod
    def find_conflicts(values: Mapping[str, Any]) -> list[str]:
        given = [f"{name}={show(values[name])}" for name in TARGETS if values[name] is not None]
        return [f"{' and '.join(given)} exclude each other; give one of them"] if len(given) > 1 else []

    @staticmethod
    def paper(variance: Variance = 0.99, **options: Any) -> SPACE:
        """The method as published: pre-activations, the first filters, whole filters frozen, 1,000 examples.

        >>> SPACE.paper(variance=0.995).activations
        'pre'
        """
        return SPACE(variance=variance, **(PUBLISHED | options))  # type: ignore[arg-type]

    def threshold(self, task: str, layer: str) -> float:
        """The fraction of variance that a task must reach in a layer."""
        variance = self._variance_of(task)
        if not isinstance(variance, Mapping):
            assert variance is not None
            return variance
        return next(value for pattern, value in variance.items() if matches(layer, [pattern]))

    def multiple_of(self, layer: str) -> int:
        """What the width of a layer should be a multiple of.

        >>> SPACE(multiple={"conv*": 8}).multiple_of("conv1"), SPACE(multiple={"conv*": 8}).multiple_of("hidden")
        (8, 1)
        """
        if not isinstance(self.multiple, Mapping):
            return self.multiple
        return next((value for pattern, value in self.multiple.items() if matches(layer, [pattern])), 1)

    def _variance_of(self, task: str) -> Variance | None:
        return self.task_variance.get(task, self.variance)

    def check(self, channels: Channels) -> None:
        """Every pattern must match a layer, and every layer that can be pruned must have a threshold, if any has."""
        layers = [layer for group in channels.groups for layer in group.layers]
        problems = []
        by_task = [(f"task_variance[{show(task)}]", variance) for task, variance in self.task_variance.items()]
        for name, given in [("variance", self.variance), *by_task, ("multiple", self.multiple)]:
            if isinstance(given, Mapping):
                unmatched = [p for p in given if not any(matches(layer, [p]) for layer in channels.layers)]
                missing = [layer for layer in layers if name != "multiple" and not matches(layer, given)]
                problems += [f'{name}: the pattern "{pattern}" matches no layer' for pattern in unmatched]
                problems += [f'{name}: no pattern matches {", ".join(missing)}; add "*" for the rest'] if missing else []
        if problems:
            raise ConfigError(f"{'; '.join(problems)}. The layers are: {', '.join(channels.layers)}.")
        if self.size is not None and self.budget is None:
            raise ConfigError(f"size={self.size} is for a number of tasks: give it with budget=..., such as budget=10.")

    def plan(self, recipe: Recipe, tasks_before: int) -> dict[str, int]:
        return {"train": recipe.epochs, "retrain": recipe.for_retraining().epochs}

    def learn(self, core: Core, task: TaskContext, trained: nn.Module | None = None) -> Learned:
        """Learn a task: algorithm 1 of the paper. A full-width network that is `trained` already is not trained again."""
        full = core.channels.full_layers(core.committed_units)
        core = self._ensure_capacity(core, task, full)
        wide = self._widen(core)
        network, history = self._train(wide, task) if trained is None else (trained, [])
        started = time.perf_counter()
        search = Search(self, wide, task, network, home=core)
        choice = search.choose()
        small = search.narrow(choice.units)
        held_out = search.held_out
        predicted = held_out.compare(small)
        del search  # and its moments, which take more memory than the network, before the network is trained again
        seconds = {"analyse": time.perf_counter() - started}
        history += self._retrain(wide, small, choice.units, task, network)
        reached = held_out.compare(small)
        core = commit_into(core, wide, core.blueprint.extract_tensors(small), choice.units)
        target = Target(
            asked=choice.asked,
            level=choice.level,
            examples=held_out.examples,
            predicted=predicted,
            reached=reached,
        )
        grown = bool(full) and self.on_full == "grow"
        return Learned(core, history, replace(choice.analysis, full=tuple(full), grown=grown, target=target), seconds)

    def _ensure_capacity(self, core: Core, task: TaskContext, full: list[str]) -> Core:
        """Grow the network, warn or raise FullError where layers have no free channel left."""
        if self.budget is not None and len(core.tasks) >= self.budget:
            warn_user(
                f"Task {task.name!r} is number {len(core.tasks) + 1}, but the budget is for {self.budget} tasks. "
                "It learns as if it were the last one, with all free channels for itself."
            )
        if not full:
            return core
        layers = ", ".join(full)
        if self.on_full == "error":
            raise FullError(
                f"Task {task.name!r} finds no free channel in: {layers}. Nothing was changed. "
                'Use a wider network, a higher tolerance, or on_full="grow" or "continue".'
            )
        if self.on_full == "grow":
            return grow(core, self.growth)
        warn_user(
            f"Task {task.name!r} finds no free channel in: {layers}. It learns with the core's filters there. "
            'on_full="grow" would add channels.'
        )
        return core

    def _widen(self, core: Core) -> Core:
        """With a pretrained model, the core in a wider network, in which later tasks, too, begin with the whole model.

        Free channels alone are not enough: a pretrained network without some of its channels is hardly better than a new one.
        What is kept of the model is fitted into the free channels, and what is not is estimated from the rest by
        compensation, without which nothing is gained. Groups that cannot be judged would not fit.
        """
        if not core.tasks or not core.blueprint.pretrained or not self.compensate:
            return core
        channels = core.channels
        return widen(core) if all(find_places(channels, group, self.activations) for group in channels.groups) else core

    def _train(self, core: Core, task: TaskContext) -> tuple[nn.Module, list[Epoch]]:
        """Train a network with the core's channels and the free ones, the core frozen; returns it at full width."""
        channels, initial = core.channels, core.initial_tensors(task.classes)
        units = self._trainable_units(core)
        module = core.blueprint.build(channels.gather(initial, units))
        all_trained = bool(units.all())
        dead = {} if all_trained else {n: t if n in channels.private else torch.zeros_like(t) for n, t in initial.items()}
        del initial  # of the size of the network, like much else while it is trained
        frozen = channels.gather(core.frozen_positions(self.freeze), units)
        history = task.trainer.fit(module, task.train, task.valid, phase="train", freeze=frozen)
        if not all_trained:  # the other channels are dead
            module = core.blueprint.build(channels.scatter(core.blueprint.extract_tensors(module), units, dead))
        return module, history

    def _trainable_units(self, core: Core) -> Tensor:
        """The units that a task is trained with: the core's, and the first of each group's free ones."""
        units = core.committed_units.clone()
        for group in core.channels.groups:
            free = group.units[~units[group.units]]
            units[free[: math.ceil(self.trainable_fraction * len(free))]] = True
        return units

    def _retrain(self, core: Core, network: nn.Module, units: Tensor, task: TaskContext, full: nn.Module) -> list[Epoch]:
        """Train the narrowed network once more, the core frozen. From few examples, it learns what the full one answers."""
        trainer, recipe = task.trainer, task.trainer.recipe.for_retraining()
        frozen = core.channels.gather(core.frozen_positions(self.freeze), units)
        make_loss = make_matching_loss(full, trainer) if len(task.train) < self.distill_below else None
        return trainer.fit(network, task.train, task.valid, phase="retrain", recipe=recipe, freeze=frozen, make_loss=make_loss)
