"""Optimizers and learning-rate schedules, as a recipe names them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from .recipe import Recipe


def make_optimizer(recipe: Recipe, module: nn.Module, no_decay: Collection[str] = ()) -> torch.optim.Optimizer:
    """An optimizer of all parameters that require gradients; those named in `no_decay` have no weight decay."""
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    parameters: Any = [parameter for name, parameter in trained.items() if name not in no_decay]
    if len(parameters) < len(trained):
        rest = [parameter for name, parameter in trained.items() if name in no_decay]
        parameters = [{"params": parameters}, {"params": rest, "weight_decay": 0.0}]
    fused = not any(getattr(layer, "sparse", False) for layer in module.modules())  # fused ones take no sparse gradients
    if recipe.optimizer == "sgd":
        momentum, decay = recipe.momentum, recipe.weight_decay
        return torch.optim.SGD(parameters, recipe.lr, momentum=momentum, weight_decay=decay, fused=fused)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, recipe.lr, weight_decay=recipe.weight_decay, fused=fused)


def clip_gradients(module: nn.Module, limit: float) -> None:
    """Shorten the gradient of all parameters together to a norm of at most `limit`. Unlike torch's, it takes sparse ones."""
    values = []
    for parameter in module.parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values())
        elif parameter.grad is not None:
            values.append(parameter.grad)
    factor = (limit / (torch.nn.utils.get_total_norm(values) + 1e-6)).clamp(max=1.0)
    for value in values:
        value.mul_(factor.to(value.device))


def make_schedule(recipe: Recipe, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate over a phase of `steps` steps per epoch; it advances every step, with "plateau" every epoch."""
    schedules = torch.optim.lr_scheduler
    total = max(1, recipe.epochs * steps)
    if recipe.schedule == "one-cycle":
        length = max(total + 1, 8)  # shorter ones leave no step for the rise
        return schedules.OneCycleLR(optimizer, recipe.lr, total_steps=length, pct_start=0.25, cycle_momentum=False)
    if recipe.schedule == "cosine":
        return schedules.CosineAnnealingLR(optimizer, total)
    if recipe.schedule == "plateau":  # torch counts the epochs that are tolerated, the recipe the first that is not
        patience = recipe.patience - 1
        return schedules.ReduceLROnPlateau(optimizer, factor=1 / recipe.decay, patience=patience, threshold=0.0, eps=0.0)
    milestones = [epoch * steps for epoch in recipe.milestones] if recipe.schedule == "steps" else []
    return schedules.MultiStepLR(optimizer, milestones, gamma=1 / recipe.decay)
