"""Images as bytes: indexed where they are stored, and converted to floats batch by batch on the training device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from ..documents import Count
from ..errors import DataError, renamed
from ..validation import is_integer, is_number, show

MASKED = 0.2  # of the values of an input
SHIFT = 2  # pixels by which augmentation may move an image in each direction
Values = tuple[float, ...]  # one per channel


class Statistics(NamedTuple):
    """Mean and standard deviation of the pixel values in every channel."""

    mean: Values
    std: Values


class Preprocessing(TypedDict):
    """How pictures become inputs of a network, in a form that JSON can hold (see `Images`)."""

    pixels: Annotated[list[Count], Field(min_length=3, max_length=3)]  # channels, height, width of a picture
    mean: list[float]
    std: list[float]
    shape: Annotated[list[Count], Field(min_length=3, max_length=3)] | None  # with borders
    order: list[Count] | None  # of the pixels


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images as bytes, in memory or memory-mapped. A `Task` takes them as data.

    Batches are moved to the device as bytes and standardised there, channel by channel.

    Parameters
    ----------
    pixels : array of shape (images, channels, height, width), uint8.
    labels : array of shape (images,), integers; or zeros and ones of shape (images, labels), or values (see `Task`).
    mean, std : mean and standard deviation of the pixel values, 0 to 255, one value per channel. Default: those of
        the images.
    shape : (channels, height, width) of the inputs, if other than that of the images. Black borders are added and a
        single channel is repeated.
    order : permutation of the pixels. Inputs are then flat.
    rows : numbers of the images to use. Default: all.

    >>> pixels = np.arange(2 * 12, dtype=np.uint8).reshape(2, 3, 2, 2)
    >>> images = Images(pixels, [0, 1])
    >>> images.finish(images.batch(np.array([1]))[0]).shape
    torch.Size([1, 3, 2, 2])
    """

    pixels: Any
    labels: Any
    mean: Values | None = None
    std: Values | None = None
    shape: tuple[int, int, int] | None = None
    order: Tensor | None = None
    rows: np.ndarray | None = None

    told = renamed("told", "preprocessing")

    def __post_init__(self) -> None:
        pixels, labels = _to_array(self.pixels, "pixels"), _to_array(self.labels, "labels")
        problems = self._find_problems(pixels, labels)
        if problems:
            raise DataError(f"These images cannot be used: {'; '.join(problems)}.")
        object.__setattr__(self, "pixels", pixels)
        object.__setattr__(self, "labels", labels)
        if self.mean is None or self.std is None:
            statistics = compute_statistics(pixels if self.rows is None else pixels[self.rows])
            if self.shape is not None:
                statistics = pad_statistics(statistics, pixels.shape[2] * pixels.shape[3] / (self.shape[1] * self.shape[2]))
            object.__setattr__(self, "mean", statistics.mean)
            object.__setattr__(self, "std", statistics.std)

    def _find_problems(self, pixels: np.ndarray, labels: np.ndarray) -> list[str]:
        problems = []
        if pixels.dtype != np.uint8 or pixels.ndim != 4:
            problems.append(
                f"pixels must be uint8 of shape (images, channels, height, width); got {pixels.dtype} {pixels.shape}"
            )
        elif not pixels.size:
            problems.append(f"there are none: pixels have the shape {pixels.shape}")
        elif self.shape is not None and not _is_shape(self.shape):
            problems.append(f"shape={show(self.shape)} must be three whole numbers from 1: channels, height, width")
        elif self.shape is not None and not _can_pad(pixels.shape[1:], self.shape):
            problems.append(f"images of shape {pixels.shape[1:]} cannot be given the shape {self.shape} by adding borders")
        count = len(pixels) if pixels.ndim else 0
        if labels.ndim not in (1, 2) or len(labels) != count or labels.dtype.kind not in "biuf":
            what = f"labels must be numbers, one for each of {count} images or a row of them"
            problems.append(f"{what}; got {labels.dtype} {labels.shape}")
        problems += [
            f"{name}={show(values)} must be a number{' above 0' if positive else ''} for each channel"
            for name, values, positive in (("mean", self.mean, False), ("std", self.std, True))
            if values is not None and not _are_numbers(values, positive)
        ]
        if (self.mean is None) != (self.std is None):
            problems.append("mean and std belong together; give both or neither")
        if problems:
            return problems  # the checks below need valid pixels, shape, mean and std
        if self.mean is not None and {len(self.mean), len(self.std or ())} - {1, pixels.shape[1]}:
            problems.append(f"mean and std need a value for each of {pixels.shape[1]} channels; got {self.mean} and {self.std}")
        if self.order is not None and not problems:
            size = int(np.prod(pixels.shape[1:] if self.shape is None else self.shape))
            if not _is_order(self.order, size):
                problems.append(f"order={show(self.order)} must be a tensor of positions in a row of {size} pixels, from 0")
        if self.rows is not None and not problems and not _are_rows(self.rows, count):
            problems.append(f"rows={show(self.rows)} must be an array of image numbers, from 0 to {count - 1}")
        return problems

    def __len__(self) -> int:
        return len(self.pixels) if self.rows is None else len(self.rows)

    @property
    def targets(self) -> Tensor:
        """The labels of the selected images: int64, or as they were given if they are fractions."""
        return _to_targets(self.labels if self.rows is None else self.labels[self.rows])

    @property
    def can_be_shifted(self) -> bool:
        """Whether a shift by a few pixels leaves an image what it is: not of tiny ones, nor where pixels are permuted."""
        sides = (self.pixels.shape if self.shape is None else self.shape)[-2:]
        return self.order is None and min(sides) >= 10 * SHIFT

    def subset(self, rows: Any) -> Images:
        """Select some of these images by number. Nothing is copied."""
        rows = np.asarray(rows)
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def batch(self, rows: Any) -> tuple[Tensor, Tensor]:
        """Return some images by number, as bytes, and their labels."""
        rows = np.asarray(rows) if self.rows is None else self.rows[np.asarray(rows)]
        return torch.from_numpy(self.pixels[rows]), _to_targets(self.labels[rows])

    def finish(self, x: Tensor) -> Tensor:
        """Convert a batch of bytes to the float32 inputs of a network, on the device of the batch."""
        mean, std = (torch.tensor(values, device=x.device)[:, None, None] for values in (self.mean, self.std))
        if self.shape is not None:
            rows, columns = (a - b for a, b in zip(self.shape[1:], x.shape[2:]))
            x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
            x = x.expand(-1, self.shape[0], -1, -1)
        x = x.to(torch.float32).sub_(mean).div_(std)
        return x if self.order is None else x.flatten(1).index_select(1, self.order.to(x.device))

    def preprocessing(self) -> Preprocessing:
        """Return what makes a picture an input: `preprocess` does the same to other pictures."""
        return {
            "pixels": list(self.pixels.shape[1:]),
            "mean": list(self.mean or ()),
            "std": list(self.std or ()),
            "shape": None if self.shape is None else list(self.shape),
            "order": None if self.order is None else self.order.tolist(),
        }


