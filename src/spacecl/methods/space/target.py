"""From what a user asks for to one level for all layers: a tolerance of the answers, or a size of the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ...data.task_data import Data
from ...learning.analysis import Comparison
from ...learning.context import TaskContext
from ...learning.trainer import Trainer
from ...structure.calling import move_tensors
from ...structure.memory_format import run_model
from .selection import Ranking

HELD_OUT = 200  # validation examples below which training examples are held out, too
_COMPARED = 2000  # examples that networks are compared on, at most
_NOISE = 0.02  # nats: answers that tell less than this apart are noise, which no network need repeat
_RANGE = 1e9  # between the highest and the lowest level that is tried


class HeldOut:
    """Held-out examples, with the outputs of the full network for them.

    `information` is what its answers tell apart, in nats: their mean divergence from the mean answer.
    """

    def __init__(self, full: nn.Module, parts: Sequence[Data], trainer: Trainer):
        self._parts, self._trainer = parts, trainer
        self.examples = sum(min(len(data), _COMPARED) for data in parts)
        self._outputs, self._targets = self._run(full)
        self.information = trainer.objective.answers.information(self._outputs)

    def compare(self, network: nn.Module) -> Comparison:
        """Compare a network's answers with those of the full one."""
        objective = self._trainer.objective
        outputs, targets = self._run(network)
        divergence = float(objective.answers.divergence(outputs, self._outputs))
        scores = [objective.score(rows, targets) for rows in (outputs, self._outputs)]
        values = torch.tensor([divergence, *scores], dtype=torch.float64)
        nats, score, full_score = self._trainer.fabric.broadcast(values).tolist()
        lost = max(0.0, nats) / max(self.information, _NOISE)
        result: Comparison = {"lost": lost, "divergence": max(0.0, nats), "score": score, "full_score": full_score}
        return result | {"accuracy": score, "full_accuracy": full_score} if objective.is_accuracy else result

    @torch.no_grad()
    def _run(self, network: nn.Module) -> tuple[Tensor, Tensor]:
        """A network's outputs, and the prepared targets."""
        training, fabric = network.training, self._trainer.fabric
        network.to(fabric.device).eval()
        outputs, targets = [], []
        for data in self._parts:
            count = 0
            for x, y in data.batches(250, torch.Generator().manual_seed(self._trainer.seed)):
                x = data.finish(move_tensors(x, fabric.device))
                outputs.append(run_model(network, x, self._trainer.channels_last).float().cpu())
                targets.append(self._trainer.objective.prepare(y.cpu()))
                count += len(y)
                if count >= _COMPARED:
                    break
        network.train(training)
        return torch.cat(outputs), torch.cat(targets)


def split_examples(task: TaskContext) -> tuple[Data, list[Data]]:
    """The training examples to analyze while a level is found, and the examples to compare networks on.

    These are the validation examples. If they are few, half of the training examples are held out, too.
    """
    if len(task.valid) >= HELD_OUT or task.train.loader is not None or len(task.train) < 4:
        return task.train, [task.valid]
    rest, half = task.train.split(0.5, torch.Generator().manual_seed(task.trainer.seed))
    return rest, [task.valid, half]


def find_level(rankings: Sequence[Ranking], accept: Callable[[float], bool], steps: int = 10) -> tuple[float, float]:
    """Two levels next to each other, of which the lower is accepted and the higher is not, by bisection of logarithms.

    The level is what a parameter must be worth: every layer keeps the channels that lower the loss by more for each of their
    parameters. Both are the highest level if that is accepted.
    """
    highest = max((ranking.highest_level for ranking in rankings), default=0.0)
    if not highest > 0 or accept(highest):
        return highest, highest
    low, high = math.log(highest / _RANGE), math.log(highest)
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if accept(math.exp(middle)) else (low, middle)
    return math.exp(low), math.exp(high)


def size_so_far(size: float, number: int, budget: int) -> float:
    """How much of the network the first `number` of `budget` tasks may use, so that all of them use `size`.

    Later tasks find more in the core, and need fewer new weights: shares fall evenly, from five parts for the first task to
    three for the last.

    >>> [round(size_so_far(0.4, number, budget=4), 3) for number in (1, 2, 3, 4)]
    [0.125, 0.233, 0.325, 0.4]
    """
    return size * number * (5 - (number - 1) / (budget - 1)) / (4 * budget) if number < budget else size
