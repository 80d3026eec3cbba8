"""Inputs and targets in the forms that users have them: from examples and batches to tensors, and what a model can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from ..errors import DataError, first_line
from ..structure.blueprint import describe_unsupported
from ..structure.calling import Inputs, count_rows, describe_inputs, name_tensors

Keys = tuple[str | tuple[str, ...], str]  # the entries of a dictionary that are the inputs, and the one that is the target
TARGETS = ("label", "labels", "target", "targets")  # names by which the target is known without keys
PICTURES = (
    "the inputs are pictures (PIL images), which a network cannot read. Give the dataset a transform that makes tensors of one "
    "size, such as torchvision's ToTensor(), or give the pictures as spacecl.Images."
)
TEXT = (
    "the inputs are text, which a network cannot read. Turn it into whole numbers, as many for each example, for instance with "
    "a tokenizer in a collate function."
)
TEXT_LABELS = "the labels are text. Number the classes from 0, and name them with classes=[...]."


def split_pair(value: Any, keys: Keys | None = None) -> tuple[Any, Any]:
    """The inputs and the target in an example or a batch: a pair, or a dictionary with the entries that `keys` names.

    Without keys, a dictionary must have two entries, one of which is named label, labels, target or targets.

    >>> split_pair({"image": 1, "label": 2}), split_pair({"ids": 1, "mask": 2, "y": 3}, (("ids", "mask"), "y"))
    ((1, 2), ({'ids': 1, 'mask': 2}, 3))
    """
    if isinstance(value, Mapping):
        inputs, target = keys or _guess_keys(value)
        missing = [name for name in ((inputs,) if isinstance(inputs, str) else inputs) if name not in value]
        missing += [] if target in value else [target]
        if missing:
            raise DataError(f"there is no entry {missing[0]!r}; the entries are {_list(value)}. Correct keys=...")
        return (value[inputs] if isinstance(inputs, str) else {name: value[name] for name in inputs}), value[target]
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        count = f"{len(value)} values" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"
        raise DataError(f"a batch holds {count}; expected a pair (x, y), where x may be a tuple or a dictionary of inputs.")
    return value[0], value[1]


def _guess_keys(value: Mapping[str, Any]) -> Keys:
    targets = [name for name in value if name in TARGETS]
    others = [name for name in value if name not in TARGETS]
    if len(targets) != 1 or len(others) != 1:
        raise DataError(
            f"the entries are {_list(value)}. Say which are the inputs and which is the target, such as "
            'Task(..., keys=("pixel_values", "label")), or keys=(("input_ids", "attention_mask"), "label") for several inputs.'
        )
    return others[0], targets[0]


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(map(str, names)) or "none"


def collate_examples(examples: Sequence[Any], keys: Keys | None = None) -> tuple[Any, Any]:
    """Put single examples into a batch: a pair of inputs and targets, with tensors where that is possible."""
    pairs = [split_pair(example, keys) for example in examples]
    try:
        return _stack([x for x, _ in pairs]), _stack([y for _, y in pairs])
    except DataError:
        raise
    except (TypeError, ValueError, RuntimeError, KeyError, IndexError) as error:
        hint = "All need the same size; otherwise give a function that makes batches, with collate=..."
        raise DataError(f"the examples cannot be put into one batch: {first_line(error)}. {hint}") from error


def _stack(values: Sequence[Any]) -> Any:
    first = values[0]
    if is_picture(first):
        raise DataError(PICTURES)
    if isinstance(first, Mapping):
        return {name: _stack([value[name] for value in values]) for name in first}
    if isinstance(first, (tuple, list)):
        if any(isinstance(part, (Tensor, np.ndarray)) or is_picture(part) for part in first):  # several inputs
            return tuple(_stack(parts) for parts in zip(*values, strict=True))
        return torch.stack([torch.as_tensor(value) for value in values])
    return default_collate(list(values))


def is_picture(value: Any) -> bool:
    """Whether a value is an image of Pillow, which need not be installed."""
    return any(base.__module__.partition(".")[0] == "PIL" for base in type(value).__mro__)


def is_text(values: Any) -> bool:
    """Whether values are text, one by one or in a list."""
    return isinstance(values, str) or (isinstance(values, (list, tuple)) and bool(values) and is_text(values[0]))


def to_batch(batch: Any, keys: Keys | None = None) -> tuple[Any, Any]:
    """The inputs and targets of a batch that the user's own code has made, with tensors where that is possible."""
    x, y = split_pair(batch, keys)
    if isinstance(x, Mapping):
        x = {name: _convert(part) for name, part in x.items()}
    elif isinstance(x, (tuple, list)) and x and all(isinstance(part, (Tensor, np.ndarray)) for part in x):
        x = tuple(map(_convert, x))  # default_collate makes lists of tuples
    return _convert(x), _convert(y)


