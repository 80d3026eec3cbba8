"""Single-task learning: a full network for every task. Nothing is shared and nothing forgotten, at the price of size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..learning.core import Core
from ..learning.recipe import Recipe
from ..learning.record import TaskContext, told
from ..structure.channels import Channels


@dataclass(frozen=True)
class STL:
    """Train a full network of its own for every task, each from the weights that the learner was given.

    >>> STL().forgets
    False
    """

    forgets: ClassVar[bool] = False
    needs_data: ClassVar[bool] = False

    def check(self, channels: Channels) -> None:
        pass

    def plan(self, recipe: Recipe, number: int) -> dict[str, int]:
        return {"train": recipe.epochs}

    def learn(self, core: Core, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        blueprint, channels = core.blueprint, core.channels
        given = {**core.tensors, **core.memory} if core.own else blueprint.tensors()  # what every task begins with
        module = blueprint.build(given | blueprint.new_head(blueprint.tensors(), job.classes))
        history = job.trainer.fit(module, job.train, job.valid)
        done = replace(
            core,
            tensors={name: given[name] for name in core.tensors},
            memory={name: given[name] for name in sorted(channels.private - channels.heads)},
            keeps=(*core.keeps, channels.all_units()),
            own=(*core.own, blueprint.extract_tensors(module)),
        )
        return done, told(history)
