"""Whether a network is any good: its validation score compared with guessing, and with a linear model of the inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ..structure.calling import Inputs, list_tensors, select_rows
from .objective import Objective

FEATURES = 1024  # of an input, at most, that the linear classifier reads
SAMPLES = 2000  # training examples, at most, that it is computed from
_RIDGE = 1.0  # its regularization, relative to the variance of a feature


Sampled = tuple[Inputs, Tensor, Tensor]  # inputs, labels and logits of a batch


@dataclass
class Examples:
    """Some of a task's examples, kept while they are read for another purpose: inputs of a few features each, and labels."""

    limit: int = 5000
    labels: list[Tensor] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)  # empty if inputs are integers, such as words
    outputs: list[Tensor] = field(default_factory=list)  # of the network

    def __len__(self) -> int:
        return sum(map(len, self.labels))

    def keep(self, batches: Iterable[Sampled]) -> Iterator[Sampled]:
        """Yield batches of inputs, labels and logits unchanged, and keep the first of their examples."""
        for x, y, logits in batches:
            count = min(len(y), self.limit - len(self))
            if count > 0:
                dtype = y.dtype if y.is_floating_point() else torch.int64
                self.labels.append(y[:count].detach().to("cpu", dtype, copy=True))
                self.outputs.append(logits[:count].detach().cpu())
                features = reduce_inputs(select_rows(x, slice(count)))
                if features is not None:
                    self.features.append(features.cpu())
            yield x, y, logits


def reduce_inputs(inputs: Inputs) -> Tensor | None:
    """Average neighbouring values of inputs, until each has at most 1,024 features; None if all are integers, such as words.

    Returns float32, (rows, features).

    >>> [tuple(reduce_inputs(torch.zeros(2, *shape)).shape) for shape in ((3, 32, 32), (5000,), (7,))]
    [(2, 972), (2, 1024), (2, 7)]
    >>> reduce_inputs((torch.zeros(2, 7), torch.zeros(2, 3), torch.ones(2, 9, dtype=torch.int64))).shape
    torch.Size([2, 10])
    """
    parts = [_reduce(x) for x in list_tensors(inputs) if x.is_floating_point()]
    return _reduce(torch.cat(parts, 1)) if parts else None


def _reduce(x: Tensor) -> Tensor:
    x = x.detach().float()
    x = x[:, None] if x.dim() == 1 else x
    if x.dim() == 4 and x.shape[1:].numel() > FEATURES >= x.shape[1]:
        side = math.isqrt(FEATURES // x.shape[1])
        x = F.adaptive_avg_pool2d(x, (min(side, x.shape[2]), min(side, x.shape[3])))
    x = x.flatten(1)
    return F.adaptive_avg_pool1d(x[:, None], FEATURES)[:, 0] if x.shape[1] > FEATURES else x


def describe_weakness(
    score: float, count: int, train: Examples, valid: Examples, objective: Objective | None = None
) -> str | None:
    """Say in what a network is not good, as the end of a sentence; None if it is good or if too few data can say.

    Parameters
    ----------
    score : of the network on all validation data.
    count : the number of validation examples.
    train, valid : examples of the training and of the validation data.
    objective : what the network was trained for. Default: classes. What a loss or metric of the user's own is worth is unknown.
    """
    objective = Objective() if objective is None else objective
    if not len(train) or not len(valid) or objective.own_loss is not None or objective.own_metric is not None:
        return None
    return _judge_classes(score, count, train, valid) if objective.is_accuracy else _judge_distances(train, valid, objective)


def _judge_classes(accuracy: float, count: int, train: Examples, valid: Examples) -> str | None:
    """Compare an accuracy with that of guessing, and with that of a linear classifier."""
    labels, valid_labels = torch.cat(train.labels), torch.cat(valid.labels)
    most_frequent = int(torch.bincount(labels).argmax())
    guessed = float((valid_labels == most_frequent).double().mean())
    bound = guessed + 2 * _standard_error(guessed, count)
    if accuracy <= bound < 1:  # at a bound of 1, not even a perfect network differs from chance
        return f"not clearly more than by guessing the most frequent class ({guessed:.0%})"
    if not train.features or not valid.features:
        return None
    classes = int(max(labels.max(), valid_labels.max())) + 1
    linear = 0.0
    if classes <= FEATURES:
        scores = _predict_linear(train, F.one_hot(labels, classes).float(), valid)
        linear = 0.0 if scores is None else float((scores.argmax(1) == valid_labels).double().mean())
    error = math.hypot(_standard_error(accuracy, count), _standard_error(linear, len(valid)))
    if linear - accuracy > 2 * error:
        return f"clearly less than a linear classifier of the raw inputs ({linear:.0%})"
    return None


def _standard_error(share: float, count: int) -> float:
    return math.sqrt(share * (1 - share) / count)


def _judge_distances(train: Examples, valid: Examples, objective: Objective) -> str | None:
    """Compare squared errors of labels or standardized values with those of their mean, and of a linear model, row by row."""
    targets, valid_targets = (objective.prepare(torch.cat(examples.labels)).float() for examples in (train, valid))
    outputs = torch.cat(valid.outputs)
    expected = outputs.float().sigmoid() if objective.scaling is None else objective.scaling.remove(outputs).float()
    errors, guessed = ((values - valid_targets).square().mean(1) for values in (expected, targets.mean(0)))
    if not _is_clearly_less(torch.zeros_like(guessed), guessed):  # not even a perfect network differs from guessing
        return None
    if not _is_clearly_less(errors, guessed):
        return "not clearly closer to the targets than their mean"
    linear = _predict_linear(train, targets, valid) if train.features and valid.features else None
    if linear is not None and _is_clearly_less((linear - valid_targets).square().mean(1), errors):
        return "clearly further from the targets than a linear model of the raw inputs"
    return None


def _is_clearly_less(errors: Tensor, others: Tensor) -> bool:
    """Whether some errors are less than others by more than chance, by two standard errors of the mean difference."""
    difference = (others - errors).double()
    return len(difference) > 1 and float(difference.mean()) > 2 * float(difference.std()) / math.sqrt(len(difference))


def _predict_linear(train: Examples, targets: Tensor, valid: Examples) -> Tensor | None:
    """What ridge regression from features to targets predicts for validation examples; None if it cannot be computed."""
    x, valid_x = torch.cat(train.features), torch.cat(valid.features)
    mean, spread = x.mean(0), x.std(0, correction=0)
    spread = spread.clamp(min=max(1e-12, 1e-3 * float(spread.max())))
    x, valid_x = (x - mean) / spread, (valid_x - mean) / spread
    if not bool(torch.isfinite(x).all()):
        return None
    center = targets.mean(0)
    rows, features = x.shape
    ridge = _RIDGE * rows * torch.eye(min(rows, features))
    if rows < features:
        weight = x.mT @ torch.cholesky_solve(targets - center, torch.linalg.cholesky(x @ x.mT + ridge))
    else:
        weight = torch.cholesky_solve(x.mT @ (targets - center), torch.linalg.cholesky(x.mT @ x + ridge))
    return valid_x @ weight + center
