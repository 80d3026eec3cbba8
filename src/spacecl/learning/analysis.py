"""What a method's analysis of a trained network saw in each layer, as records and reports show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AliasChoices, Field, with_config
from typing_extensions import NotRequired, TypedDict


@with_config(extra="allow")
class LayerSpectrum(TypedDict, total=False):
    """What PCA saw in one layer: numbers of filters, and shares of variance. Older records lack some of these."""

    threshold: float  # share of the residual's variance that the task had to reach
    core: int  # filters that earlier tasks had committed
    reused: int  # those of them that this task's network has
    new: int  # filters that this task added
    wanted: int  # filters that the target asked for; more than `new` where a budget allowed fewer
    rounded: int  # of the new filters, those that only make the width a multiple of what the user asked for
    cost: float  # what leaving out the other filters costs: by effect, the rise of the loss; otherwise, a share of variance
    cost_of_none: float  # what leaving out all new filters would cost
    lost: float  # share of variance by which a budget misses the threshold
    new_without_projection: int  # filters that the threshold would ask for without projection-subtraction
    first_core: float  # share of the layer's variance that the first task's filters explain
    kept: float  # share of the layer's variance that the task's filters explain
    filters: list[int]  # numbers of new filters, and ...
    explained: list[float]  # ... the share of the residual's variance that core and so many new filters explain
    needed: dict[str, int]  # by threshold, the number of new filters that it would ask for


class Comparison(TypedDict):
    """A network beside the one it was made from, on the same examples."""

    lost: float  # the divergence as a share of what the other's answers tell apart
    divergence: float  # mean Kullback-Leibler divergence of its answers from the other's, in nats
    score: Annotated[float, Field(validation_alias=AliasChoices("score", "accuracy"))]  # by the task's metric
    full_score: Annotated[float, Field(validation_alias=AliasChoices("full_score", "full_accuracy"))]  # of the other
    accuracy: NotRequired[float]  # the same, if the metric is accuracy
    full_accuracy: NotRequired[float]


class Target(TypedDict):
    """What a task's network was to reach, and what it did. Older records have none."""

    asked: dict[str, float]  # such as {"tolerance": 0.02}, or {"size": 0.5, "budget": 10, "so_far": 0.095}
    level: float | None  # the price of a parameter, in the units of `LayerSpectrum.cost`; None if the user set thresholds
    examples: int  # held-out examples that the networks were compared on
    predicted: Comparison  # of the narrowed network before retraining with the full one
    reached: Comparison  # after retraining


@dataclass(frozen=True)
class Analysis:
    """What an analysis saw, by layer, and what became of the network's capacity."""

    explained: Mapping[str, float] = field(default_factory=dict)  # share of the residual's variance, by core and new filters
    core_explained: Mapping[str, float] = field(default_factory=dict)  # share of it by the core alone
    samples: Mapping[str, int] = field(default_factory=dict)  # rows that the analysis of each layer is based on
    spectrum: Mapping[str, LayerSpectrum] = field(default_factory=dict)
    full: tuple[str, ...] = ()  # layers that had no free channel left when the task began
    grown: bool = False  # whether the network was made larger for this task
    target: Target | None = None
