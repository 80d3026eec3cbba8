"""What a continual-learning method is: `Method`, the base class of all of them, and `Learned`, what its `learn` returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

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
    docs/extending.md writes one, and `spacecl check FILE.py:Class` checks it.
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


@dataclass(frozen=True)
class AbsentMethod(Method):
    """Stands for a user's own method whose code was not given: its tasks can be used, and no task can be learned."""

    name: str
    options: Mapping[str, Any]
    forgets: bool  # type: ignore[misc]  # as the method itself said

    def learn(self, core: Core, task: TaskContext) -> Learned:
        raise ConfigError(
            f"This learner was taught with {self.name}, a method of your own, which was not given. To teach it more, load it "
            f"with the method: Learner.load(..., method={self.name}(...))."
        )


def describe_method(method: Method) -> dict[str, Any]:
    """The name and the options of a method, as files have them."""
    if isinstance(method, AbsentMethod):
        return {"name": method.name, "options": dict(method.options)}
    return {"name": type(method).__name__, "options": asdict(method)}  # type: ignore[call-overload]


def name_method(method: Method) -> str:
    """The name by which files and messages call a method: that of its class."""
    return method.name if isinstance(method, AbsentMethod) else type(method).__name__
