"""Auxiliary layers: those that run in training alone, for scores beside the model's own, such as GoogLeNet's."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .blueprint import random_inputs
from .calling import Inputs
from .memory_format import run_model


class Auxiliary(nn.Module):
    """Stands for a layer that only served an auxiliary output in training; it returns None."""

    def forward(self, *args: Any, **kwargs: Any) -> None:
        return None


def without_auxiliary_layers(module: nn.Module, example: Inputs) -> nn.Module:
    """A model without the layers that only serve outputs which it has in training and not in eval mode.

    Networks are trained on the model's own scores, so these layers would learn nothing. A model whose forward() returns one
    tensor in training, or that fails in it, is returned as it is.
    """
    values, running = _run(module, example, training=True)
    if values <= 1:
        return module
    used = _run(module, example, training=False)[1]
    outermost: list[str] = []
    for name in running:
        layer = module.get_submodule(name)
        inside = any(name.startswith(f"{parent}.") for parent in outermost)
        if name not in used and not inside and any(True for _ in layer.parameters()):
            outermost.append(name)
    result = copy.deepcopy(module)
    for name in outermost:
        result.set_submodule(name, Auxiliary())
    return result if outermost and _run(result, example, training=True)[0] else module


def _run(module: nn.Module, example: Inputs, training: bool) -> tuple[int, list[str]]:
    """Run a copy of a model: how many values it returns, none if it fails, and the layers that run, in order."""
    copied = copy.deepcopy(module)
    copied.train(training)
    running: dict[str, None] = {}
    results: list[Any] = []
    for name, layer in copied.named_modules():
        layer.register_forward_pre_hook(lambda *_, name=name: running.setdefault(name))
    copied.register_forward_hook(lambda _, __, result: results.append(result))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            run_model(copied, random_inputs(example, 2))
        except Exception:
            return 0, []
    values = 1 if isinstance(results[-1], Tensor) else len(results[-1])
    return values, [name for name in running if name]
