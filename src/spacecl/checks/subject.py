"""The method that is checked, and learners that it has taught."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor, nn

from ..data.task import Task
from ..errors import SpaceError
from ..learner import Learner
from ..learning.recipe import Recipe
from ..runs.methods import is_own, load_method
from ..seeds import use_seed
from .models import Family, make_tasks

QUICK = Recipe(epochs=2, retrain_epochs=1)
Stream = Sequence[tuple[Tensor, Tensor]]  # inputs and labels of each task


class CheckError(SpaceError):
    """A method does not do what it must; the message says what, and how to mend it."""


class NotApplicableError(SpaceError):
    """A check does not apply to a method; the message says why."""


class SimulatedCrash(BaseException):
    """Ends learning at any moment, as a kill would."""


def require(condition: bool, reason: str) -> None:
    """Fail a check unless a condition holds."""
    if not condition:
        raise CheckError(reason)


class Subject:
    """A method, by its name on the command line, and the learners that it has taught, each of them once for all checks."""

    def __init__(self, name: str):
        self.name = name
        self.kind: type[Any] = load_method(name)
        self._taught: dict[tuple[object, int], Learner] = {}  # by the function of the model and the number of tasks

    def begin(self, family: Family, **options: object) -> Learner:
        """A new learner on the CPU."""
        with use_seed(0):
            model = family.make()
        return self.make_learner(model, family, **options)

    def make_learner(self, model: nn.Module, family: Family, **options: object) -> Learner:
        """A new learner of a model of a family, with a method that has some options."""
        method = self.kind(**options)
        return Learner(model, method, example_input=family.example, shared=family.shared, fabric=_cpu(), progress=False)

    def teach(self, family: Family, count: int = 3) -> Learner:
        """A learner with some tasks; it is a copy, which a check may teach more."""
        key = family.make, count
        if key not in self._taught:
            learner = self.begin(family) if count == 1 else self.teach(family, count - 1)
            learner.learn(Task(str(count - 1), make_tasks(family.example)[count - 1]), QUICK)
            self._taught[key] = learner
        return copy.copy(self._taught[key])

    def load(self, folder: Path, family: Family, earlier: Stream = ()) -> Learner:
        """A saved learner, to be taught more; `earlier` are the data of its tasks, which some methods need again."""
        method = self.kind() if is_own(self.name) else None
        learner = Learner.load(folder, family.make(), method=method, fabric=_cpu(), progress=False)
        for number, data in enumerate(earlier if self.kind.needs_data else ()):
            learner.remember(Task(str(number), data))
        return learner


def _cpu() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)
