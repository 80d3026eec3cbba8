"""Tasks: a name and data, in the form users have it; checked whole before any training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import DataError, TaskError
from ..validation import find_name_problem, is_integer, show
from .images import Images

INFER: Final = "infer"  # in place of a task's name: find out which it is
CLASSES = 1_000_000  # that a task may have: every one is a row of its head
Source = tuple[Any, Any] | Images | Dataset | DataLoader
Batch = tuple[Tensor, Tensor]


def check_name(name: Any) -> None:
    """A task's name is text that can be shown, and not the word that asks to infer the task."""
    problem = find_name_problem(name)
    if problem:
        raise DataError(f"A task needs a name, as text; got {show(name)}: {problem}.")
    if name == INFER:
        raise TaskError(f"No task can be named {INFER!r}: the word asks to infer the task. Give this one another name.")


@dataclass(frozen=True)
class Task:
    """One classification task: a name, training data and validation data.

    Data is a pair `(x, y)` of tensors or arrays, `Images` as bytes, a `Dataset` of pairs, or a `DataLoader` of batches of
    them; labels are integers from 0. Without `valid`, a tenth of `train` is set aside. `classes` is the number of classes
    or their names; by default one more than the largest label. `test` is for those who measure: learning never looks at it.

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

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.classes is not None and not is_integer(self.classes):
            object.__setattr__(self, "classes", check_class_names(self.classes, self.name))
        count = self.class_count(0)
        if not 1 <= count <= CLASSES:
            raise DataError(f"Task {self.name!r}: classes={show(self.classes)}, but a task has 1 to {CLASSES:,} classes.")

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.classes if isinstance(self.classes, tuple) else None

    def class_count(self, largest: int) -> int:
        """How many classes the task has, given the largest label in its data."""
        if self.classes is None:
            return largest + 1
        return len(self.classes) if isinstance(self.classes, Sequence) else int(self.classes)


def check_class_names(classes: Any, task: str) -> tuple[str, ...]:
    """The names of a task's classes, as text; they tell the classes apart, so none may be there twice."""
    listed = isinstance(classes, Iterable) and not isinstance(classes, (str, bytes, bool, Mapping, Set))
    if not listed or getattr(classes, "ndim", 1) != 1:
        raise DataError(f"Task {task!r}: classes={show(classes)} is neither a number of classes nor a list of their names.")
    names = list(islice(classes, CLASSES + 1))
    wrong = [f"class {number}, {show(name)}: {why}" for number, name in enumerate(names) if (why := find_name_problem(name))]
    if not wrong:
        wrong = [f"{name!r} is there {count} times" for name, count in Counter(names).items() if count > 1]
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise DataError(f"Task {task!r}: these names of classes cannot be used: {'; '.join(wrong[:5])}{more}.")
    return tuple(map(str, names))
