"""Streams of tasks for the experiments here, read from the publishers' files below SPACECL_DATA."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import spacecl

Split = tuple[Tensor, Tensor]


def root() -> Path:
    folder = os.environ.get("SPACECL_DATA")
    if not folder or not Path(folder).is_dir():
        sys.exit("Set SPACECL_DATA to the folder that holds cifar-10-batches-py and MNIST.")
    return Path(folder)


class _Restricted(pickle.Unpickler):
    """CIFAR's files are pickles: nothing but NumPy arrays may come out of them."""

    def find_class(self, module: str, name: str):
        if (module, name) in {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            return np._core.multiarray._reconstruct if name == "_reconstruct" else getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a CIFAR file")


def cifar10() -> tuple[Split, Split]:
    def read(names: list[str]) -> Split:
        parts = [
            _Restricted(io.BytesIO((root() / "cifar-10-batches-py" / name).read_bytes()), encoding="bytes").load()
            for name in names
        ]
        images = np.concatenate([part[b"data"] for part in parts]).reshape(-1, 3, 32, 32)
        mean, std = torch.tensor([0.491, 0.482, 0.447]), torch.tensor([0.247, 0.243, 0.262])
        x = (torch.from_numpy(images).float() / 255 - mean[:, None, None]) / std[:, None, None]
        return x, torch.tensor([label for part in parts for label in part[b"labels"]])

    return read([f"data_batch_{i}" for i in range(1, 6)]), read(["test_batch"])


def mnist() -> tuple[Split, Split]:
    def read(part: str) -> Split:
        folder = root() / "MNIST" / "raw"
        pixels = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
        x = torch.from_numpy(np.frombuffer(pixels, np.uint8, offset=16).copy()).reshape(-1, 784).float()
        return (x / 255 - 0.1307) / 0.3081, torch.from_numpy(np.frombuffer(labels, np.uint8, offset=8).copy()).long()

    return read("train"), read("t10k")


def stream(benchmark: str, tasks: int, images: int, seed: int) -> list[tuple[spacecl.Task, Split]]:
    """Tasks with a tenth of the training images for validation, and a test set each that chooses nothing."""
    generator = torch.Generator().manual_seed(seed)
    (x, y), (tx, ty) = cifar10() if benchmark == "split-cifar10" else mnist()
    found = []
    for number in range(tasks):
        if benchmark == "split-cifar10":
            pick, test = [((labels // 2) == number).nonzero()[:, 0] for labels in (y, ty)]
            pick = pick[torch.randperm(len(pick), generator=generator)[:images]]
            train, held = (x[pick], y[pick] % 2), (tx[test], ty[test] % 2)
        else:
            order = torch.randperm(784, generator=generator)
            pick = torch.randperm(len(x), generator=generator)[:images]
            train, held = (x[pick][:, order], y[pick]), (tx[:, order], ty)
        cut = len(train[0]) // 10
        valid = train[0][:cut], train[1][:cut]
        found.append((spacecl.Task(f"task-{number + 1}", (train[0][cut:], train[1][cut:]), valid), held))
    return found


def network(benchmark: str, widths: tuple[int, ...] = (32, 32, 64, 64, 128), classes: int = 2) -> nn.Module:
    """The paper's five-layer CNN (section S2.1), or its MLP with two hidden layers of 1,000."""
    if benchmark == "p-mnist":
        return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))
    a, b, c, d, e = widths
    return nn.Sequential(
        *[
            nn.Conv2d(3, a, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(a, b, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.15),
        ],
        *[
            nn.Conv2d(b, c, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(c, d, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.15),
        ],
        *[nn.Conv2d(d, e, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9 * e, classes)],
    )
