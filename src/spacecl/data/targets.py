"""What tasks predict: classes, labels or values, as the type and shape of their targets say, and the checks of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import DataError
from ..structure.blueprint import describe_unsupported
from .inputs import TEXT_LABELS, is_text, name_row

TargetKind = Literal["classes", "labels", "values"]
TARGET_KINDS: tuple[TargetKind, ...] = get_args(TargetKind)


@dataclass(frozen=True)
class Targets:
    """What a task predicts of an example: one of some classes, several yes-or-no labels, or one or more values."""

    kind: TargetKind = "classes"
    outputs: int = 1  # how many classes, labels or values there are
    flat: bool = False  # values that were given as one number for each example, without a dimension of their own


@dataclass(frozen=True, eq=False)
class Scaling:
    """The mean and the scale of each value. Networks are trained on values from which these are removed, in any unit alike."""

    mean: Tensor  # (values,) float64
    scale: Tensor  # (values,) float64

    @staticmethod
    def measure(values: Tensor, centred: bool = True) -> Scaling:
        """The mean and standard deviation of some values, (examples, values); not centred, zero and the root mean square.

        >>> scaling = Scaling.measure(torch.tensor([[1.0], [3.0]]))
        >>> scaling.mean.tolist(), scaling.scale.tolist(), scaling.remove(torch.tensor([[5.0]])).tolist()
        ([2.0], [1.0], [[3.0]])
        """
        values = values.double()
        mean = values.mean(0) if centred else torch.zeros(values.shape[1], dtype=torch.float64)
        scale = (values - mean).square().mean(0).sqrt()
        constant = scale <= 1e-12 * values.abs().amax(0)
        return Scaling(mean, torch.where(constant, 1.0, scale))

    def remove(self, values: Tensor) -> Tensor:
        """Values in the user's unit as the network learns them."""
        mean, scale = self._on(values)
        return (values.to(mean.dtype) - mean) / scale

    def restore(self, outputs: Tensor) -> Tensor:
        """Outputs of a network in training as values in the user's unit."""
        mean, scale = self._on(outputs)
        return outputs.to(mean.dtype) * scale + mean

    def _on(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.float32 if tensor.device.type == "mps" else torch.float64
        return self.mean.to(tensor.device, dtype), self.scale.to(tensor.device, dtype)


def infer_kind(y: Tensor) -> TargetKind:
    """What targets are for, by their type and shape; raises DataError where these leave it open.

    >>> infer_kind(torch.tensor([0, 2, 1])), infer_kind(torch.tensor([[1, 1], [0, 1]])), infer_kind(torch.tensor([0.3, 1.7]))
    ('classes', 'labels', 'values')
    """
    given = f"{str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape)}"
    binary = y.dim() == 2 and y.numel() > 0 and bool(((y == 0) | (y == 1)).all())
    if binary and y.shape[1] > 1 and bool((y != 0).sum(1).eq(1).all()):
        raise DataError(
            f"targets are {given}, with exactly one 1 in each row. If each example has one class, give its number: "
            'y.argmax(1). If it may have several labels, say so with target="labels".'
        )
    if binary:
        return "labels"
    if y.is_floating_point():
        if y.dim() == 2 and y.shape[1] > 1 and len(y) and _are_probabilities(y):
            raise DataError(
                f"targets are {given}, and each row sums to 1, as probabilities of classes do (mixup makes such targets). Give "
                "class numbers, and smooth them with Recipe(label_smoothing=...). To predict these numbers, say so with "
                'target="values".'
            )
        if y.dim() == 1 and len(y) and _counts_from_zero(y):
            raise DataError(
                f"targets are {given}, but count from 0 as classes do. For classes, labels must be whole numbers: y.long(). "
                'To predict numbers, say so with target="values".'
            )
        return "values"
    if y.dim() == 2 and y.dtype != torch.bool:
        raise DataError(
            f"targets are {given}. For classes, give one whole number per example, of shape ({len(y)},); for labels, "
            'zeros and ones; to predict these numbers, say so with target="values".'
        )
    return "classes"


def _are_probabilities(y: Tensor) -> bool:
    return bool((y >= 0).all()) and bool((y.double().sum(1) - 1).abs().max() < 1e-5)


def _counts_from_zero(y: Tensor) -> bool:
    """Whether numbers are 0, 1, 2, ... without gaps, as those of classes are."""
    distinct = y.unique()
    return len(distinct) < len(y) and torch.equal(distinct.double(), torch.arange(len(distinct), dtype=torch.float64))


def find_target_problem(y: Any, kind: TargetKind, first: int | Tensor) -> str | None:
    """Say what is wrong with the targets of a batch, or return None.

    `first` is the number of the first row, or has the numbers of all rows, for messages.
    """
    unsupported = describe_unsupported(y) if isinstance(y, Tensor) else None
    given = f"{unsupported or y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
    plain = isinstance(y, Tensor) and unsupported is None
    if is_text(y):
        return TEXT_LABELS
    if kind == "classes":
        if not plain or y.is_floating_point() or y.dtype == torch.bool or y.dim() != 1:
            return f"labels must be whole numbers, one per example; got {given}."
        return None
    if kind == "labels":
        if not plain or y.dim() != 2 or not y.shape[1]:
            return f"with several labels, targets have the shape (examples, labels); got {given}."
        wrong = ((y != 0) & (y != 1)).any(1).nonzero()
        return f"labels must be 0 or 1; row {name_row(int(wrong[0]), first)} holds another number." if len(wrong) else None
    if not plain or y.dim() not in (1, 2) or not y.shape[-1 if y.dim() == 2 else 0 :].numel():
        return f"values have the shape (examples,) or (examples, values); got {given}."
    if y.is_floating_point() and not bool(torch.isfinite(y).all()):
        row = name_row(int((~torch.isfinite(y.reshape(len(y), -1)).all(1)).nonzero()[0]), first)
        return f"the value in row {row} is NaN or infinite. Remove or repair it."
    return None


def find_misfit(seen: Targets, known: Targets) -> str | None:
    """Say why the targets of some data do not fit those that a task was learned with, or return None."""
    if known.kind == "classes":
        if seen.outputs > known.outputs:
            return f"the label {seen.outputs - 1} is outside its {known.outputs} classes, 0 to {known.outputs - 1}."
        return None
    if seen.outputs != known.outputs:
        return f"there are {seen.outputs} {known.kind} for each example; the task has {known.outputs}."
    return None
