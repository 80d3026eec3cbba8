"""What the paper says of SPACE: the method's options, and the results of its Table 1. Plain values, without torch."""

from __future__ import annotations

from dataclasses import dataclass

TARGETS = ("tolerance", "size", "variance")  # SPACE's options of which one decides how many filters a task gets
# SPACE's options as published, without the variance.
PUBLISHED = {
    "activations": "pre",
    "selection": "first",
    "reuse": "all",
    "freeze": "filters",
    "compensate": False,
    "shrinkage": False,
    "distill_below": 0,
    "samples": 1000,
}


@dataclass(frozen=True)
class PublishedResult:
    """The paper's result for one benchmark."""

    accuracy: float  # mean over tasks, in per cent
    size: float  # share of the network that all tasks use
    epochs: str  # per task, training and retraining (Table S2)


RESULTS = {
    "p-mnist": PublishedResult(96.82, 0.58, "60 to 75"),
    "split-cifar10": PublishedResult(92.60, 0.70, "95 to 145"),
    "split-cifar100": PublishedResult(72.53, 0.79, "200 to 250"),
    "8-datasets": PublishedResult(85.48, 0.93, "up to 250"),
}
