"""A dataset as arrays: what the readers return and the cache stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .images import Statistics


class Split(NamedTuple):
    """The images of one part of a dataset, such as its test data, and their labels."""

    pixels: np.ndarray  # (images, channels, height, width), uint8
    labels: np.ndarray  # (images,), int64


@dataclass(frozen=True)
class DecodedDataset:
    """A dataset as arrays, with the names of its classes."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    note: str = ""  # what was left out, in words
    statistics: Statistics | None = None  # of the training images, if they are known


def split_rows(count: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Split row numbers at random into two sorted parts, the second with a `share` of them. The result is always the same."""
    order = np.random.default_rng(0).permutation(count)
    cut = round(share * count)
    return np.sort(order[cut:]), np.sort(order[:cut])
