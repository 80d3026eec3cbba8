"""Optimisers and learning-rate schedules, as a recipe names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .recipe import Recipe

if TYPE_CHECKING:
    pass


def make_optimizer(recipe: Recipe, module: nn.Module) -> torch.optim.Optimizer:
    """An optimiser of all that learns; weight decay is not for parameters that are marked `undecayed`."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    parameters: Any = [p for p in trained if not getattr(p, "undecayed", False)]
    if len(parameters) < len(trained):
        rest = [p for p in trained if getattr(p, "undecayed", False)]
        parameters = [{"params": parameters}, {"params": rest, "weight_decay": 0.0}]
    fused = not any(getattr(layer, "sparse", False) for layer in module.modules())  # sparse gradients cannot be
    if recipe.optimizer == "sgd":
        momentum, decay = recipe.momentum, recipe.weight_decay
        return torch.optim.SGD(parameters, recipe.lr, momentum=momentum, weight_decay=decay, fused=fused)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, recipe.lr, weight_decay=recipe.weight_decay, fused=fused)


def make_schedule(recipe: Recipe, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate over a phase, moved on after every step, or with "plateau" after every epoch."""
    schedules = torch.optim.lr_scheduler
    total = max(1, recipe.epochs * steps)
    if recipe.schedule == "one-cycle":
        length = max(total + 1, 8)  # shorter ones leave no step for the rise
        return schedules.OneCycleLR(optimizer, recipe.lr, total_steps=length, pct_start=0.25, cycle_momentum=False)
    if recipe.schedule == "cosine":
        return schedules.CosineAnnealingLR(optimizer, total)
    if recipe.schedule == "plateau":  # torch counts the epochs that are borne, the recipe the one that is too many
        patience = recipe.patience - 1
        return schedules.ReduceLROnPlateau(optimizer, factor=1 / recipe.decay, patience=patience, threshold=0.0, eps=0.0)
    milestones = [epoch * steps for epoch in recipe.milestones] if recipe.schedule == "steps" else []
    return schedules.MultiStepLR(optimizer, milestones, gamma=1 / recipe.decay)
