"""How to train: `Recipe`. Plain values, so that the command line knows them without loading torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ..errors import ConfigError
from ..options import Description, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, option, options
from ..validation import is_integer, show

Schedule = Literal["one-cycle", "cosine", "steps", "plateau", "constant"]
Milestones = Annotated[
    tuple[Annotated[int, Field(strict=True, ge=1)], ...], Field(strict=False), Description("a list of epochs, from 1")
]
ClassWeights = Annotated[
    Literal["balanced"] | Annotated[tuple[Annotated[float, Field(strict=True, gt=0)], ...], Field(strict=False)],
    Description("balanced, or a list of numbers above 0"),
]

# What Recipe.auto decides by, chosen on the folders of pictures that experiments/few_pictures.py makes.
_BATCH_SIZES = {128: 20_000, 64: 2000, 32: 500}  # each from a number of examples on; 16 with fewer
_LEAST_STEPS, _MOST_STEPS = 600, 2000  # of training
_LEAST_EPOCHS, _PRETRAINED_EPOCHS = 30, 15  # a network that was trained before learns sooner
_RATE, _PRETRAINED_RATE = 2e-3, 5e-4
SPEED_ONLY = ("num_workers",)  # options on which no result depends
_TRUSTED = 200  # validation examples by which one epoch can be preferred to another


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
    augment: Literal["none", "flip", "shift", "flip-shift", "mask"] = option(
        default="none",
        help="random changes of training images: mirrored, shifted by up to 2 pixels, or both; for inputs of any shape: mask, "
        "a fifth of the values is zero",
    )
    clip: PositiveFloat | None = option(
        default=None, help="largest norm of the gradient of a step; longer ones are shortened; None: no limit"
    )
    keep: Literal["best", "last", "average"] = option(
        default="best",
        help="weights to keep: best, of the epoch with the best validation score; last, of the last epoch; or average, "
        "the mean of those after each epoch of the last quarter",
    )
    num_workers: NonNegativeInt = option(
        default=0,
        help="processes that read a dataset, beside the one that trains; the result is the same with any number",
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = option(
        default=0.0, help="share of the target that is spread over all classes, or over yes and no of a label; not for values"
    )
    class_weights: ClassWeights | None = option(
        default=None,
        help="weight of each class in the loss, or of the examples that have a label: balanced, so that rare ones count as "
        "much as frequent ones, or a number for each; not for values",
    )
    retrain_epochs: NonNegativeInt | None = option(
        default=None,
        help="epochs of retraining, which methods that do not retrain add to epochs; None: half of epochs, rounded up",
    )
    retrain_lr: PositiveFloat | None = option(default=None, help="learning rate of retraining; None: that of training")
    retrain_schedule: Schedule | None = option(default=None, help="schedule of retraining; None: that of training")
    retrain_milestones: Milestones | None = option(default=None, help="milestones of retraining; None: those of training")

    former_values: ClassVar[Mapping[str, Any]] = {"clip": None, "label_smoothing": 0.0, "class_weights": None}

    @staticmethod
    def auto(examples: int, valid: int | None = None, pretrained: bool = False, **options: Any) -> Recipe:
        """A recipe that fits the amount of data: training is long enough for few examples, and not too long for many.

        The number of steps decides, not that of epochs, and the learning rate suits networks without norms too. Weights are
        chosen by validation accuracy if there is enough validation data to trust it, and are averaged otherwise.

        Parameters
        ----------
        examples : the number of training examples.
        valid : the number of validation examples. Default: unknown, and not enough.
        pretrained : whether the network was trained before: it then needs fewer epochs, and its weights change more slowly
            until it is pruned.
        options : values of the recipe that are not to be chosen; the others follow from them.

        >>> few, many = Recipe.auto(65, 8), Recipe.auto(10_000, 1_000)
        >>> few.batch_size, few.keep, many.batch_size, many.keep
        (16, 'average', 64, 'best')
        >>> Recipe.auto(65, 8, epochs=5).retrain_epochs
        5
        """
        for name, value in {"examples": examples, "valid": 0 if valid is None else valid}.items():
            if not is_integer(value) or value < 0:
                raise ConfigError(f"{name}={show(value)} must be a number of examples, 0 or more.")
        size = options.get("batch_size", next((size for size, least in _BATCH_SIZES.items() if examples >= least), 16))
        values: dict[str, Any] = {"batch_size": size, "optimizer": "adamw", "lr": _RATE, "schedule": "one-cycle", "clip": 1.0}
        if pretrained and "lr" not in options:  # what is left of it after pruning is no better than a new network's weights
            values |= {"lr": _PRETRAINED_RATE, "retrain_lr": _RATE}
        values["keep"] = "best" if valid is not None and valid >= _TRUSTED else "average"
        checked = Recipe(**values | options)  # before anything is computed from what a user gave
        if "epochs" not in options:
            steps = max(1, -(-examples // checked.batch_size))  # of an epoch
            least = _PRETRAINED_EPOCHS if pretrained else _LEAST_EPOCHS
            values["epochs"] = min(max(-(-_LEAST_STEPS // steps), least), max(1, _MOST_STEPS // steps))
        values |= {"retrain_epochs": values.get("epochs", checked.epochs)}
        return Recipe(**values | options)

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
