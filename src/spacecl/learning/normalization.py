"""Running statistics of norms, estimated again for a network whose weights have changed without training."""

from __future__ import annotations

import torch
from torch import nn

from ..structure.calling import count_rows
from ..structure.memory_format import run_model
from .context import TaskContext
from .distributed import all_sum

SAMPLES = 2000  # training examples that the statistics are based on, at most


@torch.no_grad()
def reestimate_norms(module: nn.Module, task: TaskContext) -> None:
    """Estimate the running mean and variance of every norm that keeps any on a task's training examples, in place.

    Pruning changes the distributions that norms see. Their running statistics are still those of the network before,
    and a few epochs of retraining do not replace them: a narrowed network with batch norms computes noise until they
    are estimated again. Nothing else changes; dropout is off.
    """
    norms = [layer for layer in module.modules() if getattr(layer, "running_mean", None) is not None]
    if not norms:
        return
    fabric, training, momenta = task.trainer.fabric, module.training, [norm.momentum for norm in norms]
    module.to(fabric.device).eval()
    for norm in norms:
        norm.reset_running_stats()  # type: ignore[operator]
        norm.momentum = None  # type: ignore[assignment]  # a cumulative average
        norm.train()
    for x in task.examples(SAMPLES):
        if count_rows(x) > 1:  # one example has no variance
            run_model(module, x, task.trainer.channels_last)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum
        if fabric.world_size > 1:
            for name in ("running_mean", "running_var"):
                tensor = getattr(norm, name)
                tensor.copy_(all_sum(fabric, tensor) / fabric.world_size)
    module.train(training)
