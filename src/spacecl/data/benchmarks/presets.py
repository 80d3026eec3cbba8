"""The benchmarks, each with the paper's settings, with faster and with better ones. Plain values, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .published import PUBLISHED as PUBLISHED

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """How to train on a benchmark."""

    train: Values  # options of `Recipe`
    later: tuple[Values, ...] = ()  # other options of `Recipe` for later tasks; "from" is the number of the first, from 1
    options: Mapping[str, Values] = field(default_factory=dict)  # of each method, by its name


@dataclass(frozen=True)
class Benchmark:
    """A stream of tasks: the datasets it needs, the number of its tasks, its network, and how to train."""

    title: str
    kind: str  # "permuted", "split" or "datasets"; "own" for users' data
    datasets: tuple[str, ...]
    tasks: int
    model: str
    recipes: Mapping[str, Preset]  # "paper" and "fast"; "best" where it is more than "fast"

    def find_preset(self, recipe: str) -> Preset:
        """The preset of a recipe. That of "auto" trains as the data ask for, with the options that "fast" has for methods.

        >>> BENCHMARKS["p-mnist"].find_preset("auto").train
        {}
        """
        fast = self.recipes["fast"]
        return self.recipes.get(recipe, Preset({}, options=fast.options) if recipe == "auto" else fast)


def _options(
    space: Values,
    prune: float,
    compressibility: float,
    density: float,
    ewc: float = 100,
    lwf: float = 1,
    rho: float = -3,
    published: bool = False,
) -> dict[str, Values]:
    """Options of the methods: SPACE's target, and others from section S2.4 or tuned on validation data. WSN's are not tuned."""
    return {
        "space": {**space, **(PUBLISHED if published else {})},
        "packnet": {"prune": prune},
        "hat": {"compressibility": compressibility},
        "wsn": {"density": density},
        "ewc": {"strength": ewc},
        "ucb": {} if published else {"samples": 2, "rho": rho},  # two samples take a fifth of the time of ten
        "lwf": {"strength": lwf},
    }


# Table S2 and section S2.2. Every task begins with a new optimiser; dropout is part of the network.
_SGD = {"optimizer": "sgd", "momentum": 0.9, "batch_size": 128, "schedule": "steps"}
_PAPER_MLP = Preset(
    {**_SGD, "epochs": 15, "lr": 0.01, "milestones": [6, 13]}
    | {"retrain_epochs": 45, "retrain_lr": 0.001, "retrain_milestones": [38]},
    ({"from": 8, "retrain_epochs": 60, "retrain_milestones": [51]},),
    _options({"variance": {"hidden1": 0.999, "*": 0.995}}, 0.91, 0.5, 0.1, published=True),
)
_PAPER_CIFAR10 = Preset(
    {**_SGD, "epochs": 40, "lr": 0.01, "milestones": [25, 35]}
    | {"retrain_epochs": 55, "retrain_lr": 0.01, "retrain_milestones": [11, 49]},
    ({"from": 3, "epochs": 60, "lr": 0.001, "milestones": [54], "retrain_epochs": 85, "retrain_milestones": [8, 76]},),
    _options({"variance": {"conv1": 0.995, "*": 0.95}}, 0.78, 0.05, 0.3, published=True),
)
_PAPER_CIFAR100 = Preset(
    {**_SGD, "epochs": 80, "lr": 0.01, "milestones": [25, 65]}
    | {"retrain_epochs": 120, "retrain_lr": 0.01, "retrain_milestones": [42, 108]},
    ({"from": 3, "epochs": 100, "lr": 0.001, "milestones": [90], "retrain_epochs": 150, "retrain_milestones": [52, 135]},),
    _options({"variance": {"conv1": 0.999, "*": 0.99}}, 0.85, 0.1, 0.3, published=True),
)
_PAPER_8 = Preset(
    {**_SGD, "batch_size": 64, "epochs": 150, "retrain_epochs": 100, "lr": 0.01}
    | {"schedule": "plateau", "decay": 3.0, "patience": 5, "stop_lr": 1e-4},
    options=_options(
        {"variance": {"conv1": 0.995, "conv2_x": 0.95, "conv3_x": 0.93, "conv4_x": 0.92, "conv5_x": 0.91}},
        0.75,
        0.25,
        0.3,
        1000,
        published=True,
    ),
)

# The fast recipes: few epochs with a one-cycle schedule, the same for every method except for its `options`.
_FAST_MLP = Preset(
    {"optimizer": "adamw", "lr": 1e-3, "batch_size": 128, "epochs": 5, "retrain_epochs": 10, "schedule": "one-cycle"},
    options=_options({"size": 0.35}, 0.91, 0.5, 0.1, lwf=10),
)
_FAST_DIGITS = Preset({"epochs": 30, "retrain_epochs": 15}, options=_options({"size": 0.35}, 0.8, 0.5, 0.3, lwf=10))
_FAST_CNN = {"optimizer": "sgd", "lr": 0.05, "weight_decay": 5e-4, "batch_size": 64, "schedule": "one-cycle"}
_FAST_CIFAR10 = Preset(
    {**_FAST_CNN, "epochs": 6, "augment": "flip-shift"}
    | {"retrain_epochs": 14, "retrain_lr": 0.03, "retrain_schedule": "cosine"},
    options=_options({"size": 0.35}, 0.78, 0.05, 0.3, ewc=10, rho=-5),
)
_FAST_CIFAR100 = Preset(  # later tasks need fewer epochs: they begin with the filters of the earlier ones
    {**_FAST_CNN, "epochs": 10, "retrain_epochs": 14, "augment": "flip-shift"},
    ({"from": 3, "epochs": 6, "retrain_epochs": 9, "retrain_lr": 0.025},),
    _options({"size": 0.5, "distill_below": 0}, 0.85, 0.1, 0.3, ewc=10, rho=-5),
)
_FAST_8 = Preset(
    {**_FAST_CNN, "epochs": 8, "retrain_epochs": 8},
    options=_options({"size": 0.5}, 0.75, 0.25, 0.3, ewc=10, rho=-5),
)

# The best recipes: within an hour on two cores, most of it on the narrowed network, where epochs are cheap.
_BEST_MLP = Preset(
    {**_FAST_MLP.train, "lr": 2e-3, "weight_decay": 0.05, "epochs": 8, "retrain_epochs": 40, "augment": "mask"},
    options=_FAST_MLP.options,
)
_BEST_CIFAR10 = Preset({**_FAST_CIFAR10.train, "epochs": 24, "retrain_epochs": 72}, options=_FAST_CIFAR10.options)
_BEST_CIFAR100 = Preset(  # half of the free filters are enough to choose from, and take a third of the time
    {**_FAST_CNN, "epochs": 6, "augment": "flip-shift", "keep": "average"}
    | {"retrain_epochs": 64, "retrain_lr": 0.03, "retrain_schedule": "cosine"},
    options=_options({"size": 0.5, "trainable_fraction": 0.5, "distill_below": 0}, 0.85, 0.1, 0.3, ewc=10, rho=-5),
)

# Thresholds for activations after the nonlinearity, by network, for ablations in which everything has a variance.
POST_VARIANCE: Mapping[str, Values] = {
    "mlp": {"*": 0.92},
    "mlp-small": {"*": 0.97},
    "cnn": {"conv1": 0.93, "*": 0.79},
    "cnn-wide": {"conv1": 0.98, "*": 0.95},
    "resnet18": {"conv1": 0.97, "*": 0.9},
}

BENCHMARKS = {
    "p-mnist": Benchmark(
        "MNIST with another permutation of the pixels in each task",
        "permuted",
        ("mnist",),
        10,
        "mlp",
        {"paper": _PAPER_MLP, "fast": _FAST_MLP, "best": _BEST_MLP},
    ),
    "split-cifar10": Benchmark(
        "CIFAR-10, two classes per task",
        "split",
        ("cifar10",),
        5,
        "cnn",
        {"paper": _PAPER_CIFAR10, "fast": _FAST_CIFAR10, "best": _BEST_CIFAR10},
    ),
    "split-cifar100": Benchmark(
        "CIFAR-100, ten classes per task",
        "split",
        ("cifar100",),
        10,
        "cnn-wide",
        {"paper": _PAPER_CIFAR100, "fast": _FAST_CIFAR100, "best": _BEST_CIFAR100},
    ),
    "8-datasets": Benchmark(
        "eight datasets, one per task",
        "datasets",
        ("cifar10", "cifar100", "facescrub", "mnist", "svhn", "fashion-mnist", "gtsrb", "notmnist"),  # as in Table S1
        8,
        "resnet18",
        {"paper": _PAPER_8, "fast": _FAST_8},
    ),
    "p-fashion": Benchmark(
        "Fashion-MNIST with another permutation of the pixels in each task",
        "permuted",
        ("fashion-mnist",),
        10,
        "mlp",
        {"paper": _PAPER_MLP, "fast": _FAST_MLP},
    ),
    "permuted-digits": Benchmark(
        "scikit-learn's 8 x 8 digits with another permutation of the pixels in each task; no download",
        "permuted",
        (),
        5,
        "mlp-small",
        {"paper": _PAPER_MLP, "fast": _FAST_DIGITS},
    ),
}
# Users' own data can be anything, so training follows their amount; the default for inputs that are no pictures is an MLP.
_OWN_PICTURES = _options({}, 0.78, 0.05, 0.3, ewc=10, rho=-5)
PICTURES = Benchmark(
    "your own pictures", "own", (), 0, "cnn", {"paper": _PAPER_CIFAR10, "fast": Preset({}, options=_OWN_PICTURES)}
)
TASKS = Benchmark(
    "your own tasks",
    "own",
    (),
    0,
    "mlp",
    {"paper": _PAPER_MLP, "fast": Preset({}, options=_options({}, 0.8, 0.5, 0.3, lwf=10))},
)

ABLATIONS = {  # names for `spacecl compare --preset`
    "projection": "SPACE with and without projection-subtraction",
    "threshold": "SPACE as published: 99 % of the variance in every layer, or more in the first",
    "choices": "SPACE as published, with each of this library's five changes alone, and with all",
    "parts": "SPACE, and SPACE without each of its parts alone: with the paper's choice in its place",
    "frontier": "accuracy against size: SPACE, SPACE as published, PackNet, WSN and HAT, five settings each",
}
