"""How to train: `Recipe`. Plain values, so that the command line knows them without loading torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from .errors import ConfigError

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("one-cycle", "cosine", "steps", "plateau", "constant")
AUGMENTATIONS = ("none", "flip", "shift", "flip-shift")


@dataclass(frozen=True)
class Recipe:
    """How to train a task. The defaults train a small network well; `retrain_*` left at None follow the training's values.

    >>> Recipe(epochs=5, optimizer="sgd", lr=0.05).for_retraining().epochs
    3
    """

    epochs: int = 20
    batch_size: int = 64
    optimizer: str = "adamw"  # "sgd", "adam" or "adamw"
    lr: float = 2e-3
    momentum: float = 0.9  # of SGD
    weight_decay: float = 0.0
    schedule: str = "one-cycle"  # "one-cycle", "cosine", "steps", "plateau" or "constant"
    milestones: tuple[int, ...] = ()  # epochs after which schedule="steps" lowers the rate
    decay: float = 10.0  # what "steps" and "plateau" divide the rate by
    patience: int = 5  # epochs without a lower validation loss after which "plateau" lowers the rate
    stop_lr: float = 0.0  # training ends when "plateau" would go below this rate
    augment: str = "none"  # of training images: "none", "flip", "shift" or "flip-shift"
    keep: str = "best"  # the epoch to end with: "best" on the validation data, or "last"
    retrain_epochs: int | None = None  # half of `epochs`, rounded up
    retrain_lr: float | None = None
    retrain_schedule: str | None = None
    retrain_milestones: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        wrong = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            good, what = _RULES[field.name.removeprefix("retrain_")]
            if not good(value):
                wrong.append(f"{field.name}={value!r} must be {what}")
        if wrong:
            raise ConfigError(f"This recipe cannot be used: {'; '.join(wrong)}.")
        for name in ("milestones", "retrain_milestones"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(int(epoch) for epoch in getattr(self, name)))

    def for_retraining(self) -> Recipe:
        """The recipe of the second phase, in which the narrowed network is trained."""
        own = {field.name: getattr(self, f"retrain_{field.name}", None) for field in fields(self)}
        own["epochs"] = -(-self.epochs // 2) if self.retrain_epochs is None else self.retrain_epochs
        return replace(self, **{name: value for name, value in own.items() if value is not None})


def _whole(least: int) -> tuple[Callable[[Any], bool], str]:
    return (
        lambda v: isinstance(v, Integral) and not isinstance(v, bool) and int(v) >= least,
        f"a whole number, at least {least}",
    )


def _number(good: Callable[[Any], bool], what: str) -> tuple[Callable[[Any], bool], str]:
    return lambda v: isinstance(v, Real) and not isinstance(v, bool) and bool(good(v)), f"a number {what}"


def _one_of(names: tuple[str, ...]) -> tuple[Callable[[Any], bool], str]:
    return lambda v: v in names, f"one of {', '.join(names)}"


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "epochs": _whole(0),
    "batch_size": _whole(1),
    "optimizer": _one_of(OPTIMIZERS),
    "lr": _number(lambda v: v > 0, "above 0"),
    "momentum": _number(lambda v: 0 <= v < 1, "in [0, 1)"),
    "weight_decay": _number(lambda v: v >= 0, "at least 0"),
    "schedule": _one_of(SCHEDULES),
    "milestones": (lambda v: isinstance(v, (tuple, list)) and all(_whole(1)[0](e) for e in v), "a list of epochs, from 1"),
    "decay": _number(lambda v: v > 1, "above 1"),
    "patience": _whole(1),
    "stop_lr": _number(lambda v: v >= 0, "at least 0"),
    "augment": _one_of(AUGMENTATIONS),
    "keep": _one_of(("best", "last")),
}
