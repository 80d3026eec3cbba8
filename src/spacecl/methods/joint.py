"""Joint training on the data of all tasks at once: the upper bound, for which old data must be kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..data.targets import TARGET_KINDS, TargetKind
from ..data.task import Batch
from ..data.task_data import Data
from ..errors import DataError
from ..learning.context import TaskContext
from ..learning.core import Core
from ..learning.method import Learned, Method
from ..learning.objective import Objective
from ..learning.trainer import Loss, evaluate_with_loss
from ..options import options
from ..structure.calling import Inputs, call_model, concatenate_rows


@options
class Joint(Method):
    """With every new task, train one network on the data of all tasks so far, from the weights that the learner was given.

    Batches mix the tasks; each task has its own head, norms are shared. Data of earlier tasks must be available: the learner
    keeps the data that it learned from, and a loaded one gets them again by `learner.remember(task)`.

    >>> Joint().needs_data
    True
    """

    forgets: ClassVar[bool] = True
    target_kinds: ClassVar[Sequence[TargetKind]] = TARGET_KINDS
    needs_data: ClassVar[bool] = True

    def learn(self, core: Core, task: TaskContext) -> Learned:
        blueprint, trainer = core.blueprint, task.trainer
        parts = [*task.earlier, (task.train, task.valid)]
        objectives = [*task.earlier_objectives, task.objective]
        sizes = [*core.classes, task.classes]
        ends = torch.tensor(sizes).cumsum(0).tolist()
        spans = [slice(end - size, end) for end, size in zip(ends, sizes)]
        heads = core.channels.heads
        initial = core.memory or {name: tensor for name, tensor in blueprint.tensors().items() if name not in heads}
        module = blueprint.build(initial | blueprint.new_head(blueprint.tensors(), sum(sizes)))

        def make_loss(module: nn.Module) -> Loss:
            return loss

        def loss(wrapped: nn.Module, x: Inputs, y: Tensor) -> Tensor:
            outputs, value = call_model(wrapped, x), torch.zeros((), device=y.device)
            for number, (objective, span) in enumerate(zip(objectives, spans)):
                rows = y[:, 0] == number
                if bool(rows.any()):
                    own = objective.loss_of_prepared(outputs[rows, span], _unpack(y[rows, 1:], objective))
                    value = value + rows.float().mean() * own
            return value

        def validate(module: nn.Module) -> tuple[float, float]:
            scores = [
                evaluate_with_loss(module, valid, trainer.fabric, trainer.channels_last, objective, span)
                for (_, valid), objective, span in zip(parts, objectives, spans)
            ]
            counts = [len(valid) for _, valid in parts]
            score, error = (sum(n * value for n, value in zip(counts, values)) / sum(counts) for values in zip(*scores))
            return score, error

        pool = Pool([train for train, _ in parts], objectives)
        history = trainer.fit(module, pool, task.valid, make_loss=make_loss, validate=validate)
        learned = core.replace_weights(blueprint.extract_tensors(module), joint=True)
        return Learned(replace(learned, memory=dict(initial)), history)


class Pool:
    """The examples of several tasks, mixed. Each row of targets begins with the number of its task; zeros fill short ones."""

    def __init__(self, parts: Sequence[Data], objectives: Sequence[Objective]):
        loaders = [part.what for part in parts if part.loader is not None]
        if loaders:
            raise DataError(
                f"{'; '.join(loaders)}: joint training mixes the examples of all tasks, which it cannot do with a DataLoader. "
                "Give tensors, Images or the Dataset itself."
            )
        self.parts, self.objectives = parts, objectives
        self.width = max(_width(objective) for objective in objectives)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def steps(self, size: int) -> int:
        return -(-len(self) // size)

    def generators(self) -> list[torch.Generator]:
        return []

    def finish(self, x: Inputs) -> Inputs:
        return x

    def batches(self, size: int, order: torch.Generator | None = None) -> Iterator[Batch]:
        which = torch.cat([torch.full((len(part),), number) for number, part in enumerate(self.parts)])
        where = torch.cat([torch.arange(len(part)) for part in self.parts])
        for rows in torch.randperm(len(self), generator=order).split(size):
            batches = []
            for number in which[rows].unique().tolist():
                x, y = self.parts[number].rows(where[rows[which[rows] == number]])
                packed = torch.zeros(len(y), 1 + self.width)
                packed[:, 0] = number
                packed[:, 1 : 1 + _width(self.objectives[number])] = self.objectives[number].prepare(y).reshape(len(y), -1)
                batches.append((self.parts[number].finish(x), packed))
            yield concatenate_rows([x for x, _ in batches]), torch.cat([y for _, y in batches])


def _width(objective: Objective) -> int:
    """How many numbers a target has."""
    return 1 if objective.targets.kind == "classes" else objective.targets.outputs


def _unpack(targets: Tensor, objective: Objective) -> Tensor:
    """The prepared targets of one task in rows of a pool."""
    return targets[:, 0].long() if objective.targets.kind == "classes" else targets[:, : _width(objective)]
