"""Tasks: a name and the data to learn, in any form that users have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import ConfigError, DataError, TaskError
from ..structure.calling import Inputs
from ..validation import find_name_problem, is_integer, show
from .datasets import Indexed
from .images import Images
from .inputs import Keys
from .targets import TARGET_KINDS, TargetKind

INFER: Final = "infer"  # in place of a task's name: infer which task an input belongs to
CLASSES = 1_000_000  # the most that a task may have: each is a row of its head
Source = tuple[Any, Any] | Mapping[str, Any] | Images | Dataset | Indexed | DataLoader
Batch = tuple[Inputs, Tensor]


def check_name(name: Any) -> None:
    """Raise an error unless a task's name is printable text and not the word that asks to infer the task."""
    problem = find_name_problem(name)
    if problem:
        raise DataError(f"A task needs a name, as text; got {show(name)}: {problem}.")
    if name == INFER:
        raise TaskError(f"No task can be named {INFER!r}: the word asks to infer the task. Give this one another name.")


@dataclass(frozen=True)
class Task:
    """One task: a name, training data and validation data.

    Data is a pair `(x, y)` of tensors or arrays, `Images`, a dataset of pairs, or a `DataLoader` of batches of pairs. A dataset
    is anything with a length and examples by number. For a model with several inputs, `x` is a tuple or a dictionary of them.
    In place of a pair there may be a dictionary: see `keys`. docs/data.md has examples.

    What is predicted follows from `y`: whole numbers from 0, of shape (examples,), are *classes*; zeros and ones of shape
    (examples, labels) are *labels*, of which an example may have any number; fractions of shape (examples,) or (examples,
    values) are *values*, in any unit. docs/targets.md has examples.

    Parameters
    ----------
    name : what to call the task.
    train : training data.
    valid : validation data. Default: a tenth of `train`, which is then not trained on.
    classes : the number of classes, or their names. Default: the largest label plus one. For labels and values, their names.
    test : test data for evaluation. Learning never uses it.
    keys : the entries of a dictionary that are the inputs and the target, such as `("pixel_values", "label")`; several inputs
        are a tuple of names, and go to the model by name. Not needed for two entries, one of which is named label, labels,
        target or targets.
    collate : a function from a list of examples of a dataset to a batch, in place of stacking them.
    valid_transform : what to use in place of the dataset's attribute `transform` in the validation data that are split off
        `train`: training transforms are random, and validation should not be.
    target : "classes", "labels" or "values", where `y` leaves it open, as whole numbers do that are to be predicted as values.
    loss : a function of outputs and targets that returns the mean loss of a batch. Default: cross-entropy, binary
        cross-entropy of each label, or the mean squared error of standardized values.
    metric : a function of outputs and targets that returns a number; higher is better. It chooses the best epoch, and its name
        stands in records. Default: accuracy, mean average precision, or R².

    A loss and a metric get logits, or values in your unit, and targets of the same shape as `y`.

    >>> import torch
    >>> x, y = torch.randn(100, 8), torch.arange(100) % 3
    >>> Task("threes", (x, y)).name
    'threes'
    """

    name: str
    train: Source
    valid: Source | None = None
    classes: int | Sequence[str] | None = None
    test: Source | None = None
    keys: Keys | None = None
    collate: Callable[[list[Any]], Any] | None = None
    valid_transform: Callable[[Any], Any] | None = None
    target: TargetKind | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    metric: Callable[[Tensor, Tensor], float] | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        check_reading(self.keys, self.collate, f"Task {self.name!r}")
        if self.valid_transform is not None and (self.valid is not None or not callable(self.valid_transform)):
            raise ConfigError(
                f"Task {self.name!r}: valid_transform is a function for validation data that are split off the training data. "
                "Give it, or validation data with valid=..., whose own transform is used."
            )
        if self.classes is not None and not is_integer(self.classes):
            object.__setattr__(self, "classes", check_class_names(self.classes, self.name))
        if self.target is not None and self.target not in TARGET_KINDS:
            raise DataError(f"Task {self.name!r}: target={show(self.target)} must be one of {', '.join(TARGET_KINDS)}.")
        for name, function in (("loss", self.loss), ("metric", self.metric)):
            if function is not None and not callable(function):
                raise DataError(f"Task {self.name!r}: {name}={show(function)} must be a function of outputs and targets.")
        count = self.class_count(0)
        if not 1 <= count <= CLASSES:
            raise DataError(f"Task {self.name!r}: classes={show(self.classes)}, but a task has 1 to {CLASSES:,} classes.")

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of the classes, if they were given."""
        return self.classes if isinstance(self.classes, tuple) else None

    def class_count(self, largest: int) -> int:
        """Return the number of classes, given the largest label in the data."""
        if self.classes is None:
            return largest + 1
        return len(self.classes) if isinstance(self.classes, Sequence) else int(self.classes)


def check_reading(keys: Any, collate: Any, what: str) -> None:
    """Raise an error unless keys and a collate function are of the right form."""
    if keys is not None:
        parts = list(keys) if isinstance(keys, (tuple, list)) else []
        names = [*(parts[0] if len(parts) == 2 and isinstance(parts[0], (tuple, list)) else parts[:1]), *parts[1:]]
        if len(parts) != 2 or len(names) < 2 or not all(isinstance(name, str) for name in names):
            raise ConfigError(
                f"{what}: keys={show(keys)} must name the inputs and the target, such as ('image', 'label') or "
                "(('ids', 'mask'), 'label')."
            )
    if collate is not None and not callable(collate):
        raise ConfigError(f"{what}: collate={show(collate)} must be a function from a list of examples to a batch.")


def check_class_names(classes: Any, task: str) -> tuple[str, ...]:
    """Return the names of a task's classes as a tuple of text, or raise an error that lists all problems with them."""
    is_list = isinstance(classes, Iterable) and not isinstance(classes, (str, bytes, bool, Mapping, Set))
    if not is_list or getattr(classes, "ndim", 1) != 1:
        raise DataError(f"Task {task!r}: classes={show(classes)} is neither a number of classes nor a list of their names.")
    names = list(islice(classes, CLASSES + 1))
    problems = [f"class {number}, {show(name)}: {why}" for number, name in enumerate(names) if (why := find_name_problem(name))]
    if not problems:
        problems = [f"{name!r} is there {count} times" for name, count in Counter(names).items() if count > 1]
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise DataError(f"Task {task!r}: these names of classes cannot be used: {'; '.join(problems[:5])}{more}.")
    return tuple(map(str, names))
