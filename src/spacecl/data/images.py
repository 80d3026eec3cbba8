"""Images as bytes: indexed where they lie, made numbers batch by batch on the device that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import DataError
from ..validation import integer, number, show

SHIFT = 2  # pixels that augmentation may move an image by, each way


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images as bytes, in memory or memory-mapped; a kind of data that tasks take.

    Batches are moved to the device as bytes and get mean 0 and spread 1 there. `mean` and `std` are of pixel values, one
    for every channel; by default those of the images given. `shape` asks for another form: black borders are
    added and a single channel is repeated. `order` permutes the pixels and hands them on as one row.

    >>> pixels = np.arange(2 * 12, dtype=np.uint8).reshape(2, 3, 2, 2)
    >>> images = Images(pixels, [0, 1])
    >>> images.finish(images.batch(np.array([1]))[0]).shape
    torch.Size([1, 3, 2, 2])
    """

    pixels: Any  # (images, channels, height, width), uint8
    labels: Any  # (images,)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    shape: tuple[int, int, int] | None = None
    order: Tensor | None = None
    rows: np.ndarray | None = None  # which images are meant; all by default

    def __post_init__(self) -> None:
        pixels, labels = _array(self.pixels, "pixels"), _array(self.labels, "labels")
        wrong = []
        if pixels.dtype != np.uint8 or pixels.ndim != 4:
            wrong.append(f"pixels must be uint8 of shape (images, channels, height, width); got {pixels.dtype} {pixels.shape}")
        elif not pixels.size:
            wrong.append(f"there are none: pixels have the shape {pixels.shape}")
        elif self.shape is not None and not _is_shape(self.shape):
            wrong.append(f"shape={show(self.shape)} must be three whole numbers from 1: channels, height, width")
        elif self.shape is not None and not _fits(pixels.shape[1:], self.shape):
            wrong.append(f"images of shape {pixels.shape[1:]} cannot be given the shape {self.shape} by adding borders")
        count = len(pixels) if pixels.ndim else 0
        if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
            wrong.append(f"labels must be whole numbers, one for each of {count} images; got {labels.dtype} {labels.shape}")
        wrong += [
            f"{name}={show(values)} must be a number{' above 0' if above else ''} for each channel"
            for name, values, above in (("mean", self.mean, False), ("std", self.std, True))
            if values is not None and not _are_numbers(values, above)
        ]
        if (self.mean is None) != (self.std is None):
            wrong.append("mean and std belong together; give both or neither")
        elif wrong:
            pass  # what follows needs the rest to be right
        elif self.mean is not None and pixels.ndim == 4 and {len(self.mean), len(self.std or ())} - {1, pixels.shape[1]}:
            wrong.append(f"mean and std need a value for each of {pixels.shape[1]} channels; got {self.mean} and {self.std}")
        if self.order is not None and not wrong:
            size = int(np.prod(pixels.shape[1:] if self.shape is None else self.shape))
            if not _is_order(self.order, size):
                wrong.append(f"order={show(self.order)} must be a tensor of places in a row of {size} pixels, from 0")
        if self.rows is not None and not wrong and not _are_rows(self.rows, count):
            wrong.append(f"rows={show(self.rows)} must be an array of numbers of images, from 0 to {count - 1}")
        if wrong:
            raise DataError(f"These images cannot be used: {'; '.join(wrong)}.")
        object.__setattr__(self, "pixels", pixels)
        object.__setattr__(self, "labels", labels)
        if self.mean is None or self.std is None:
            mean, std = statistics(pixels if self.rows is None else pixels[self.rows])
            if self.shape is not None:
                mean, std = with_borders(mean, std, pixels.shape[2] * pixels.shape[3] / (self.shape[1] * self.shape[2]))
            object.__setattr__(self, "mean", mean)
            object.__setattr__(self, "std", std)

    def __len__(self) -> int:
        return len(self.pixels) if self.rows is None else len(self.rows)

    @property
    def targets(self) -> Tensor:
        """The labels of the images that are meant."""
        return torch.from_numpy((self.labels if self.rows is None else self.labels[self.rows]).astype(np.int64))

    def subset(self, rows: Any) -> Images:
        """Some of these images; nothing is copied."""
        rows = np.asarray(rows)
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def batch(self, rows: Any) -> tuple[Tensor, Tensor]:
        """Some images as bytes, and their labels."""
        rows = np.asarray(rows) if self.rows is None else self.rows[np.asarray(rows)]
        return torch.from_numpy(self.pixels[rows]), torch.from_numpy(self.labels[rows].astype(np.int64))

    def finish(self, x: Tensor) -> Tensor:
        """Bytes as numbers that a network reads, on the device where they lie."""
        mean, std = (torch.tensor(values, device=x.device)[:, None, None] for values in (self.mean, self.std))
        if self.shape is not None:
            high, wide = (a - b for a, b in zip(self.shape[1:], x.shape[2:]))
            x = F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
            x = x.expand(-1, self.shape[0], -1, -1)
        x = x.to(torch.float32).sub_(mean).div_(std)
        return x if self.order is None else x.flatten(1).index_select(1, self.order.to(x.device))

    def told(self) -> dict[str, Any]:
        """What makes a picture an input, in a form that JSON can hold: `as_told` does the same to other pictures."""
        return {
            "pixels": list(self.pixels.shape[1:]),  # channels, height, width
            "mean": list(self.mean or ()),
            "std": list(self.std or ()),
            "shape": None if self.shape is None else list(self.shape),
            "order": None if self.order is None else self.order.tolist(),
        }


