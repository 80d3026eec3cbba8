"""Calling a model: inputs that are one tensor or several, and the scores in what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from ..errors import UnsupportedModelError

Inputs: TypeAlias = "Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]"  # of a model, all with one row per example
SCORES = "logits"  # the name under which models return their scores beside other values


def call_model(module: nn.Module, inputs: Inputs) -> Tensor:
    """Call a model with one tensor, with several in order, or with several by name; returns its scores."""
    if isinstance(inputs, Tensor):
        return find_scores(module(inputs))
    return find_scores(module(**inputs) if isinstance(inputs, Mapping) else module(*inputs))


def find_scores(result: Any) -> Tensor:
    """The scores in what a model returns: a tensor, or a tensor named `logits` beside others, or the first of several.

    >>> import torch
    >>> find_scores({"logits": torch.ones(2, 3), "hidden": torch.zeros(2, 8)}).shape
    torch.Size([2, 3])
    """
    if isinstance(result, Tensor):
        return result
    scores = result.get(SCORES) if isinstance(result, Mapping) else getattr(result, SCORES, None)
    if scores is None and isinstance(result, Mapping) and len(result) == 1:
        scores = next(iter(result.values()))
    if scores is None and isinstance(result, (tuple, list)) and result:
        scores = result[0]
    if not isinstance(scores, Tensor):
        names = f" with {', '.join(map(str, result))}" if isinstance(result, Mapping) else ""
        raise UnsupportedModelError(
            f"forward() returns a {type(result).__name__}{names}. Let it return the scores of the classes alone, first in a "
            f'tuple, or by the name "{SCORES}".'
        )
    return scores


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Inputs of the same form, with each tensor replaced by what a function makes of it."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {name: function(tensor) for name, tensor in inputs.items()}
    return tuple(map(function, inputs))


def list_tensors(inputs: Inputs) -> list[Tensor]:
    """The tensors of inputs, in order."""
    if isinstance(inputs, Tensor):
        return [inputs]
    return list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs)


def count_rows(inputs: Inputs) -> int:
    """The number of examples.

    >>> import torch
    >>> count_rows({"ids": torch.zeros(4, 7), "mask": torch.ones(4, 7)})
    4
    """
    return len(list_tensors(inputs)[0])


def select_rows(inputs: Inputs, rows: slice | Tensor) -> Inputs:
    """Some of the examples, by a slice or by their numbers."""
    return map_tensors(lambda tensor: tensor[rows], inputs)