def _convert(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else value


def to_tensor(values: Any, what: str) -> Tensor:
    """Convert an array to a plain tensor, or raise an error that begins with `what`."""
    if isinstance(values, (list, tuple)) and values and is_picture(values[0]):
        raise DataError(f"{what.partition(':')[0]}: {PICTURES}")
    if isinstance(values, Sequence) and not isinstance(values, (list, tuple, str)):
        values = values[:]  # a column of a Hugging Face dataset, which is read then
    if is_text(values):
        raise DataError(f"{what.partition(':')[0]}: {TEXT_LABELS if what.endswith('the labels') else TEXT}")
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DataError(f"{what} cannot be made a tensor: {error}") from error
    kind = describe_unsupported(tensor)
    if kind:
        raise DataError(f"{what} are {kind}. Give plain tensors of numbers.")
    return tensor


def to_inputs(values: Any, what: str) -> Inputs:
    """Convert an array, or a tuple or dictionary of arrays, to the inputs of a model."""
    if isinstance(values, Mapping):
        return {name: to_tensor(value, f"{what}, {name!r},").detach() for name, value in values.items()}
    if isinstance(values, tuple) and values and all(hasattr(value, "shape") for value in values):
        return tuple(to_tensor(value, f"{what}, number {number},").detach() for number, value in enumerate(values))
    return to_tensor(values, what).detach()


def check_input(x: Any, example: Inputs, first: int | Tensor = 0) -> str | None:
    """Say what is wrong with a batch of inputs for a model that takes `example`, or return None.

    `first` is the number of the first row, or has the numbers of all rows, for messages.
    """
    if isinstance(example, Tensor):
        if not isinstance(x, Tensor) and _is_several(x):
            return f"the model's example input is one tensor, but the inputs are {describe_inputs(x)}."
        return _check_tensor(x, example, "inputs", "the input", first)
    if not _is_several(x):
        if not isinstance(x, Tensor):
            return f"inputs must be {describe_inputs(example)}, as the model's example input; got {type(x).__name__}."
        return f"the model's example input is {describe_inputs(example)}, but the inputs are one tensor."
    if isinstance(x, Mapping) != isinstance(example, Mapping) or name_tensors(x).keys() != name_tensors(example).keys():
        return f"the model's example input is {describe_inputs(example)}, but the inputs are {describe_inputs(x)}."
    given = name_tensors(x)
    for name, tensor in name_tensors(example).items():
        problem = _check_tensor(given[name], tensor, f"input {name!r}", f"input {name!r}", first)
        if problem:
            return problem
        if len(given[name]) != count_rows(x):
            return f"input {name!r} has {len(given[name])} rows, but {next(iter(given))!r} has {count_rows(x)}."
    return None


def _is_several(x: Any) -> bool:
    return isinstance(x, (tuple, Mapping)) and len(x) > 0


def _check_tensor(x: Any, example: Tensor, subject: str, one: str, first: int | Tensor) -> str | None:
    are, have = ("are", "have") if subject == "inputs" else ("is", "has")
    if is_picture(x):
        return PICTURES
    if is_text(x):
        return TEXT
    if not isinstance(x, Tensor):
        return f"{subject} must be {'tensors' if are == 'are' else 'a tensor'}; got {type(x).__name__}. {_CONVERT}"
    kind = describe_unsupported(x)
    if kind:
        return f"{subject} {are} {kind}. Give plain tensors of numbers."
    if x.shape[1:] != example.shape[1:] or not x.dim():
        return f"{subject} {have} shape {tuple(x.shape[1:])}, but the model's example input has {tuple(example.shape[1:])}."
    same_kind = (x.is_floating_point(), x.dtype == torch.bool) == (example.is_floating_point(), example.dtype == torch.bool)
    if not same_kind:
        return f"{subject} {are} {x.dtype}, but the model's example input is {example.dtype}. Convert and scale them."
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x.flatten(1) if x.dim() > 1 else x[:, None]).all(1)).nonzero()[0])
        return f"{one} in row {name_row(row, first)} holds NaN or infinite values. Remove or repair it."
    return None


def name_row(row: int, first: int | Tensor) -> int:
    """The number of a row of a batch in messages; `first` is that of the first row, or has the numbers of all rows."""
    return first + row if isinstance(first, int) else int(first[row])


_CONVERT = "Convert them, for instance with torch.as_tensor."
