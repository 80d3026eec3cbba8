"""Calling a model: inputs that are one tensor or several, and the scores in what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..errors import UnsupportedModelError

Inputs: TypeAlias = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]  # of a model, all with one row per example
INPUT = "input"  # the name of an input that has none
SCORES = "logits"  # the name under which models return their scores beside other values


def call_model(module: nn.Module, inputs: Inputs) -> Tensor:
    """Call a model with one tensor, with several in order, or with several by name; returns its scores."""
    args, kwargs = to_arguments(inputs)
    return find_scores(module(*args, **kwargs))


def to_arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The positional and the keyword arguments that a model is called with."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return ((inputs,) if isinstance(inputs, Tensor) else tuple(inputs)), {}


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


def move_tensors(inputs: Inputs, device: torch.device) -> Inputs:
    """The same inputs on a device."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=device.type != "cpu"), inputs)


def list_tensors(inputs: Inputs) -> list[Tensor]:
    """The tensors of inputs, in order; those with names in the order of their names."""
    return list(name_tensors(inputs).values())


def name_tensors(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors of inputs by name, as files and servers name them, in the order of `list_tensors`.

    >>> import torch
    >>> list(name_tensors((torch.zeros(1, 2), torch.zeros(1, 3)))), list(name_tensors({"mask": torch.zeros(1, 2)}))
    (['input_0', 'input_1'], ['mask'])
    """
    if isinstance(inputs, Tensor):
        return {INPUT: inputs}
    if isinstance(inputs, Mapping):
        return {name: inputs[name] for name in sorted(inputs)}
    return {f"{INPUT}_{number}": tensor for number, tensor in enumerate(inputs)}


def describe_inputs(inputs: Inputs) -> str:
    """The form of inputs in words, such as `one tensor`, `2 tensors` or `the tensors ids, mask`."""
    if isinstance(inputs, Tensor):
        return "one tensor"
    return f"the tensors {', '.join(sorted(inputs))}" if isinstance(inputs, Mapping) else f"{len(inputs)} tensors"


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


def split_rows(inputs: Inputs, size: int) -> Iterator[Inputs]:
    """Parts of at most `size` examples, in order; one empty part if there are none.

    >>> import torch
    >>> [count_rows(part) for part in split_rows(torch.zeros(5, 2), 2)]
    [2, 2, 1]
    """
    yield from (select_rows(inputs, slice(start, start + size)) for start in range(0, max(1, count_rows(inputs)), size))


def concatenate_rows(parts: Sequence[Inputs]) -> Inputs:
    """The examples of several inputs of the same form, one after another."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))  # type: ignore[arg-type]
    if isinstance(first, Mapping):
        return {name: torch.cat([part[name] for part in parts]) for name in first}  # type: ignore[call-overload,index]
    return tuple(torch.cat(tensors) for tensors in zip(*parts))  # type: ignore[arg-type]
