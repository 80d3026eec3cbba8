"""Readers of the publishers' file formats: files in, bytes and labels out. Pickles are read without running anything."""

from __future__ import annotations

import csv
import gzip
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..images import Values

Split = tuple[np.ndarray, np.ndarray]  # (images, channels, height, width) uint8, and labels
PICTURES = (".png", ".jpg", ".jpeg", ".ppm", ".bmp", ".webp")


@dataclass(frozen=True)
class Decoded:
    """A dataset as arrays, with the names of its classes and what was left out."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    note: str = ""
    spread: tuple[Values, Values] | None = None  # mean and standard deviation of the training images, when known


# -- IDX: MNIST and Fashion-MNIST -----------------------------------------------------------------------------------


def read_idx(folder: Path) -> Decoded:
    """Four IDX files, compressed or not."""
    splits = []
    for part in ("train", "t10k"):
        images = idx(packed(folder / f"{part}-images-idx3-ubyte"))
        labels = idx(packed(folder / f"{part}-labels-idx1-ubyte"))
        if images.ndim != 3 or labels.ndim != 1:
            raise DataError(f"{folder}: {part} holds {images.ndim}-dimensional images and {labels.ndim}-dimensional labels.")
        splits.append((images[:, None], labels.astype(np.int64)))
    return Decoded(splits[0], splits[1], tuple(map(str, range(10))))


def packed(file: Path) -> Path:
    """A file, or the same with .gz."""
    return file if file.is_file() else file.with_name(f"{file.name}.gz")


def idx(file: Path) -> np.ndarray:
    """An array of bytes in the IDX format."""
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        raise DataError(f"{file} cannot be unpacked: {error}. Fetch it again.") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(f"{file} is not an IDX file of bytes. Fetch it again.")
    shape = np.frombuffer(data, ">i4", data[3], offset=4) if len(data) >= 4 + 4 * data[3] else np.array([-1])
    start = 4 + 4 * data[3]
    if len(data) - start != int(np.prod(shape)):
        raise DataError(
            f"{file} is truncated: {len(data) - start} bytes for an array of {tuple(shape.tolist())}. Fetch it again."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


# -- Pickles: CIFAR and the FaceScrub subset -------------------------------------------------------------------------


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
}


class _Restricted(pickle.Unpickler):
    """Only NumPy arrays, plain text, numbers, lists and dictionaries may come out of a file of data."""

    def find_class(self, module: str, name: str) -> Any:
        room = module.replace("numpy._core.", "numpy.core.")  # NumPy 2 has another name for it
        if (room, name) in _ALLOWED:
            try:
                return getattr(import_module(room.replace("numpy.core.", "numpy._core.")), name)
            except ModuleNotFoundError:
                return getattr(import_module(room), name)
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # how arrays' bytes are written by old protocols
            return _encode
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a file of images")


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes written as {encoding} have no place in a file of images")
    return text.encode("latin1")


def unpickled(file: Path) -> dict[str, Any]:
    """A dictionary from a pickle, its keys as text; anything but data is refused."""
    try:
        found = _Restricted(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in found.items()}
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may fail in any way
        raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}. Fetch it again.") from error


def read_cifar10(folder: Path) -> Decoded:
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    train = _joined([_rows(folder / f"data_batch_{number}", "labels") for number in range(1, 6)])
    return Decoded(train, _rows(folder / "test_batch", "labels"), names)


def read_cifar100(folder: Path) -> Decoded:
    names = tuple(name.decode() for name in unpickled(folder / "meta").get("fine_label_names", []))
    return Decoded(_rows(folder / "train", "fine_labels"), _rows(folder / "test", "fine_labels"), names or _numbers(100))


def _rows(file: Path, labels: str) -> Split:
    found = unpickled(file)
    pixels, targets = found.get("data"), found.get(labels)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,) or targets is None:
        raise DataError(f'{file} does not hold "data" of 3,072 bytes an image and "{labels}". Fetch it again.')
    if len(targets) != len(pixels):
        raise DataError(f"{file} holds {len(pixels)} images and {len(targets)} labels. Fetch it again.")
    return pixels.reshape(-1, 3, 32, 32), np.asarray(targets, np.int64)


def read_facescrub(folder: Path) -> Decoded:
    """HAT's two pickles of 100 people, or a folder of pictures for each person, of which the 100 with most are taken."""
    pickles = [folder / f"facescrub_{part}_100.pkl" for part in ("train", "test")]
    if all(file.is_file() for file in pickles):
        splits = []
        for file in pickles:
            found = unpickled(file)
            pixels, labels = np.asarray(found["features"]), np.asarray(found["labels"])
            if pixels.shape[1:] != (3, 32, 32) or labels.shape != (len(pixels),):
                raise DataError(f"{file} does not hold 32 x 32 colour images with a label each.")
            splits.append((pixels.astype(np.uint8), labels.astype(np.int64)))
        return Decoded(splits[0], splits[1], _numbers(100))
    people = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: (-len(pictures(path)), path.name))
    if len(people) < 100:
        raise DataError(f"{folder} holds pictures of {len(people)} people; 100 are needed, a folder for each.")
    people = sorted(people[:100])
    train, test, note = set_aside(*read_folders(people, 32, 3), share=2289 / 22889)
    return Decoded(train, test, tuple(path.name for path in people), note)


