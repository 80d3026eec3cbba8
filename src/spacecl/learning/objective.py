"""What a task's outputs mean: its loss and metric, the answers in outputs, and how the answers of two networks compare.

There are three kinds of targets, each a class here: classes (softmax), labels (one sigmoid for each) and values (a normal
distribution around each output, whose standard deviation is that of the targets themselves).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.targets import Scaling, TargetKind, Targets
from ..data.task import Task
from ..data.task_data import Data
from ..errors import ConfigError, user_code_errors
from ..validation import show
from .metrics import ACCURACY, accuracy, mean_average_precision, r2
from .recipe import Recipe

OwnLoss = Callable[[Tensor, Tensor], Tensor]  # of outputs and targets; returns the mean over the examples
Metric = Callable[[Tensor, Tensor], float]  # of outputs and targets; higher is better
_SAMPLES = 10_000  # examples, at most, whose targets are counted or measured where each has to be read


class Answers(Protocol):
    """What outputs say about targets of one kind. Outputs have the shape (rows, outputs)."""

    @property
    def metric(self) -> tuple[str, Metric]:
        """The metric, with its name."""

    def prepare(self, y: Tensor) -> Tensor:
        """Targets as the loss and the metric read them."""

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None, smoothing: float, reduction: str) -> Tensor:
        """The loss on prepared targets."""

    def expect(self, outputs: Tensor, smoothing: float) -> Tensor:
        """What the outputs expect of the target, (rows, outputs); `smoothing` is a share of knowing nothing."""

    def draw(self, expected: Tensor, generator: torch.Generator) -> Tensor:
        """Draw targets of the same shape from expectations."""

    def divergence(self, outputs: Tensor, reference: Tensor, temperature: float = 1.0) -> Tensor:
        """How much the answers in outputs differ from those in a reference, in nats: the mean over the rows."""

    def information(self, outputs: Tensor) -> float:
        """What the answers tell apart, in nats: their mean divergence from the mean answer."""

    def energy(self, outputs: Tensor) -> Tensor:
        """How confident the answer to each row is, (rows,), on any scale."""

    def predict(self, outputs: Tensor) -> Tensor:
        """The most probable targets."""


class ClassAnswers:
    """One of several classes: softmax and cross-entropy."""

    metric = ACCURACY, accuracy

    def prepare(self, y: Tensor) -> Tensor:
        return y.to(torch.int64)

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None, smoothing: float, reduction: str) -> Tensor:
        weight = None if weights is None else weights.to(outputs)
        return F.cross_entropy(outputs, y, weight, label_smoothing=smoothing, reduction=reduction)

    def expect(self, outputs: Tensor, smoothing: float) -> Tensor:
        even = 1 / outputs.shape[1]
        return ((1 - smoothing) * outputs.softmax(1) + smoothing * even).nan_to_num(nan=even)

    def draw(self, expected: Tensor, generator: torch.Generator) -> Tensor:
        labels = torch.multinomial(expected, 1, generator=generator)
        return torch.zeros_like(expected).scatter_(1, labels, 1.0)

    def divergence(self, outputs: Tensor, reference: Tensor, temperature: float = 1.0) -> Tensor:
        logs, reference_logs = (F.log_softmax(logits.float() / temperature, 1) for logits in (outputs, reference))
        return F.kl_div(logs, reference_logs, reduction="batchmean", log_target=True)

    def information(self, outputs: Tensor) -> float:
        logs = outputs.float().log_softmax(1)
        mean = logs.logsumexp(0, keepdim=True) - math.log(len(logs))
        return float((logs.exp() * (logs - mean)).sum(1).mean())

    def energy(self, outputs: Tensor) -> Tensor:
        return outputs.double().logsumexp(1)

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)


class LabelAnswers:
    """Any number of several labels: a sigmoid and a binary cross-entropy for each."""

    metric = "mean average precision", mean_average_precision

    def prepare(self, y: Tensor) -> Tensor:
        return y.to(torch.float32)

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None, smoothing: float, reduction: str) -> Tensor:
        weight = None if weights is None else weights.to(outputs)
        y = (1 - smoothing) * y.to(outputs.dtype) + smoothing / 2
        value = F.binary_cross_entropy_with_logits(outputs, y, pos_weight=weight, reduction=reduction)
        return value / outputs.shape[1] if reduction == "sum" else value

    def expect(self, outputs: Tensor, smoothing: float) -> Tensor:
        return ((1 - smoothing) * outputs.sigmoid() + smoothing / 2).nan_to_num(nan=0.5)

    def draw(self, expected: Tensor, generator: torch.Generator) -> Tensor:
        return torch.bernoulli(expected, generator=generator)

    def divergence(self, outputs: Tensor, reference: Tensor, temperature: float = 1.0) -> Tensor:
        outputs, reference = outputs.float() / temperature, reference.float() / temperature
        nats = torch.zeros(len(outputs), device=outputs.device)
        for sign in (1, -1):  # yes, and no
            logs, reference_logs = F.logsigmoid(sign * outputs), F.logsigmoid(sign * reference)
            nats = nats + (reference_logs.exp() * (reference_logs - logs)).sum(1)
        return nats.mean()

    def information(self, outputs: Tensor) -> float:
        mean = outputs.double().sigmoid().mean(0).clamp(1e-12, 1 - 1e-12).logit()
        return float(self.divergence(mean.expand_as(outputs), outputs))

    def energy(self, outputs: Tensor) -> Tensor:
        return F.softplus(outputs.double().abs()).sum(1)

    def predict(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).long()


class ValueAnswers:
    """One or several numbers: mean squared error. In these functions, values have a mean of 0 and a scale of 1."""

    metric = "R²", r2

    def prepare(self, y: Tensor) -> Tensor:
        return y.reshape(len(y), -1)

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None, smoothing: float, reduction: str) -> Tensor:
        value = F.mse_loss(outputs, y.to(outputs.dtype), reduction=reduction)
        return value / outputs.shape[1] if reduction == "sum" else value

    def expect(self, outputs: Tensor, smoothing: float) -> Tensor:
        return outputs.nan_to_num(nan=0.0)

    def draw(self, expected: Tensor, generator: torch.Generator) -> Tensor:
        return expected + torch.randn(expected.shape, generator=generator)

    def divergence(self, outputs: Tensor, reference: Tensor, temperature: float = 1.0) -> Tensor:
        return (outputs.float() - reference.float()).square().sum(1).mean() / 2

    def information(self, outputs: Tensor) -> float:
        return float(outputs.double().var(0, correction=0).sum()) / 2

    def energy(self, outputs: Tensor) -> Tensor:
        return torch.zeros(len(outputs), dtype=torch.float64)  # a number says nothing of how sure it is

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs


ANSWERS: Mapping[TargetKind, Answers] = {"classes": ClassAnswers(), "labels": LabelAnswers(), "values": ValueAnswers()}


@dataclass(frozen=True)
class Objective:
    """What one task's network is trained for and judged by.

    A loss or a metric of the user's own gets outputs and targets of the same form: logits with class numbers, logits with
    labels of 0.0 and 1.0, or values in the user's unit.
    """

    targets: Targets = field(default_factory=Targets)
    scaling: Scaling | None = None  # of values, while a network is trained; None once it returns them in the user's unit
    own_loss: OwnLoss | None = None
    own_metric: Metric | None = None
    weights: Tensor | None = None  # of each class, or of the examples that have a label
    smoothing: float = 0.0  # of labels

    @property
    def answers(self) -> Answers:
        return ANSWERS[self.targets.kind]

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return self.answers.metric[0] if self.own_metric is None else name_function(self.own_metric)

    @property
    def is_accuracy(self) -> bool:
        """Whether the score is the share of examples that are classified correctly."""
        return self.metric == ACCURACY and self.own_metric is None

    @property
    def of_committed(self) -> Objective:
        """The same for a committed network, which returns values in the user's unit."""
        return replace(self, scaling=None)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean loss over a batch, with the recipe's weights and smoothing."""
        return self.loss_of_prepared(outputs, self.prepare(y))

    def prepare(self, y: Tensor) -> Tensor:
        """Targets as the loss reads them: whole numbers, zeros and ones, or standardized values, (rows,) or (rows, outputs)."""
        y = self.answers.prepare(y)
        return y if self.scaling is None else self.scaling.remove(y)

    def loss_of_prepared(self, outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        if self.own_loss is None:
            training = reduction == "mean"
            weights, smoothing = (self.weights, self.smoothing) if training else (None, 0.0)
            return self.answers.loss(outputs, y, weights, smoothing, reduction)
        value = self.own_loss(*self._in_users_form(outputs, y))
        if not isinstance(value, Tensor) or value.dim():
            raise ConfigError(f"The loss {name_function(self.own_loss)} must return one number as a tensor, the batch's mean.")
        return value if reduction == "mean" else value * len(outputs)

    def score(self, outputs: Tensor, y: Tensor) -> float:
        """The metric of outputs on prepared targets."""
        if self.own_metric is None:
            return self.answers.metric[1](outputs, y)
        score = float(self.own_metric(*self._in_users_form(outputs, y)))
        if not math.isfinite(score):
            raise ConfigError(f"The metric {name_function(self.own_metric)} returned {score}; it must be a finite number.")
        return score

    def try_functions(self, task: str, y: Tensor) -> None:
        """Call the user's own functions once, with random outputs, so that mistakes in them are found before training."""
        outputs, y = torch.randn(len(y), self.targets.outputs, generator=torch.Generator().manual_seed(0)), self.prepare(y)
        with user_code_errors(f"Task {task!r}: its own loss or metric failed"):
            self.loss_of_prepared(outputs, y)
            if self.own_metric is not None:
                float(self.own_metric(*self._in_users_form(outputs, y)))

    def sample_gradient(self, outputs: Tensor, generator: torch.Generator, smoothing: float = 0.0) -> Tensor:
        """The gradient of -log p(y | x) by the outputs, for targets y that are drawn from the answers themselves.

        For each kind of target this is what the outputs expect, minus what was drawn.
        """
        expected = self.answers.expect(outputs.detach().float(), smoothing).cpu()
        return (expected - self.answers.draw(expected, generator)).to(outputs.device, outputs.dtype)

    def _in_users_form(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and prepared targets as a user's function reads them."""
        if self.targets.kind != "values":
            return outputs, y
        if self.scaling is not None:
            outputs, y = self.scaling.restore(outputs).to(outputs.dtype), self.scaling.restore(y).to(outputs.dtype)
        return (outputs[:, 0], y[:, 0]) if self.targets.flat else (outputs, y)


def make_objective(task: Task, targets: Targets, train: Data, bias: bool, seed: int) -> Objective:
    """What a task's network is trained for, from what the user said and from the training targets.

    `bias` says whether the head has one; without it, values keep their mean.
    """
    objective = Objective(targets, own_loss=task.loss, own_metric=task.metric)
    if targets.kind == "values":
        objective = replace(objective, scaling=Scaling.measure(_sample(objective, train, seed), centred=bias))
    if task.loss is not None or task.metric is not None:
        objective.try_functions(task.name, _sample(objective, train, seed)[:1000])
    return objective


def add_recipe(objective: Objective, recipe: Recipe, train: Data, seed: int) -> Objective:
    """The same with the weights and the smoothing of a recipe, which fits it (see `check_recipe`)."""
    if objective.own_loss is not None or objective.targets.kind == "values":
        return objective
    objective, given = replace(objective, smoothing=recipe.label_smoothing), recipe.class_weights
    if given is None:
        return objective
    if given != "balanced":
        return replace(objective, weights=torch.tensor(given, dtype=torch.float64))
    y, outputs = _sample(objective, train, seed), objective.targets.outputs
    if objective.targets.kind == "classes":
        return replace(objective, weights=len(y) / outputs / torch.bincount(y, minlength=outputs).clamp(min=1).double())
    return replace(objective, weights=(len(y) - y.sum(0)) / y.sum(0).clamp(min=1))


def _sample(objective: Objective, train: Data, seed: int) -> Tensor:
    """Some training targets, in the user's unit: (examples,), or (examples, outputs)."""
    return objective.answers.prepare(train.sample_targets(_SAMPLES, torch.Generator().manual_seed(seed)))


def check_recipe(task: Task, targets: Targets, recipe: Recipe) -> None:
    """Raise ConfigError if the recipe's values for the loss do not fit the task."""
    weights = recipe.class_weights
    if task.loss is not None and (weights is not None or recipe.label_smoothing):
        raise ConfigError(
            f"Task {task.name!r} has a loss of its own, so label_smoothing and class_weights have no effect. Leave them out."
        )
    if isinstance(weights, tuple) and (targets.kind == "values" or len(weights) != targets.outputs):
        raise ConfigError(
            f"Task {task.name!r}: class_weights={show(weights)}, but there are {targets.outputs} {targets.kind}. "
            'Give a number for each class or label, or class_weights="balanced"; values have no weights.'
        )


def name_function(function: Callable[..., object]) -> str:
    """What a user's function is called.

    >>> name_function(max), name_function(lambda outputs, y: 0.0)
    ('max', 'own metric')
    """
    name = getattr(function, "__name__", type(function).__name__)
    return "own metric" if name == "<lambda>" else name
