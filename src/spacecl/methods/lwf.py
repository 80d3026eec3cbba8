"""Learning without forgetting (Li, Hoiem 2016): on new data, old heads keep saying what they said before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..learning.core import Core
from ..learning.recipe import Recipe
from ..learning.record import TaskContext, told
from ..learning.trainer import evaluate_with_loss
from ..structure.channels import Channels
from ..structure.memory_format import run_model
from ..validation import integer, number, settle


@dataclass(frozen=True)
class LwF:
    """Train the new head alone for `warmup` epochs, then all weights and heads, old answers distilled.

    The loss is cross-entropy on the new task plus `strength` times, for every earlier task, the divergence between what its
    head said of the new inputs before training and what it says now, both softened by `temperature`. Norms are shared.

    >>> LwF(temperature=2.0).warmup
    5
    """

    strength: float = 1.0
    temperature: float = 2.0
    warmup: int = 5  # epochs, of those that the recipe has, and at most half of them

    forgets: ClassVar[bool] = True
    needs_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        rules = {
            "strength": number(lambda v: v >= 0, "at least 0"),
            "temperature": number(lambda v: v > 0, "above 0"),
            "warmup": integer(0),
        }
        settle(self, rules)

    def check(self, channels: Channels) -> None:
        pass

    def plan(self, recipe: Recipe, number: int) -> dict[str, int]:
        warmup = min(self.warmup, recipe.epochs // 2) if number else 0  # there is nothing to preserve at first
        return {"head": warmup, "train": recipe.epochs - warmup}

    def learn(self, core: Core, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        blueprint, trainer = core.blueprint, job.trainer
        plan = self.plan(trainer.recipe, len(core.own))
        start = core.start(job.classes)
        if not core.own:
            module = blueprint.build(start)
            history = trainer.fit(module, job.train, job.valid)
            return core.rewrite(blueprint.extract_tensors(module)), told(history)
        history = []
        heads = core.joined_heads()
        if plan["head"]:
            module = blueprint.build(start)
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name in heads)
            recipe = trainer.recipe.over(plan["head"])
            history += trainer.fit(module, job.train, job.valid, phase="head", recipe=recipe)
            found = blueprint.extract_tensors(module)
            start |= {name: found[name] for name in heads}
        old = sum(core.classes)
        teacher = blueprint.build(core.task_tensors(len(core.own) - 1) | heads).to(trainer.fabric.device)
        teacher.eval()
        module = blueprint.build(start | {name: torch.cat([heads[name], start[name]]) for name in heads})

        def loss(running: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                said = run_model(teacher, x)
            logits = running(x)
            value = F.cross_entropy(logits[:, old:], y)
            for then, now in zip(said.split(core.classes, 1), logits[:, :old].split(core.classes, 1)):
                value = value + self.strength * divergence(now, then, self.temperature)
            return value

        def validate(module: nn.Module) -> tuple[float, float]:
            return evaluate_with_loss(module, job.valid, trainer.fabric, trainer.channels_last, slice(old, None))

        recipe = trainer.recipe.over(plan["train"])
        history += trainer.fit(module, job.train, job.valid, recipe=recipe, loss=loss, validate=validate)
        return core.rewrite(blueprint.extract_tensors(module), together=True), told(history)


def divergence(now: Tensor, then: Tensor, temperature: float) -> Tensor:
    """How far answers have moved from earlier ones: the mean Kullback-Leibler divergence of softened probabilities."""
    log_now, log_then = F.log_softmax(now.float() / temperature, 1), F.log_softmax(then.float() / temperature, 1)
    return F.kl_div(log_now, log_then, reduction="batchmean", log_target=True)
