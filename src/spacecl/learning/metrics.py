"""Metrics of outputs on targets; of each, higher is better."""

from __future__ import annotations

import torch
from torch import Tensor

ACCURACY = "accuracy"


def accuracy(outputs: Tensor, y: Tensor) -> float:
    """The share of rows whose largest output is that of their class."""
    return float((outputs.argmax(1) == y).double().mean())


def mean_average_precision(outputs: Tensor, y: Tensor) -> float:
    """The mean over the labels of the average precision of their scores; labels that no row has do not count.

    >>> mean_average_precision(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1.0], [0.0], [1.0]]))
    0.8333333333333333
    """
    from sklearn.metrics import average_precision_score

    present = (y > 0).any(0)
    if not bool(present.any()):
        return 0.0
    return float(average_precision_score(y[:, present].cpu().numpy(), outputs[:, present].detach().float().cpu().numpy()))


def r2(outputs: Tensor, y: Tensor) -> float:
    """The share of the targets' variance that the outputs explain, as a mean over the values; below 0 if worse than the mean.

    A value that is the same in all rows counts as 1 if the outputs are exact, and as 0 if not.

    >>> r2(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[1.0], [2.0], [3.0]]))
    0.5
    """
    outputs, y = outputs.detach().cpu().double(), y.cpu().double()
    error, spread = (outputs - y).square().sum(0), (y - y.mean(0)).square().sum(0)
    exact = (error == 0).double()
    return float(torch.where(spread > 0, 1 - error / spread.clamp(min=1e-300), exact).mean())
