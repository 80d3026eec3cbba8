"""Read datasets in the publishers' file formats. Nothing in a file is executed."""

from __future__ import annotations

import csv
import io
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import DataError, SpaceError
from .arrays import DecodedDataset, Split
from .files import DECOMPRESSION_ERRORS, LARGEST_ARRAY, open_decompressed, open_file, read_into
from .matlab import read_arrays
from .pickles import read_pickle
from .pictures import PICTURE_SUFFIXES, decode_pictures, list_labelled_pictures, list_pictures, read_class_folders

LARGEST_TABLE = 1 << 24  # bytes of GTSRB's table, forty times the size of the published one


def read_dataset(name: str, folder: Path) -> DecodedDataset:
    """Read a dataset's files and check their images and labels. Every error names the folder or the file."""
    try:
        dataset = READERS[name](folder)
    except SpaceError:
        raise
    except OSError as error:
        raise DataError(f"{folder} cannot be read as {name}: {error}. Repair or replace the file.") from error
    except Exception as error:  # damaged files may fail in any way
        raise DataError(f"{folder} cannot be read as {name}: {type(error).__name__}: {error}. Fetch it again.") from error
    for part, (pixels, labels) in (("training", dataset.train), ("test", dataset.test)):
        if len(pixels) != len(labels) or not len(labels):
            raise DataError(f"{folder} holds {len(pixels)} {part} images and {len(labels)} labels. Fetch it again.")
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= len(dataset.classes):
            raise DataError(
                f"{folder}: {part} labels are not whole numbers from 0 to {len(dataset.classes) - 1}. Fetch it again."
            )
    train, test = (Split(pixels, labels.astype(np.int64)) for pixels, labels in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test)


# -- IDX: MNIST and Fashion-MNIST -----------------------------------------------------------------------------------


def read_idx(folder: Path) -> DecodedDataset:
    """Read the four IDX files of MNIST or Fashion-MNIST, compressed with gzip or not."""
    splits = []
    for part in ("train", "t10k"):
        images = read_idx_array(add_gz(folder / f"{part}-images-idx3-ubyte"))
        labels = read_idx_array(add_gz(folder / f"{part}-labels-idx1-ubyte"))
        if images.shape[1:] != (28, 28) or labels.ndim != 1:
            raise DataError(
                f"{folder}: {part} holds images of shape {images.shape[1:]} and {labels.ndim}-dimensional labels; "
                "28 x 28 and 1 are expected. Fetch it again."
            )
        splits.append(Split(images[:, None], labels.astype(np.int64)))
    return DecodedDataset(splits[0], splits[1], _name_classes(10))


def add_gz(file: Path) -> Path:
    """Return the path of a file, or the same path with .gz if the file does not exist."""
    return file if file.is_file() else file.with_name(f"{file.name}.gz")


def read_idx_array(file: Path) -> np.ndarray:
    """Read an array of bytes in the IDX format. No more is decompressed than its header says."""
    try:
        with open_decompressed(file) as stream:
            return _read_idx_stream(stream, file)
    except DECOMPRESSION_ERRORS as error:
        raise DataError(f"{file} cannot be decompressed: {error}. Fetch it again.") from error


