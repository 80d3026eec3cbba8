"""Learning without forgetting (Li, Hoiem 2016): on new data, the heads of earlier tasks keep their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..data.targets import TARGET_KINDS, TargetKind
from ..learning.context import TaskContext
from ..learning.core import Core
from ..learning.method import Learned, Method
from ..learning.recipe import Recipe
from ..learning.trainer import Loss, evaluate_with_loss
from ..options import NonNegativeFloat, NonNegativeInt, PositiveFloat, option, options
from ..structure.calling import Inputs, call_model
from ..structure.memory_format import run_model


@options
class LwF(Method):
    """Train the new head alone at first, then all weights and heads, while outputs of earlier heads are distilled.

    The loss is that of the new task plus, for every earlier task, the divergence between the outputs of its head before
    training and now, both softened by a temperature (values are not). Norms are shared.

    >>> LwF(temperature=2.0).warmup
    5
    """

    strength: NonNegativeFloat = option(default=1.0, help="weight of the distillation loss")
    temperature: PositiveFloat = option(default=2.0, help="temperature that softens the outputs")
    warmup: NonNegativeInt = option(
        default=5, help="epochs, of those in the recipe and at most half of them, that train the new head alone"
    )

    forgets: ClassVar[bool] = True
    target_kinds: ClassVar[Sequence[TargetKind]] = TARGET_KINDS

    def plan(self, recipe: Recipe, tasks_before: int) -> dict[str, int]:
        warmup = min(self.warmup, recipe.epochs // 2) if tasks_before else 0  # the first task has nothing to preserve
        return {"head": warmup, "train": recipe.epochs - warmup}

    def learn(self, core: Core, task: TaskContext) -> Learned:
        blueprint, trainer = core.blueprint, task.trainer
        plan = self.plan(trainer.recipe, len(core.tasks))
        tensors = core.initial_tensors(task.classes)
        if not core.tasks:
            module = blueprint.build(tensors)
            history = trainer.fit(module, task.train, task.valid)
            return Learned(core.replace_weights(blueprint.extract_tensors(module)), history)
        history = []
        heads = core.joined_heads()
        if plan["head"]:
            module = blueprint.build(tensors)
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name in heads)
            recipe = trainer.recipe.over(plan["head"])
            history += trainer.fit(module, task.train, task.valid, phase="head", recipe=recipe)
            trained = blueprint.extract_tensors(module)
            tensors |= {name: trained[name] for name in heads}
        earlier = sum(core.classes)
        teacher = blueprint.build(core.task_tensors(len(core.tasks) - 1) | heads)
        module = blueprint.build(tensors | {name: torch.cat([heads[name], tensors[name]]) for name in heads})

        def make_loss(module: nn.Module) -> Loss:
            teacher.to(trainer.fabric.device).eval()
            return loss

        def loss(wrapped: nn.Module, x: Inputs, y: Tensor) -> Tensor:
            with torch.no_grad():
                targets = run_model(teacher, x)
            outputs = call_model(wrapped, x)
            value = task.objective.loss(outputs[:, earlier:], y)
            parts = zip(task.earlier_objectives, outputs[:, :earlier].split(core.classes, 1), targets.split(core.classes, 1))
            for objective, output, target in parts:
                value = value + self.strength * objective.answers.divergence(output, target, self.temperature)
            return value

        def validate(module: nn.Module) -> tuple[float, float]:
            own = slice(earlier, None)
            return evaluate_with_loss(module, task.valid, trainer.fabric, trainer.channels_last, task.objective, own)

        recipe = trainer.recipe.over(plan["train"])
        history += trainer.fit(module, task.train, task.valid, recipe=recipe, make_loss=make_loss, validate=validate)
        return Learned(core.replace_weights(blueprint.extract_tensors(module), joint=True), history)
