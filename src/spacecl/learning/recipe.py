"""How to train: `Recipe`. Plain values, so that the command line knows them without loading torch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ..errors import ConfigError
from ..validation import Rule, faults, integer, number, one_of, plain

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
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in given.items() if value is not None or not name.startswith("retrain_")}
        wrong = faults(given, {name: _RULES[name.removeprefix("retrain_")] for name in given})
        if wrong:
            raise ConfigError(f"This recipe cannot be used: {'; '.join(wrong)}.")
        for name, value in given.items():
            value = tuple(map(int, value)) if name.endswith("milestones") else plain(value)
            object.__setattr__(self, name, value)

    def over(self, epochs: int) -> Recipe:
        """The same recipe with other epochs, its milestones moved along.

        >>> Recipe(epochs=10, schedule="steps", milestones=(5, 8)).over(20).milestones
        (10, 16)
        """
        share = epochs / self.epochs if self.epochs else 1.0
        return replace(self, epochs=epochs, milestones=tuple(max(1, round(share * epoch)) for epoch in self.milestones))

    def for_retraining(self) -> Recipe:
        """The recipe of the second phase, in which the narrowed network is trained."""
        own = {field.name: getattr(self, f"retrain_{field.name}", None) for field in fields(self)}
        own["epochs"] = -(-self.epochs // 2) if self.retrain_epochs is None else self.retrain_epochs
        return replace(self, **{name: value for name, value in own.items() if value is not None})


_RULES: dict[str, Rule] = {
    "epochs": integer(0),
    "batch_size": integer(1),
    "optimizer": one_of(OPTIMIZERS),
    "lr": number(lambda v: v > 0, "above 0"),
    "momentum": number(lambda v: 0 <= v < 1, "in [0, 1)"),
    "weight_decay": number(lambda v: v >= 0, "at least 0"),
    "schedule": one_of(SCHEDULES),
    "milestones": (lambda v: isinstance(v, (tuple, list)) and all(integer(1)[0](e) for e in v), "a list of epochs, from 1"),
    "decay": number(lambda v: v > 1, "above 1"),
    "patience": integer(1),
    "stop_lr": number(lambda v: v >= 0, "at least 0"),
    "augment": one_of(AUGMENTATIONS),
    "keep": one_of(("best", "last")),
}
