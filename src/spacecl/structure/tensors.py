"""A module's tensors by name."""

from __future__ import annotations

from torch import Tensor, nn

Tensors = dict[str, Tensor]


def named_tensors(module: nn.Module) -> Tensors:
    """A module's parameters and buffers by name, detached but not copied."""
    return {name: tensor.detach() for name, tensor in [*module.named_parameters(), *module.named_buffers()]}
