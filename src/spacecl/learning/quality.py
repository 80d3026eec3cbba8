"""Whether a network is any good: its validation accuracy compared with guessing, and with a linear classifier of the inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ..structure.calling import Inputs, list_tensors, select_rows

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

    def __len__(self) -> int:
        return sum(map(len, self.labels))

    def keep(self, batches: Iterable[Sampled]) -> Iterator[Sampled]:
        """Yield batches of inputs, labels and logits unchanged, and keep the first of their examples."""
        for x, y, logits in batches:
            count = min(len(y), self.limit - len(self))
            if count > 0:
                self.labels.append(y[:count].detach().to("cpu", torch.int64, copy=True))
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


def describe_weakness(accuracy: float, count: int, train: Examples, valid: Examples) -> str | None:
    """Say in what a network is not good, as the end of a sentence; None if it is good or if too few data can say.

    Parameters
    ----------
    accuracy : of the network on all validation data, from 0 to 1.
    count : the number of validation examples.
    train, valid : examples of the training and of the validation data.
    """
    if not len(train) or not len(valid):
        return None
    labels, valid_labels = torch.cat(train.labels), torch.cat(valid.labels)
    most_frequent = int(torch.bincount(labels).argmax())
    guessed = float((valid_labels == most_frequent).double().mean())
    bound = guessed + 2 * _standard_error(guessed, count)
    if accuracy <= bound < 1:  # at a bound of 1, not even a perfect network differs from chance
        return f"not clearly more than by guessing the most frequent class ({guessed:.0%})"
    if not train.features or not valid.features:
        return None
    linear = _fit_linear(torch.cat(train.features), labels, torch.cat(valid.features), valid_labels)
    error = math.hypot(_standard_error(accuracy, count), _standard_error(linear, len(valid)))
    if linear - accuracy > 2 * error:
        return f"clearly less than a linear classifier of the raw inputs ({linear:.0%})"
    return None


def _standard_error(share: float, count: int) -> float:
    return math.sqrt(share * (1 - share) / count)


def _fit_linear(x: Tensor, y: Tensor, valid_x: Tensor, valid_y: Tensor) -> float:
    """The validation accuracy of ridge regression from features to one-hot labels; 0 if it cannot be computed."""
    mean, spread = x.mean(0), x.std(0, correction=0)
    spread = spread.clamp(min=max(1e-12, 1e-3 * float(spread.max())))
    x, valid_x = (x - mean) / spread, (valid_x - mean) / spread
    classes = int(max(y.max(), valid_y.max())) + 1
    if classes > FEATURES or not bool(torch.isfinite(x).all()):
        return 0.0
    targets = F.one_hot(y, classes).float()
    center = targets.mean(0)
    rows, features = x.shape
    ridge = _RIDGE * rows * torch.eye(min(rows, features))
    if rows < features:
        weight = x.mT @ torch.cholesky_solve(targets - center, torch.linalg.cholesky(x @ x.mT + ridge))
    else:
        weight = torch.cholesky_solve(x.mT @ (targets - center), torch.linalg.cholesky(x.mT @ x + ridge))
    right = (valid_x @ weight + center).argmax(1) == valid_y
    return float(right.double().mean())
