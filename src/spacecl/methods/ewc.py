"""Elastic weight consolidation (Kirkpatrick et al. 2017): weights that earlier tasks need are held by springs."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import TrainingError
from ..learning.core import Core
from ..learning.distributed import all_sum
from ..learning.recipe import Recipe
from ..learning.record import TaskContext, told
from ..learning.trainer import Loss, cross_entropy
from ..structure.channels import Channels, Tensors
from ..structure.memory_format import protect_gradients, run_model
from ..validation import integer, number, settle


@dataclass(frozen=True)
class EWC:
    """Add strength / 2 * sum F (w - w*)^2 to the loss for every earlier task, F the diagonal of its Fisher information.

    F is estimated on `samples` training examples, one at a time, with labels drawn from the network's own predictions. The
    sum over tasks is kept exactly in two tensors per weight, however many tasks there are: their sum of F, and the mean
    of their w* weighted by F.

    >>> EWC(strength=1000).strength
    1000
    """

    strength: float = 100.0
    samples: int = 1000

    forgets: ClassVar[bool] = True
    needs_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        settle(self, {"strength": number(lambda v: v >= 0, "at least 0"), "samples": integer(1)})

    def check(self, channels: Channels) -> None:
        pass

    def plan(self, recipe: Recipe, number: int) -> dict[str, int]:
        return {"train": recipe.epochs}

    def learn(self, core: Core, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        module = core.blueprint.build(core.start(job.classes))
        loss = self._loss(module, core.memory) if core.own else None
        try:
            history = job.trainer.fit(module, job.train, job.valid, loss=loss)
        except TrainingError as error:
            if not core.own:
                raise
            raise TrainingError(
                f"{error} Or lower strength={self.strength}: steps this large may overshoot springs so stiff."
            ) from error
        started = time.perf_counter()
        done = core.rewrite(core.blueprint.extract_tensors(module))
        done = replace(done, memory=self._remember(core.memory, module, done, job))
        return done, told(history, fisher=time.perf_counter() - started)

    def _loss(self, module: nn.Module, memory: Mapping[str, Tensor]) -> Loss:
        springs: list[tuple[Tensor, Tensor, Tensor]] = []

        def loss(running: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            if not springs:  # only now do the parameters lie where training has moved them
                for name, p in module.named_parameters():
                    if f"importance.{name}" in memory:
                        springs.append((p, memory[f"importance.{name}"].to(p), memory[f"anchor.{name}"].to(p)))
            pull = sum(((importance * (p - anchor).square()).sum() for p, importance, anchor in springs), torch.zeros(()))
            return cross_entropy(running, x, y) + self.strength / 2 * pull.to(x.device)

        return loss

    def _remember(self, memory: Mapping[str, Tensor], module: nn.Module, core: Core, job: TaskContext) -> Tensors:
        """Springs of all tasks up to this one: sum_t F_t (w - w_t)^2 is (sum F_t) (w - mean)^2 and a constant."""
        found: Tensors = {}
        for name, fisher in fisher_information(module, core.tensors.keys(), job, self.samples).items():
            weight = core.tensors[name].float()
            before = memory.get(f"importance.{name}", torch.zeros_like(fisher))
            total = before + fisher
            anchor = memory.get(f"anchor.{name}", weight)
            share = torch.where(total > 0, fisher / total, torch.zeros_like(total))
            found[f"importance.{name}"], found[f"anchor.{name}"] = total, anchor + share * (weight - anchor)
        return found


def fisher_information(module: nn.Module, names: Collection[str], job: TaskContext, samples: int) -> Tensors:
    """The mean square of the gradient of log p(y | x), y drawn from the network's own prediction, for some parameters."""
    parameters = {name: p for name, p in module.named_parameters() if name in names and p.requires_grad}
    if not parameters:
        return {}
    fabric = job.trainer.fabric
    labels = torch.Generator().manual_seed(job.trainer.seed + 2 + fabric.global_rank)
    found = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
    count = torch.zeros((), dtype=torch.float64)
    module.eval()
    for batch in job.examples(samples):
        for x in batch.split(1):
            with protect_gradients(module):
                logits = run_model(module, x).float()
                y = torch.multinomial(logits.detach().softmax(1).cpu(), 1, generator=labels)[:, 0].to(logits.device)
                gradients = torch.autograd.grad(F.cross_entropy(logits, y), list(parameters.values()), allow_unused=True)
            for total, gradient in zip(found.values(), gradients):
                if gradient is not None:
                    total += gradient.square()
            count += 1
    seen = float(all_sum(fabric, count))
    return {name: (all_sum(fabric, total) / seen).cpu() for name, total in found.items()}