def _read_idx_stream(stream: BinaryIO, file: Path) -> np.ndarray:
    header = stream.read(4)
    if len(header) < 4 or header[:3] != b"\0\0\x08":
        raise DataError(f"{file} is not an IDX file of bytes. Fetch it again.")
    sizes = stream.read(4 * header[3])
    shape = struct.unpack(f">{len(sizes) // 4}i", sizes[: len(sizes) // 4 * 4])
    count = math.prod(shape)  # Python's integers do not overflow
    if len(shape) < header[3] or min(shape, default=0) < 0 or count > LARGEST_ARRAY:
        raise DataError(
            f"{file} claims to hold an array of {shape}; at most {LARGEST_ARRAY:,} bytes are expected. Fetch it again."
        )
    data = np.empty(count, np.uint8)
    size = read_into(stream, data)
    if size < count:
        raise DataError(f"{file} is truncated: {size} bytes for an array of {shape}. Fetch it again.")
    if stream.read(1):
        raise DataError(f"{file} is longer than its array of {shape}. Fetch it again.")
    return data.reshape(shape)


# -- Pickles: CIFAR and the FaceScrub subset -------------------------------------------------------------------------


def read_cifar10(folder: Path) -> DecodedDataset:
    """Read CIFAR-10 from its six pickles."""
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    train = _concatenate([_read_cifar_batch(folder / f"data_batch_{number}", "labels") for number in range(1, 6)])
    return DecodedDataset(train, _read_cifar_batch(folder / "test_batch", "labels"), names)


def read_cifar100(folder: Path) -> DecodedDataset:
    """Read CIFAR-100, with its 100 fine classes, from its three pickles."""
    file = folder / "meta"
    names = [_to_class_name(name, file) for name in read_pickle(file).get("fine_label_names") or _name_classes(100)]
    if len(set(names)) != 100:
        raise DataError(f"{file} holds {len(set(names))} class names; 100 are expected. Fetch it again.")
    train, test = (_read_cifar_batch(folder / part, "fine_labels") for part in ("train", "test"))
    return DecodedDataset(train, test, tuple(names))


def _to_class_name(value: Any, file: Path) -> str:
    name = value.decode() if isinstance(value, bytes) else value
    if not isinstance(name, str) or not name:
        raise DataError(f"{file} holds class names that are not text. Fetch it again.")
    return name


def _read_cifar_batch(file: Path, labels: str) -> Split:
    batch = read_pickle(file)
    pixels = batch.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,) or labels not in batch:
        raise DataError(f'{file} does not hold "data" with 3,072 bytes per image and "{labels}". Fetch it again.')
    return Split(pixels.reshape(-1, 3, 32, 32), _to_labels(batch[labels], file))


def _to_labels(values: Any, file: Path) -> np.ndarray:
    """Convert labels from a pickle. They are checked first, because NumPy can make a huge array of nested values."""
    if isinstance(values, list) and all(isinstance(value, (int, np.integer)) and 0 <= value < 1 << 16 for value in values):
        return np.array(values, np.int64)
    if isinstance(values, np.ndarray) and values.ndim == 1 and np.issubdtype(values.dtype, np.integer):
        return values
    raise DataError(f"{file} holds labels that are not a row of whole numbers. Fetch it again.")


def read_facescrub(folder: Path) -> DecodedDataset:
    """Read 100 people of FaceScrub, from HAT's two pickles or from a folder of pictures per person.

    If there are more than 100 folders, those with most pictures are taken.
    """
    pickles = [folder / f"facescrub_{part}_100.pkl" for part in ("train", "test")]
    if all(file.is_file() for file in pickles):
        splits = []
        for file in pickles:
            values = read_pickle(file)
            pixels = values.get("features")
            if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (3, 32, 32):
                raise DataError(f"{file} does not hold 32 x 32 colour images. Fetch it again.")
            splits.append(Split(_to_bytes(pixels, file), _to_labels(values.get("labels"), file)))
        return DecodedDataset(splits[0], splits[1], _name_classes(100))
    people = sorted(
        (path for path in folder.iterdir() if path.is_dir()), key=lambda path: (-len(list_pictures(path)), path.name)
    )
    if len(people) < 100:
        raise DataError(f"{folder} holds pictures of {len(people)} people; 100 are needed, a folder for each.")
    people = sorted(people[:100])
    train, test, note = read_class_folders(people, 32, 3, share=2289 / 22889)
    return DecodedDataset(train, test, tuple(path.name for path in people), note)


# -- MATLAB: SVHN -----------------------------------------------------------------------------------------------------


def read_svhn(folder: Path) -> DecodedDataset:
    """Read the cropped digits of SVHN from two MATLAB files. The label 10 stands for zero."""
    splits = []
    for part in ("train", "test"):
        file = folder / f"{part}_32x32.mat"
        try:
            arrays = read_arrays(file, ("X", "y"))
        except (ValueError, zlib.error) as error:
            raise DataError(f"{file} cannot be read: {error}. Fetch it again.") from error
        pixels, labels = arrays["X"], arrays["y"].reshape(-1)
        if pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
            raise DataError(f"{file} holds images of shape {pixels.shape[:3]}; (32, 32, 3) is expected. Fetch it again.")
        if labels.size and not 0 <= labels.min() <= labels.max() <= 10:
            raise DataError(f"{file} holds labels from {labels.min()} to {labels.max()}, not from 1 to 10. Fetch it again.")
        splits.append(Split(np.ascontiguousarray(_to_bytes(pixels, file).transpose(3, 2, 0, 1)), labels % 10))
    return DecodedDataset(splits[0], splits[1], _name_classes(10))


def _to_bytes(pixels: np.ndarray, file: Path) -> np.ndarray:
    """Convert pixel values to bytes, unless that would change them."""
    if pixels.dtype != np.uint8 and not np.array_equal(pixels, pixels.astype(np.uint8)):
        raise DataError(f"{file} holds pixels as {pixels.dtype} that are not whole numbers from 0 to 255.")
    return pixels.astype(np.uint8, copy=False)


# -- Folders of pictures: notMNIST and GTSRB --------------------------------------------------------------------------


def read_notmnist(folder: Path) -> DecodedDataset:
    """Read notMNIST from ten folders, A to J. It has no test data of its own, so a tenth is set aside."""
    train, test, note = read_class_folders([folder / letter for letter in "ABCDEFGHIJ"], 28, 1, share=0.1)
    return DecodedDataset(train, test, tuple("ABCDEFGHIJ"), note)


def read_gtsrb(folder: Path) -> DecodedDataset:
    """Read GTSRB: pictures of 43 traffic signs, resized to 32 x 32. The test labels are in a table."""
    signs = [folder / "Final_Training" / "Images" / f"{number:05}" for number in range(43)]
    train = list_labelled_pictures(signs)
    images = folder / "Final_Test" / "Images"
    table = next(file for file in (folder / "GT-final_test.csv", images / "GT-final_test.csv") if file.is_file())
    test_labels = _read_sign_table(table)
    test_pixels = decode_pictures([images / name for name in test_labels], (3, 32, 32))
    return DecodedDataset(
        Split(decode_pictures(train.files, (3, 32, 32)), train.labels),
        Split(test_pixels, np.array(list(test_labels.values()), np.int64)),
        _name_classes(43),
        train.note,
    )


def _read_sign_table(table: Path) -> dict[str, int]:
    """Read the label of every test picture. A name may not lead out of the folder of the test pictures."""
    labels: dict[str, int] = {}
    try:
        with open_file(table, LARGEST_TABLE) as stream:
            text = io.StringIO(stream.read().decode("utf-8-sig"), newline="")
        delimiter = ";" if ";" in text.readline() else ","
        text.seek(0)
        for row in csv.DictReader(text, delimiter=delimiter):
            name, label = row["Filename"], int(row["ClassId"])
            is_plain = name == Path(name).name and name.isprintable() and name.lower().endswith(PICTURE_SUFFIXES)
            if not is_plain or name in labels or not 0 <= label < 43:
                raise ValueError(f"the row {name[:100]!r} with {row['ClassId'][:100]!r} is not a sign, or is there twice")
            labels[name] = label
    except (KeyError, TypeError, AttributeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{table} is not the table of test signs, with Filename and ClassId: {error}. Fetch it again."
        ) from error
    return labels


def _concatenate(splits: Sequence[Split]) -> Split:
    return Split(*(np.concatenate(arrays) for arrays in zip(*splits)))


def _name_classes(count: int) -> tuple[str, ...]:
    """Name classes by their numbers."""
    return tuple(map(str, range(count)))


READERS: Mapping[str, Callable[[Path], DecodedDataset]] = {
    "mnist": read_idx,
    "fashion-mnist": read_idx,
    "notmnist": read_notmnist,
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "svhn": read_svhn,
    "gtsrb": read_gtsrb,
    "facescrub": read_facescrub,
}