# -- MATLAB: SVHN -----------------------------------------------------------------------------------------------------


def read_svhn(folder: Path) -> Decoded:
    """Cropped digits; the label 10 stands for a nought."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    splits = []
    for part in ("train", "test"):
        file = folder / f"{part}_32x32.mat"
        try:
            found = loadmat(file)
            pixels, labels = found["X"].transpose(3, 2, 0, 1), found["y"].reshape(-1).astype(np.int64) % 10
        except (MatReadError, ValueError, KeyError, TypeError, EOFError, OSError) as error:
            raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}. Fetch it again.") from error
        splits.append((np.ascontiguousarray(pixels, np.uint8), labels))
    return Decoded(splits[0], splits[1], _numbers(10))


# -- Folders of pictures: notMNIST, GTSRB, and users' own ------------------------------------------------------------------


def read_notmnist(folder: Path) -> Decoded:
    """Ten folders, A to J, without a split: a tenth is set aside as test data."""
    letters = [folder / letter for letter in "ABCDEFGHIJ"]
    train, test, note = set_aside(*read_folders(letters, 28, 1), share=0.1)
    return Decoded(train, test, tuple("ABCDEFGHIJ"), note)


def read_gtsrb(folder: Path) -> Decoded:
    """Pictures of 43 signs in sizes of all kinds, made 32 x 32; the test labels stand in a table."""
    signs = [folder / "Final_Training" / "Images" / f"{number:05}" for number in range(43)]
    train, note = read_folders(signs, 32, 3)
    images = folder / "Final_Test" / "Images"
    table = next(file for file in (folder / "GT-final_test.csv", images / "GT-final_test.csv") if file.is_file())
    with table.open(newline="") as stream:
        rows = [(row["Filename"], int(row["ClassId"])) for row in csv.DictReader(stream, delimiter=";")]
    test = decode([images / name for name, _ in rows], 32, 3), np.array([label for _, label in rows])
    return Decoded(train, test, _numbers(43), note)


def pictures(folder: Path) -> list[Path]:
    """The pictures in a folder, however deep, in order."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES and not path.name.startswith("."))


def read_folders(folders: Sequence[Path], size: int, channels: int) -> tuple[Split, str]:
    """Pictures from one folder for each class. Empty files are left out, and said; damaged ones are an error."""
    files, labels, empty = [], [], 0
    for label, folder in enumerate(folders):
        found = pictures(folder)
        whole = [file for file in found if file.stat().st_size]
        empty += len(found) - len(whole)
        files += whole
        labels += [label] * len(whole)
        if not whole:
            raise DataError(f"{folder} holds no pictures ({', '.join(PICTURES)}).")
    note = f"{empty} empty files left out" if empty else ""
    return (decode(files, size, channels), np.array(labels, np.int64)), note


def decode(files: Sequence[Path], size: int, channels: int) -> np.ndarray:
    """Pictures as bytes, made square of one size; all that cannot be read are named."""
    Image = need_pillow()  # noqa: N806
    found, broken = np.empty((len(files), channels, size, size), np.uint8), []
    for row, file in enumerate(files):
        try:
            with Image.open(file) as picture:
                picture = picture.convert("L" if channels == 1 else "RGB")
                if picture.size != (size, size):
                    picture = picture.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
                found[row] = np.asarray(picture).reshape(size, size, channels).transpose(2, 0, 1)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            broken.append(f"{file} ({error})")
    if broken:
        more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
        raise DataError(f"These pictures cannot be read: {'; '.join(broken[:5])}{more}. Remove or replace them.")
    return found


def need_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError('Reading pictures needs Pillow. Install it with: pip install "spacecl[data]"') from error
    return Image


def set_aside(data: Split, note: str, share: float) -> tuple[Split, Split, str]:
    """A share of the images as test data, the same ones every time."""
    pixels, labels = data
    order = np.random.default_rng(0).permutation(len(labels))
    cut = round(share * len(labels))
    rest, test = np.sort(order[cut:]), np.sort(order[:cut])
    return (pixels[rest], labels[rest]), (pixels[test], labels[test]), note


def _joined(splits: Sequence[Split]) -> Split:
    return np.concatenate([split[0] for split in splits]), np.concatenate([split[1] for split in splits])


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


Reader = Callable[[Path], Decoded]
READERS: Mapping[str, Reader] = {
    "mnist": read_idx,
    "fashion-mnist": read_idx,
    "notmnist": read_notmnist,
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "svhn": read_svhn,
    "gtsrb": read_gtsrb,
    "facescrub": read_facescrub,
}
