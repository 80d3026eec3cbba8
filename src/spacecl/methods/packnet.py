"""PackNet (Mallya, Lazebnik 2018): each task keeps the largest of the free weights, and freezes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ..data.targets import TARGET_KINDS, TargetKind
from ..errors import FullError
from ..learning.context import TaskContext
from ..learning.core import Core
from ..learning.method import Learned, Method
from ..learning.normalization import reestimate_norms
from ..learning.ownership import FREE, WeightOwnership
from ..learning.recipe import Recipe
from ..options import option, options


@options
class PackNet(Method):
    """Train all free weights, prune the smallest of them in each layer, retrain the rest and freeze them.

    A task's network has its own weights and those of earlier tasks, and zeros elsewhere, at full width: masks of single
    weights save no operations. Norms are private to each task; biases are learned with the first task and then frozen.

    >>> PackNet(prune=0.9).forgets
    False
    """

    prune: Annotated[float, Field(gt=0, lt=1)] = option(
        default=0.75, help="fraction of the free weights that is pruned and left to later tasks, per layer"
    )

    target_kinds: ClassVar[Sequence[TargetKind]] = TARGET_KINDS

    def plan(self, recipe: Recipe, tasks_before: int) -> dict[str, int]:
        return {"train": recipe.epochs, "retrain": recipe.for_retraining().epochs}

    def learn(self, core: Core, task: TaskContext) -> Learned:
        if len(core.tasks) >= FREE:
            raise FullError(f"PackNet stores the task of every weight in one byte: it can learn at most {FREE} tasks.")
        blueprint, trainer = core.blueprint, task.trainer
        tensors, frozen, prunable = core.initial_tensors(task.classes), core.frozen_positions("subnet"), core.prunable_weights
        if core.tasks:  # free weights begin at zero, as published; biases and the like are frozen
            tensors |= core.shared
            frozen = {name: mask if name in prunable else torch.ones_like(mask) for name, mask in frozen.items()}
        else:
            core = replace(core, ownership=WeightOwnership())
        module = blueprint.build(tensors)
        history = trainer.fit(module, task.train, task.valid, freeze=frozen)

        tensors, claims = blueprint.extract_tensors(module), {}
        for name in core.shared:
            known = frozen.get(name, torch.zeros_like(tensors[name], dtype=torch.bool))
            claims[name] = self._select_largest(tensors[name], ~known) if name in prunable else ~known
            tensors[name] = torch.where(claims[name] | known, tensors[name], torch.zeros_like(tensors[name]))
        module = blueprint.build(tensors)
        reestimate_norms(module, task)
        unclaimed = {name: ~mask for name, mask in claims.items()}
        recipe = trainer.recipe.for_retraining()
        history += trainer.fit(module, task.train, task.valid, phase="retrain", recipe=recipe, freeze=unclaimed)
        return Learned(core.commit(blueprint.extract_tensors(module), core.channels.all_units(), claims), history)

    def _select_largest(self, weight: Tensor, free: Tensor) -> Tensor:
        """The positions of the largest free elements of a weight, without the fraction that is pruned; at least one."""
        count = int(free.sum())
        kept = min(count, max(1, count - round(self.prune * count)))
        magnitude = torch.where(free, weight.abs().double(), -1.0).flatten()
        order = magnitude.argsort(descending=True, stable=True)[:kept]
        return torch.zeros_like(magnitude, dtype=torch.bool).index_fill(0, order, True).reshape(weight.shape)
