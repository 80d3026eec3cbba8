"""What a method gets to learn one task with: checked data, the number of outputs, what they are for, and a trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.images import augment
from ..data.task_data import Data
from ..structure.calling import Inputs, count_rows, list_tensors, map_tensors, move_tensors, select_rows
from .objective import Objective
from .trainer import Trainer

ROWS = 100  # examples in a batch, where no gradients are computed or examples are small
LARGE = 8192  # numbers in an example, from which the activations of a batch may not fit beside everything else
PASSES = 8  # through the training examples, at most, where more are wanted than there are


@dataclass(frozen=True)
class TaskContext:
    """One task to be learned."""

    name: str
    train: Data
    valid: Data
    classes: int  # or labels, or values: the outputs of its head
    trainer: Trainer
    earlier: tuple[tuple[Data, Data], ...] = ()  # training and validation data of earlier tasks, for methods that need them
    earlier_objectives: tuple[Objective, ...] = ()  # of all earlier tasks

    @property
    def objective(self) -> Objective:
        """What the task's network is trained for and judged by."""
        return self.trainer.objective

    def loss(self, module: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """The task's loss on a batch: what `trainer.fit` minimizes by default, and what methods add to."""
        return self.trainer.loss(module, x, y)

    def examples(self, count: int, rows: int = ROWS) -> Iterator[Inputs]:
        """Inputs of `count` random training examples in batches of `rows`; of several processes, each gets its share.

        Where there are fewer, they come again with random changes if the recipe has some, up to `PASSES` times.
        """
        order = torch.Generator().manual_seed(self.trainer.seed + 1)
        fabric, how, seen = self.trainer.fabric, self.trainer.recipe.augment, 0
        for number in range(1 if how == "none" else PASSES):
            for x, _ in self.train.batches(rows, order):
                part = select_rows(select_rows(x, slice(count - seen)), slice(fabric.global_rank, None, fabric.world_size))
                if count_rows(part):
                    part = self.train.finish(move_tensors(part, fabric.device))
                    yield map_tensors(lambda tensor: augment(tensor, how), part) if number else part
                seen += count_rows(x)
                if seen >= count:
                    return

    def examples_of_step(self, count: int, like: Inputs) -> Iterator[Inputs]:
        """As `examples`, in batches that fit: of examples as large as `like`, no more than in a step of training."""
        size = sum(tensor[0].numel() for tensor in list_tensors(like))
        return self.examples(count, min(ROWS, self.trainer.recipe.batch_size) if size > LARGE else ROWS)
