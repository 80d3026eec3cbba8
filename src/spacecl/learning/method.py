"""What a continual-learning method is: `Method`, the base class of all of them, and `Learned`, what its `learn` returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..data.targets import TargetKind
from ..errors import ConfigError
from ..structure.channels import Channels
from .analysis import Analysis
from .checkpoints import Epoch
from .context import TaskContext
from .core import Core
from .recipe import Recipe


@dataclass(frozen=True)
class Learned:
    """The core with one more task committed, and how that went."""

    core: Core
    history: Sequence[Epoch]  # an entry per epoch, as `Trainer.fit` returns them
    analysis: Analysis = field(default_factory=Analysis)
    seconds: Mapping[str, float] = field(default_factory=dict)  # of work other than training, by name


class Method(ABC):
    """A continual-learning method. Subclass it as a frozen dataclass of hyperparameters, and write `learn`.

    A learner saves the hyperparameters with what it has learned, so they must be plain values that JSON can hold.
    docs/extending.md builds a method of its own.
    """

    forgets: ClassVar[bool] = False  # whether learning a task may change the networks of earlier ones
    needs_data: ClassVar[bool] = False  # whether learning a task needs the data of earlier ones
    target_kinds: ClassVar[Sequence[TargetKind]] = ("classes",)  # what its tasks may predict: "classes", "labels", "values"

    def check(self, channels: Channels) -> None:  # noqa: B027  # most methods fit every model
        """Raise ConfigError if these hyperparameters do not fit the model. The default accepts every model."""

    def check_target(self, task: str, kind: TargetKind) -> None:
        """Raise ConfigError if tasks that predict this are not among those that the method can learn."""
        if kind not in self.target_kinds:
            name = type(self).__name__
            raise ConfigError(
                f"Task {task!r} predicts {kind}, but {name} learns tasks of {' and '.join(self.target_kinds)}. "
                f"Use another method, or declare {name}.target_kinds if it serves them."
            )

    def plan(self, recipe: Recipe, tasks_before: int) -> dict[str, int]:
        """The epochs of every phase of learning a task after `tasks_before` others."""
        return {"train": recipe.epochs}

    def spend_all_epochs(self, recipe: Recipe, tasks_before: int) -> Recipe:
        """The recipe, with the epochs of both phases in one if this method has no second: all methods train for as long."""
        if "retrain" in self.plan(recipe, tasks_before):
            return recipe
        return recipe.over(recipe.epochs + recipe.for_retraining().epochs)

    @abstractmethod
    def learn(self, core: Core, task: TaskContext) -> Learned:
        """Learn a task and return a core that has it committed. `core` itself is never changed."""