def preprocess(told: Mapping[str, Any], pixels: np.ndarray) -> Tensor:
    """Pictures as bytes made inputs in the way of the images that are told of."""
    order = None if told["order"] is None else torch.tensor(told["order"])
    shape = None if told["shape"] is None else tuple(told["shape"])
    images = Images(pixels, np.zeros(len(pixels), np.int64), tuple(told["mean"]), tuple(told["std"]), shape, order)
    return images.finish(torch.from_numpy(pixels))


Values = tuple[float, ...]


def statistics(pixels: np.ndarray) -> tuple[Values, Values]:
    """Mean and standard deviation of each channel."""
    values = np.arange(256.0)
    means, stds = [], []
    for channel in range(pixels.shape[1]):
        counts = np.zeros(256)
        step = max(1, 2**20 // pixels[0, 0].size)  # counting makes eight bytes of each
        for start in range(0, len(pixels), step):
            counts += np.bincount(pixels[start : start + step, channel].ravel(), minlength=256)
        mean = float(counts @ values / counts.sum())
        means.append(mean)
        stds.append(float(np.sqrt(counts @ (values - mean) ** 2 / counts.sum())) or 1.0)
    return tuple(means), tuple(stds)


def with_borders(mean: Values, std: Values, share: float) -> tuple[Values, Values]:
    """Mean and standard deviation of images that have such a share of larger ones, black around them."""
    means = tuple(share * m for m in mean)
    return means, tuple(float(np.sqrt(share * (s * s + m * m) - b * b)) for m, s, b in zip(mean, std, means))


def augment(x: Tensor, how: str) -> Tensor:
    """A batch of images, mirrored or moved a little at random; the same images with "none"."""
    if "flip" in how:
        mirrored = (torch.rand(len(x), device=x.device) < 0.5).nonzero()[:, 0]
        x = x.index_copy(0, mirrored, x[mirrored].flip(-1))
    if "shift" in how:
        rows, columns = torch.randint(0, 2 * SHIFT + 1, (2, len(x)), device=x.device)
        padded = F.pad(x, (SHIFT,) * 4)
        windows = padded.unfold(2, x.shape[2], 1).unfold(3, x.shape[3], 1)  # (images, channels, shifts, shifts, height, width)
        x = windows[torch.arange(len(x), device=x.device), :, rows, columns]
    return x


def _array(values: Any, what: str) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    try:
        return np.asarray(values)
    except Exception as error:  # whatever the object's own conversion raises
        raise DataError(f"These images cannot be used: {what} cannot be made an array: {error}") from error


def _are_numbers(values: Any, above: bool) -> bool:
    good = number(lambda v: v > 0 or not above, "")[0]
    return isinstance(values, (tuple, list)) and len(values) > 0 and all(map(good, values))


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, (tuple, list)) and len(shape) == 3 and all(map(integer(1)[0], shape))


def _is_order(order: Any, size: int) -> bool:
    plain = isinstance(order, Tensor) and order.dtype in (torch.int32, torch.int64) and order.dim() == 1 and not order.is_meta
    return plain and len(order) > 0 and int(order.min()) >= 0 and int(order.max()) < size


def _are_rows(rows: Any, count: int) -> bool:
    plain = isinstance(rows, np.ndarray) and rows.ndim == 1 and (np.issubdtype(rows.dtype, np.integer) or not len(rows))
    return plain and (not len(rows) or (int(rows.min()) >= 0 and int(rows.max()) < count))


def _fits(given: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return given[0] in (1, wanted[0]) and given[1] <= wanted[1] and given[2] <= wanted[2]
