"""Plain fine-tuning: every task trains the whole network on. Nothing protects earlier tasks: the floor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..learning.core import Core
from ..learning.recipe import Recipe
from ..learning.record import TaskContext, told
from ..structure.channels import Channels


@dataclass(frozen=True)
class FineTune:
    """Train the whole network on each task in turn, with a head and norms for each. Earlier tasks are forgotten.

    >>> FineTune().forgets
    True
    """

    forgets: ClassVar[bool] = True
    needs_data: ClassVar[bool] = False

    def check(self, channels: Channels) -> None:
        pass

    def plan(self, recipe: Recipe, number: int) -> dict[str, int]:
        return {"train": recipe.epochs}

    def learn(self, core: Core, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        module = core.blueprint.build(core.start(job.classes))
        history = job.trainer.fit(module, job.train, job.valid)
        return core.rewrite(core.blueprint.extract_tensors(module)), told(history)
