"""PackNet (Mallya, Lazebnik 2018): each task keeps the largest of the weights that are free, and fixes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import FullError
from ..learning.core import FREE, Core
from ..learning.freezing import make_freeze_hook
from ..learning.recipe import Recipe
from ..learning.record import TaskContext, told
from ..structure.channels import Channels
from ..structure.graph import layer_of
from ..validation import number, settle


@dataclass(frozen=True)
class PackNet:
    """Train all free weights, remove the share `prune` of them that is smallest in each layer, retrain the rest, fix them.

    A task's network has its own weights and those of earlier tasks, zeros elsewhere, at full width: masks of single
    weights save no operations. Norms are each task's own; biases are learned with the first task and then fixed.

    >>> PackNet(prune=0.9).forgets
    False
    """

    prune: float = 0.75

    forgets: ClassVar[bool] = False
    needs_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        settle(self, {"prune": number(lambda v: 0 < v < 1, "between 0 and 1")})

    def check(self, channels: Channels) -> None:
        pass

    def plan(self, recipe: Recipe, number: int) -> dict[str, int]:
        return {"train": recipe.epochs, "retrain": recipe.for_retraining().epochs}

    def learn(self, core: Core, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        if len(core.own) >= FREE:
            raise FullError(f"PackNet notes the task of every weight in one byte: {FREE} tasks are the most it can hold.")
        start, held, pruned = core.start(job.classes), core.held("subnet"), weights_of(core)
        if core.own:  # free weights begin at zero, as published; biases and the like are fixed
            start |= core.tensors
            held = {name: mask if name in pruned else torch.ones_like(mask) for name, mask in held.items()}
        module = core.blueprint.build(start)
        history = job.trainer.fit(module, job.train, job.valid, after_step=make_freeze_hook(module, held))
        tensors = core.blueprint.extract_tensors(module)
        takes = {}
        for name in core.tensors:
            known = held.get(name, torch.zeros_like(tensors[name], dtype=torch.bool))
            takes[name] = self._largest(tensors[name], ~known) if name in pruned else ~known
            tensors[name] = torch.where(takes[name] | known, tensors[name], torch.zeros_like(tensors[name]))
        module = core.blueprint.build(tensors)
        fixed = {name: ~kept for name, kept in takes.items()}
        recipe = job.trainer.recipe.for_retraining()
        after = make_freeze_hook(module, fixed)
        history += job.trainer.fit(module, job.train, job.valid, phase="retrain", recipe=recipe, after_step=after)
        done = core.commit(core.blueprint.extract_tensors(module), core.channels.all_units(), takes)
        return done, told(history)

    def _largest(self, weight: Tensor, free: Tensor) -> Tensor:
        """The positions of the largest of a weight's free elements, without the share that is pruned; one stays in any case."""
        count = int(free.sum())
        kept = min(count, max(1, count - round(self.prune * count)))
        size = torch.where(free, weight.abs().double(), -1.0).flatten()
        order = size.argsort(descending=True, stable=True)[:kept]
        return torch.zeros_like(size, dtype=torch.bool).index_fill(0, order, True).reshape(weight.shape)


def weights_of(core: Core) -> set[str]:
    """The weights that can be pruned: those of layers, not of what the user froze."""
    layers = core.channels.layers.keys()
    found = {n for n, p in core.blueprint.module.named_parameters() if n in core.tensors and p.requires_grad and p.dim() > 1}
    return {name for name in found if layer_of(name) in layers}