def _to_targets(labels: np.ndarray) -> Tensor:
    return torch.from_numpy(labels.astype(labels.dtype if labels.dtype.kind == "f" else np.int64))


def preprocess(preprocessing: Preprocessing, pixels: np.ndarray) -> Tensor:
    """Convert pictures, uint8 of shape (pictures, channels, height, width), to inputs as `Images` would."""
    order = None if preprocessing["order"] is None else torch.tensor(preprocessing["order"])
    shape = None if preprocessing["shape"] is None else tuple(preprocessing["shape"])
    mean, std = tuple(preprocessing["mean"]), tuple(preprocessing["std"])
    images = Images(pixels, np.zeros(len(pixels), np.int64), mean, std, shape, order)  # type: ignore[arg-type]
    return images.finish(torch.from_numpy(pixels))


def compute_statistics(pixels: np.ndarray) -> Statistics:
    """Compute the mean and the standard deviation of every channel. A constant channel has a deviation of 1."""
    values = np.arange(256.0)
    means, stds = [], []
    for channel in range(pixels.shape[1]):
        counts = np.zeros(256)
        step = max(1, 2**20 // pixels[0, 0].size)  # bincount needs eight bytes per pixel
        for start in range(0, len(pixels), step):
            counts += np.bincount(pixels[start : start + step, channel].ravel(), minlength=256)
        mean = float(counts @ values / counts.sum())
        means.append(mean)
        stds.append(float(np.sqrt(counts @ (values - mean) ** 2 / counts.sum())) or 1.0)
    return Statistics(tuple(means), tuple(stds))


def pad_statistics(statistics: Statistics, share: float) -> Statistics:
    """Compute the statistics of images after black borders are added, so that the original is a `share` of the area."""
    means = tuple(share * mean for mean in statistics.mean)
    stds = tuple(float(np.sqrt(share * (s * s + m * m) - b * b)) for m, s, b in zip(*statistics, means))
    return Statistics(means, stds)


def augment(x: Tensor, how: str) -> Tensor:
    """Flip and shift the images of a batch at random: "flip", "shift", "flip-shift", or "none" for no change.

    "mask" is for any inputs: each value is replaced by zero with a probability of a fifth.
    """
    if how == "mask":
        return x.masked_fill(torch.rand(x.shape, device=x.device) < MASKED, 0)
    if "flip" in how:
        mirrored = (torch.rand(len(x), device=x.device) < 0.5).nonzero()[:, 0]
        x = x.index_copy(0, mirrored, x[mirrored].flip(-1))
    if "shift" in how:
        rows, columns = torch.randint(0, 2 * SHIFT + 1, (2, len(x)), device=x.device)
        padded = F.pad(x, (SHIFT,) * 4)
        windows = padded.unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)  # (images, channels, shifts, shifts, height, width)
        x = windows[torch.arange(len(x), device=x.device), :, rows, columns]
    return x


def _to_array(values: Any, name: str) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    try:
        return np.asarray(values)
    except Exception as error:  # the object's own conversion may raise anything
        raise DataError(f"These images cannot be used: {name} cannot be converted to an array: {error}") from error


def _are_numbers(values: Any, positive: bool) -> bool:
    are_numbers = isinstance(values, (tuple, list)) and len(values) > 0 and all(map(is_number, values))
    return are_numbers and (not positive or min(values) > 0)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, (tuple, list)) and len(shape) == 3 and all(is_integer(size) and size >= 1 for size in shape)


def _is_order(order: Any, size: int) -> bool:
    if not isinstance(order, Tensor) or order.dtype not in (torch.int32, torch.int64) or order.dim() != 1 or order.is_meta:
        return False
    return len(order) > 0 and int(order.min()) >= 0 and int(order.max()) < size


def _are_rows(rows: Any, count: int) -> bool:
    if not isinstance(rows, np.ndarray) or rows.ndim != 1 or not (np.issubdtype(rows.dtype, np.integer) or not len(rows)):
        return False
    return not len(rows) or (int(rows.min()) >= 0 and int(rows.max()) < count)


def _can_pad(shape: tuple[int, ...], padded: tuple[int, ...]) -> bool:
    return shape[0] in (1, padded[0]) and shape[1] <= padded[1] and shape[2] <= padded[2]
