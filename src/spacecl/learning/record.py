"""What passes between the learner and a method: the job of learning one task, and the record of what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from ..data.images import Preprocessing
from ..data.task import check_class_names, check_name
from ..data.task_data import Data
from ..documents import Count, Fraction, NonNegative, Sha256
from ..errors import DataError
from .checkpoints import Epoch
from .trainer import Trainer


@dataclass(frozen=True)
class TaskContext:
    """One task to be learned: checked data, the number of classes, and the means to train."""

    name: str
    train: Data
    valid: Data
    classes: int
    trainer: Trainer
    before: tuple[tuple[Data, Data], ...] = ()  # training and validation data of earlier tasks, for methods that need them

    def examples(self, count: int) -> Iterator[Tensor]:
        """Inputs of random training examples in batches, this process's share of them."""
        order = torch.Generator().manual_seed(self.trainer.seed + 1)
        fabric, seen = self.trainer.fabric, 0
        for x, _ in self.train.batches(100, order):
            part = x[: count - seen][fabric.global_rank :: fabric.world_size]
            if len(part):
                yield self.train.finish(part.to(fabric.device))
            seen += len(x)
            if seen >= count:
                return


Picture = Preprocessing


@dataclass(frozen=True)
class TaskRecord:
    """What learning one task came to. Layers go by their dotted names; all values can be written as JSON."""

    name: str
    classes: Annotated[int, Field(ge=1, lt=2**31)]
    class_names: tuple[str, ...] | None
    accuracy: Fraction  # of the committed network, on the validation data
    digest: Sha256  # of every bit of the task's network
    widths: Mapping[str, Count]  # output channels that the task's network has in each layer
    parameters: Count  # of the task's network, its head included
    size: NonNegative  # of all networks so far, as a share of the full backbone
    explained: Mapping[str, float] = field(default_factory=dict)  # share of the residual's variance, as the threshold has it
    core_ratio: Mapping[str, float] = field(default_factory=dict)  # share of it by the core alone
    samples: Mapping[str, int] = field(default_factory=dict)  # rows that the analysis of each layer rests on
    spectrum: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what the analysis saw in each layer
    used: Mapping[str, Count] = field(default_factory=dict)  # output channels of each layer that any task so far has
    full: tuple[str, ...] = ()  # layers that had no free channel left when the task began
    grown: bool = False  # whether the network was made larger for this task
    pictures: Preprocessing | None = None  # how pictures become inputs, if the task was taught with Images
    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase
    history: tuple[Epoch, ...] = ()  # a row per epoch

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.class_names is not None:
            check_class_names(self.class_names, self.name)
            if len(self.class_names) != self.classes:
                raise DataError(f"Task {self.name!r} has {self.classes} classes, but {len(self.class_names)} names for them.")

    @property
    def class_labels(self) -> tuple[str, ...]:
        """What the classes are called: their numbers, where they have no names."""
        return self.class_names or tuple(map(str, range(self.classes)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def told(history: Iterable[Mapping[str, Any]], **seconds: float) -> dict[str, Any]:
    """Epochs as fields of a TaskRecord: the rows, and the seconds of every phase, whichever process trained them."""
    rows, spent = tuple(history), dict(seconds)
    for row in rows:
        spent[row["phase"]] = spent.get(row["phase"], 0.0) + row["seconds"]
    return {"history": rows, "seconds": spent}
