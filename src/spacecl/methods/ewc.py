"""Elastic weight consolidation (Kirkpatrick et al. 2017): a quadratic penalty keeps weights that earlier tasks need."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..data.targets import TARGET_KINDS, TargetKind
from ..errors import TrainingError
from ..learning.context import TaskContext
from ..learning.core import Core
from ..learning.distributed import all_sum
from ..learning.method import Learned, Method
from ..learning.trainer import Loss
from ..options import NonNegativeFloat, PositiveInt, option, options
from ..structure.calling import Inputs, split_rows
from ..structure.memory_format import protect_gradients, run_model
from ..structure.tensors import Tensors


@options
class EWC(Method):
    """Add strength / 2 * sum F (w - w*)^2 to the loss for every earlier task, F the diagonal of its Fisher information.

    F is estimated one example at a time, with labels drawn from the network's own predictions. The sum over tasks is
    stored exactly in two tensors per weight, however many tasks there are: the sum of F, and the mean of w* weighted by F.

    >>> EWC(strength=1000).strength
    1000.0
    """

    strength: NonNegativeFloat = option(default=100.0, help="weight of the penalty, lambda in the paper")
    samples: PositiveInt = option(default=1000, help="training examples on which the Fisher information is estimated")

    forgets: ClassVar[bool] = True
    target_kinds: ClassVar[Sequence[TargetKind]] = TARGET_KINDS

    def learn(self, core: Core, task: TaskContext) -> Learned:
        module = core.blueprint.build(core.initial_tensors(task.classes))

        def make_loss(module: nn.Module) -> Loss:
            return self._make_loss(module, core.memory, task.loss) if core.tasks else task.loss

        try:
            history = task.trainer.fit(module, task.train, task.valid, make_loss=make_loss)
        except TrainingError as error:
            if not core.tasks:
                raise
            raise TrainingError(f"{error} Or lower strength={self.strength}: such a penalty may need smaller steps.") from error
        started = time.perf_counter()
        learned = core.replace_weights(core.blueprint.extract_tensors(module))
        learned = replace(learned, memory=self._update_memory(core.memory, module, learned, task))
        return Learned(learned, history, seconds={"fisher": time.perf_counter() - started})

    def _make_loss(self, module: nn.Module, memory: Mapping[str, Tensor], task_loss: Loss) -> Loss:
        """The task's loss plus the penalty on the parameters of a module."""
        anchored = [
            (parameter, memory[f"importance.{name}"].to(parameter), memory[f"anchor.{name}"].to(parameter))
            for name, parameter in module.named_parameters()
            if f"importance.{name}" in memory
        ]

        def loss(wrapped: nn.Module, x: Inputs, y: Tensor) -> Tensor:
            penalty = sum(((importance * (p - anchor).square()).sum() for p, importance, anchor in anchored), torch.zeros(()))
            return task_loss(wrapped, x, y) + self.strength / 2 * penalty.to(y.device)

        return loss

    def _update_memory(self, memory: Mapping[str, Tensor], module: nn.Module, core: Core, task: TaskContext) -> Tensors:
        """The penalty of all tasks so far: sum_t F_t (w - w_t)^2 is (sum F_t) (w - mean)^2 plus a constant."""
        updated: Tensors = {}
        for name, fisher in estimate_fisher(module, core.shared.keys(), task, self.samples).items():
            weight = core.shared[name].float()
            total = memory.get(f"importance.{name}", torch.zeros_like(fisher)) + fisher
            anchor = memory.get(f"anchor.{name}", weight)
            ratio = torch.where(total > 0, fisher / total, torch.zeros_like(total))
            updated[f"importance.{name}"], updated[f"anchor.{name}"] = total, anchor + ratio * (weight - anchor)
        return updated


def estimate_fisher(module: nn.Module, names: Collection[str], task: TaskContext, samples: int) -> Tensors:
    """The mean square of the gradient of log p(y | x), y drawn from the network's own prediction, for some parameters."""
    parameters = {name: p for name, p in module.named_parameters() if name in names and p.requires_grad}
    if not parameters:
        return {}
    fabric = task.trainer.fabric
    labels = torch.Generator().manual_seed(task.trainer.seed + 2 + fabric.global_rank)
    squares = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
    count = torch.zeros((), dtype=torch.float64)
    module.eval()
    for batch in task.examples(samples):
        for x in split_rows(batch, 1):
            with protect_gradients(module):
                outputs = run_model(module, x).float()
                slope = task.objective.sample_gradient(outputs, labels)  # of -log p(y | x), y drawn
                gradients = torch.autograd.grad(outputs, list(parameters.values()), slope, allow_unused=True)
            for square, gradient in zip(squares.values(), gradients):
                if gradient is not None:
                    square += gradient.square()
            count += 1
    total = float(all_sum(fabric, count))
    return {name: (all_sum(fabric, square) / total).cpu() for name, square in squares.items()}
