"""How to train: `Recipe`. Plain values, so that the command line knows them without loading torch."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Annotated, Literal

from pydantic import Field

from ..options import Description, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, option, options

Schedule = Literal["one-cycle", "cosine", "steps", "plateau", "constant"]
Milestones = Annotated[
    tuple[Annotated[int, Field(strict=True, ge=1)], ...], Field(strict=False), Description("a list of epochs, from 1")
]


@options
class Recipe:
    """How to train a task. The defaults train a small network well.

    The `retrain_*` options are those of the second phase, in which the narrowed network is trained.

    >>> Recipe(epochs=5, optimizer="sgd", lr=0.05).for_retraining().epochs
    3
    """

    epochs: NonNegativeInt = option(default=20, help="epochs of training for each task")
    batch_size: PositiveInt = option(default=64, help="examples in a training step")
    optimizer: Literal["sgd", "adam", "adamw"] = option(default="adamw", help="the optimizer")
    lr: PositiveFloat = option(default=2e-3, help="learning rate; the peak with one-cycle, the start with every other schedule")
    momentum: Annotated[float, Field(ge=0, lt=1)] = option(default=0.9, help="momentum of sgd; the others ignore it")
    weight_decay: NonNegativeFloat = option(default=0.0, help="weight decay")
    schedule: Schedule = option(default="one-cycle", help="how the learning rate changes during training")
    milestones: Milestones = option(
        default=(), help="with schedule=steps, the epochs after which the learning rate is divided by decay"
    )
    decay: Annotated[float, Field(gt=1)] = option(
        default=10.0, help="what the schedules steps and plateau divide the learning rate by"
    )
    patience: PositiveInt = option(
        default=5, help="with schedule=plateau, epochs without a lower validation loss before the learning rate is divided"
    )
    stop_lr: NonNegativeFloat = option(
        default=0.0, help="with schedule=plateau, training ends when the learning rate falls below this"
    )
    augment: Literal["none", "flip", "shift", "flip-shift"] = option(
        default="none", help="random changes of training images: mirrored, shifted by up to 2 pixels, or both"
    )
    keep: Literal["best", "last"] = option(
        default="best", help="keep the epoch with the best validation accuracy, or the last one"
    )
    retrain_epochs: NonNegativeInt | None = option(
        default=None,
        help="epochs of retraining, which methods that do not retrain add to epochs; None: half of epochs, rounded up",
    )
    retrain_lr: PositiveFloat | None = option(default=None, help="learning rate of retraining; None: that of training")
    retrain_schedule: Schedule | None = option(default=None, help="schedule of retraining; None: that of training")
    retrain_milestones: Milestones | None = option(default=None, help="milestones of retraining; None: those of training")

    def over(self, epochs: int) -> Recipe:
        """The same recipe with another number of epochs, and its milestones scaled.

        >>> Recipe(epochs=10, schedule="steps", milestones=(5, 8)).over(20).milestones
        (10, 16)
        """
        ratio = epochs / self.epochs if self.epochs else 1.0
        return replace(self, epochs=epochs, milestones=tuple(max(1, round(ratio * epoch)) for epoch in self.milestones))

    def for_retraining(self) -> Recipe:
        """The recipe of the second phase, in which the narrowed network is trained."""
        values = {field.name: getattr(self, f"retrain_{field.name}", None) for field in fields(self)}
        values["epochs"] = -(-self.epochs // 2) if self.retrain_epochs is None else self.retrain_epochs
        return replace(self, **{name: value for name, value in values.items() if value is not None})
