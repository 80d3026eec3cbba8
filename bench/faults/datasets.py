"""Small datasets of random images in the publishers' formats, for fault injection and for tests."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    """Return an IDX file with an array of bytes."""
    return struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, compressed: bool = True, count: int = 40) -> np.ndarray:
    """Write four small files like MNIST's, and return the training images."""
    generator, parts = np.random.default_rng(0), []
    folder.mkdir(parents=True, exist_ok=True)
    for part, size in (("train", count), ("t10k", count // 4)):
        images = generator.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        parts.append(images)
        for name, array in (("images-idx3", images), ("labels-idx1", (np.arange(size) % 10).astype(np.uint8))):
            data = idx_bytes(array)
            file = folder / f"{part}-{name}-ubyte{'.gz' if compressed else ''}"
            file.write_bytes(gzip.compress(data) if compressed else data)
    return parts[0]


def write_pictures(
    folder: Path,
    names: Iterable[str],
    count: int = 3,
    size: tuple[int, int] = (28, 28),
    mode: str = "L",
    suffix: str = ".png",
) -> None:
    """Write a folder of `count` pictures for each name."""
    from PIL import Image

    generator = np.random.default_rng(1)
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            shape = (*size, 3) if mode == "RGB" else size
            Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8), mode).save(folder / name / f"{number}{suffix}")


def write_cifar10(folder: Path, count: int = 20) -> None:
    """Write six pickles like CIFAR-10's, with `count` images each."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        data = generator.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = generator.permutation(np.arange(count) % 10).tolist()
        (folder / name).write_bytes(pickle.dumps({b"data": data, b"labels": labels}, protocol=2))


def write_cifar100(folder: Path, count: int = 20) -> None:
    """Write three pickles like CIFAR-100's."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in ("train", "test"):
        data = generator.integers(0, 256, (count, 3072), dtype=np.uint8)
        batch: dict[str, Any] = {"data": data, "fine_labels": generator.integers(0, 100, count).tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=4))
    names = [f"class {number}" for number in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, protocol=2))


def write_facescrub(folder: Path, count: int = 20) -> None:
    """Write two pickles like HAT's of FaceScrub."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part in ("train", "test"):
        pixels = generator.integers(0, 256, (count, 3, 32, 32)).astype(np.float32)
        batch = {"features": pixels, "labels": np.arange(count) % 100}
        (folder / f"facescrub_{part}_100.pkl").write_bytes(pickle.dumps(batch))


def write_svhn(folder: Path, count: int = 9, compressed: bool = True) -> None:
    """Write two MATLAB files like SVHN's."""
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for part in ("train", "test"):
        pixels = generator.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        labels = (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]
        savemat(folder / f"{part}_32x32.mat", {"X": pixels, "y": labels}, do_compression=compressed)


def write_gtsrb(folder: Path, count: int = 1) -> None:
    """Write training pictures of 43 signs, and two test pictures with their table."""
    write_pictures(folder / "Final_Training" / "Images", [f"{n:05}" for n in range(43)], count, (12, 9), "RGB", ".ppm")
    write_pictures(folder / "Final_Test", ["Images"], 3, (9, 12), "RGB", ".ppm")
    (folder / "GT-final_test.csv").write_text("Filename;Width;ClassId\n2.ppm;9;41\n0.ppm;9;3\n")
