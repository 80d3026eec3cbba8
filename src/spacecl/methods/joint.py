"""Joint training: one network on the data of all tasks at once. Not continual learning, but its ceiling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.task import Batch
from ..data.task_data import Data
from ..errors import DataError
from ..learning.core import Core
from ..learning.recipe import Recipe
from ..learning.record import TaskContext, told
from ..learning.trainer import evaluate_with_loss
from ..structure.channels import Channels


@dataclass(frozen=True)
class Joint:
    """With every new task, train one network on the data of all tasks so far, from the weights that the learner was given.

    Batches mix the tasks; each has its own head, norms are shared. Data of earlier tasks must be at hand: the learner
    keeps what it was given to learn, and one that was loaded is given it again with `learner.remember(task)`.

    >>> Joint().needs_data
    True
    """

    forgets: ClassVar[bool] = True
    needs_data: ClassVar[bool] = True

    def check(self, channels: Channels) -> None:
        pass

    def plan(self, recipe: Recipe, number: int) -> dict[str, int]:
        return {"train": recipe.epochs}

    def learn(self, core: Core, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        blueprint, fabric = core.blueprint, job.trainer.fabric
        parts = [*job.before, (job.train, job.valid)]
        sizes = [*core.classes, job.classes]
        ends = torch.tensor(sizes).cumsum(0).tolist()
        spans = [slice(end - size, end) for end, size in zip(ends, sizes)]
        heads = core.channels.heads
        given = core.memory or {name: tensor for name, tensor in blueprint.tensors().items() if name not in heads}
        module = blueprint.build(given | blueprint.new_head(blueprint.tensors(), sum(sizes)))
        together = torch.block_diag(*(torch.ones(size, size) for size in sizes)).bool().to(fabric.device)  # labels of one task

        def loss(running: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            logits = running(x)
            return F.cross_entropy(logits.masked_fill(~together[y], float("-inf")), y)

        def validate(module: nn.Module) -> tuple[float, float]:
            found = [
                evaluate_with_loss(module, valid, fabric, job.trainer.channels_last, span)
                for (_, valid), span in zip(parts, spans)
            ]
            counts = [len(valid) for _, valid in parts]
            accuracy, error = (sum(n * value for n, value in zip(counts, values)) / sum(counts) for values in zip(*found))
            return accuracy, error

        pool = Pool([train for train, _ in parts], [span.start for span in spans])
        history = job.trainer.fit(module, pool, job.valid, loss=loss, validate=validate)
        return replace(core.rewrite(blueprint.extract_tensors(module), together=True), memory=dict(given)), told(history)


class Pool:
    """The examples of several tasks, mixed; labels are numbered on from task to task."""

    def __init__(self, parts: Sequence[Data], first_labels: Sequence[int]):
        loaders = [part.what for part in parts if part.loader is not None]
        if loaders:
            raise DataError(
                f"{'; '.join(loaders)}: joint training mixes the examples of all tasks, which a DataLoader does not let it. "
                "Give tensors, Images or the Dataset itself."
            )
        self.parts, self.first_labels = parts, first_labels

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def steps(self, size: int) -> int:
        return -(-len(self) // size)

    def generators(self) -> list[torch.Generator]:
        return []

    def finish(self, x: Tensor) -> Tensor:
        return x

    def batches(self, size: int, order: torch.Generator | None = None) -> Iterator[Batch]:
        which = torch.cat([torch.full((len(part),), number) for number, part in enumerate(self.parts)])
        where = torch.cat([torch.arange(len(part)) for part in self.parts])
        for rows in torch.randperm(len(self), generator=order).split(size):
            found = []
            for number in which[rows].unique().tolist():
                x, y = self.parts[number].rows(where[rows[which[rows] == number]])
                found.append((self.parts[number].finish(x), y.to(torch.int64) + self.first_labels[number]))
            yield torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])
