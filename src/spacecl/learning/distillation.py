"""Learning from the answers of another network instead of from labels.

With few examples, SPACE retrains a pruned network to answer as the full one does, on mixtures of examples. The full network has
learned from the labels; what is left to do is to compute the same function with fewer filters. Its answers say more than labels
do, and they can be had for any input, so mixtures of two examples are as good as new ones (Beyer et al. 2022). Mixing needs no
knowledge of the data, unlike mirroring or shifting.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..structure.calling import Inputs, call_model, list_tensors, map_tensors
from ..structure.memory_format import run_model, set_memory_format
from .trainer import Loss, MakeLoss, Trainer

_TEMPERATURE = 2.0  # softens the answers, of which values have none to soften


def make_matching_loss(full: nn.Module, trainer: Trainer) -> MakeLoss:
    """A loss that compares a network's answers with those of the full one, on mixtures of the inputs of a batch."""

    temperature = 1.0 if trainer.objective.targets.kind == "values" else _TEMPERATURE

    def make_loss(_: nn.Module) -> Loss:
        set_memory_format(full.to(trainer.fabric.device), trainer.channels_last).eval()
        return loss

    def loss(wrapped: nn.Module, inputs: Inputs, _: Tensor) -> Tensor:
        x = mix_examples(inputs)
        with torch.no_grad():
            answers = run_model(full, x, trainer.channels_last)
        return temperature**2 * trainer.objective.answers.divergence(call_model(wrapped, x), answers, temperature)

    return make_loss


def mix_examples(inputs: Inputs) -> Inputs:
    """Mix every example of a batch with the next, in shares that rise. Inputs with integers, such as tokens, stay as they are.

    A batch is in random order, so partners and shares are random, too, without a number drawn for them.

    >>> mix_examples(torch.tensor([[0.0], [8.0]])).tolist()
    [[6.0], [6.0]]
    """
    if not all(tensor.is_floating_point() for tensor in list_tensors(inputs)):
        return inputs

    def mix(x: Tensor) -> Tensor:
        shares = (torch.arange(len(x), device=x.device, dtype=x.dtype) + 0.5) / len(x)
        return torch.lerp(x.roll(-1, 0), x, shares.reshape(-1, *[1] * (x.dim() - 1)))

    return map_tensors(mix, inputs)
