"""What passes between the learner and a method: the job of learning one task, and the record of what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from .tasks import Data
from .training import Trainer


@dataclass(frozen=True)
class Job:
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


@dataclass(frozen=True)
class TaskRecord:
    """What learning one task came to. Layers go by their dotted names; all values can be written as JSON."""

    name: str
    classes: int
    class_names: tuple[str, ...] | None
    accuracy: float  # of the committed network, on the validation data
    digest: str  # of every bit of the task's network
    widths: Mapping[str, int]  # output channels that the task's network has in each layer
    parameters: int  # of the task's network, its head included
    size: float  # of all networks so far, as a share of the full backbone
    explained: Mapping[str, float] = field(default_factory=dict)  # share of the residual's variance, as the threshold has it
    core_ratio: Mapping[str, float] = field(default_factory=dict)  # share of it by the core alone
    samples: Mapping[str, int] = field(default_factory=dict)  # rows that the analysis of each layer rests on
    spectrum: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what the analysis saw in each layer
    used: Mapping[str, int] = field(default_factory=dict)  # output channels of each layer that any task so far has
    full: tuple[str, ...] = ()  # layers that had no free channel left when the task began
    grown: bool = False  # whether the network was made larger for this task
    pictures: Mapping[str, Any] | None = None  # how pictures become inputs (Images.told), where it was taught with Images
    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase
    history: tuple[Mapping[str, Any], ...] = ()  # a row per epoch

    @property
    def class_labels(self) -> tuple[str, ...]:
        """What the classes are called: their numbers, where they have no names."""
        return self.class_names or tuple(map(str, range(self.classes)))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> TaskRecord:
        names = values["class_names"]
        fixed = {"class_names": None if names is None else tuple(names)}
        return TaskRecord(**{**values, **fixed, "full": tuple(values["full"]), "history": tuple(values["history"])})


def told(history: Iterable[Mapping[str, Any]], **seconds: float) -> dict[str, Any]:
    """Epochs as fields of a TaskRecord: the rows, and the seconds of every phase, whichever process trained them."""
    rows, spent = tuple(history), dict(seconds)
    for row in rows:
        spent[row["phase"]] = spent.get(row["phase"], 0.0) + row["seconds"]
    return {"history": rows, "seconds": spent}
