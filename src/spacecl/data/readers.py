"""Readers of the publishers' file formats: files in, bytes and labels out. Nothing in a file is run."""

from __future__ import annotations

import csv
import io
import math
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import ConfigError, DataError, SpaceError
from .files import LARGEST_ARRAY, UNPACKING_ERRORS, fill, open_file, open_unpacked
from .images import Values
from .matlab import read_arrays
from .pickles import read_pickle

Split = tuple[np.ndarray, np.ndarray]  # (images, channels, height, width) uint8, and labels
PICTURES = (".png", ".jpg", ".jpeg", ".ppm", ".bmp", ".webp")
FORMATS = ("PNG", "JPEG", "PPM", "BMP", "WEBP")  # of pictures that are opened; some others make Pillow start programs
PIXELS = 32_000_000  # of the largest picture that is opened


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
        if images.shape[1:] != (28, 28) or labels.ndim != 1:
            raise DataError(
                f"{folder}: {part} holds images of shape {images.shape[1:]} and {labels.ndim}-dimensional labels; "
                "28 x 28 and 1 are expected. Fetch it again."
            )
        splits.append((images[:, None], labels.astype(np.int64)))
    return Decoded(splits[0], splits[1], tuple(map(str, range(10))))


def packed(file: Path) -> Path:
    """A file, or the same with .gz."""
    return file if file.is_file() else file.with_name(f"{file.name}.gz")


def idx(file: Path) -> np.ndarray:
    """An array of bytes in the IDX format; no more is unpacked than its header says."""
    try:
        with open_unpacked(file) as stream:
            return _idx(stream, file)
    except UNPACKING_ERRORS as error:
        raise DataError(f"{file} cannot be unpacked: {error}. Fetch it again.") from error


def _idx(stream: BinaryIO, file: Path) -> np.ndarray:
    head = stream.read(4)
    if len(head) < 4 or head[:3] != b"\0\0\x08":
        raise DataError(f"{file} is not an IDX file of bytes. Fetch it again.")
    sizes = stream.read(4 * head[3])
    shape = struct.unpack(f">{len(sizes) // 4}i", sizes[: len(sizes) // 4 * 4])
    count = math.prod(shape)  # of Python's integers, which do not wrap
    if len(shape) < head[3] or min(shape, default=0) < 0 or count > LARGEST_ARRAY:
        raise DataError(
            f"{file} claims to hold an array of {shape}; an honest file has at most {LARGEST_ARRAY:,} bytes. Fetch it again."
        )
    data = np.empty(count, np.uint8)
    found = fill(stream, data)
    if found < count:
        raise DataError(f"{file} is truncated: {found} bytes for an array of {shape}. Fetch it again.")
    if stream.read(1):
        raise DataError(f"{file} is longer than its array of {shape}. Fetch it again.")
    return data.reshape(shape)


# -- Pickles: CIFAR and the FaceScrub subset -------------------------------------------------------------------------


def read_cifar10(folder: Path) -> Decoded:
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    train = _joined([_rows(folder / f"data_batch_{number}", "labels") for number in range(1, 6)])
    return Decoded(train, _rows(folder / "test_batch", "labels"), names)


def read_cifar100(folder: Path) -> Decoded:
    file = folder / "meta"
    names = [_name(name, file) for name in read_pickle(file).get("fine_label_names") or _numbers(100)]
    if len(set(names)) != 100:
        raise DataError(f"{file} holds {len(set(names))} names of classes; there are 100. Fetch it again.")
    return Decoded(_rows(folder / "train", "fine_labels"), _rows(folder / "test", "fine_labels"), tuple(names))


def _name(value: Any, file: Path) -> str:
    found = value.decode() if isinstance(value, bytes) else value
    if not isinstance(found, str) or not found:
        raise DataError(f"{file} holds names of classes that are not text. Fetch it again.")
    return found


def _rows(file: Path, labels: str) -> Split:
    found = read_pickle(file)
    pixels = found.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,) or labels not in found:
        raise DataError(f'{file} does not hold "data" of 3,072 bytes an image and "{labels}". Fetch it again.')
    return pixels.reshape(-1, 3, 32, 32), _labels(found[labels], file)


def _labels(values: Any, file: Path) -> np.ndarray:
    """Labels from a pickle. What is no flat row of whole numbers is refused before NumPy would make an array of it."""
    if isinstance(values, list) and all(isinstance(value, (int, np.integer)) and 0 <= value < 1 << 16 for value in values):
        return np.array(values, np.int64)
    if isinstance(values, np.ndarray) and values.ndim == 1 and np.issubdtype(values.dtype, np.integer):
        return values
    raise DataError(f"{file} holds labels that are not a row of whole numbers. Fetch it again.")


def read_facescrub(folder: Path) -> Decoded:
    """HAT's two pickles of 100 people, or a folder of pictures for each person, of which the 100 with most are taken."""
    pickles = [folder / f"facescrub_{part}_100.pkl" for part in ("train", "test")]
    if all(file.is_file() for file in pickles):
        splits = []
        for file in pickles:
            found = read_pickle(file)
            pixels = found.get("features")
            if not isinstance(pixels, np.ndarray) or pixels.shape[1:] != (3, 32, 32):
                raise DataError(f"{file} does not hold 32 x 32 colour images. Fetch it again.")
            splits.append((_bytes(pixels, file), _labels(found.get("labels"), file)))
        return Decoded(splits[0], splits[1], _numbers(100))
    people = sorted(
        (path for path in folder.iterdir() if path.is_dir()), key=lambda path: (-len(list_pictures(path)), path.name)
    )
    if len(people) < 100:
        raise DataError(f"{folder} holds pictures of {len(people)} people; 100 are needed, a folder for each.")
    people = sorted(people[:100])
    train, test, note = read_parts(people, 32, 3, share=2289 / 22889)
    return Decoded(train, test, tuple(path.name for path in people), note)


# -- MATLAB: SVHN -----------------------------------------------------------------------------------------------------


def read_svhn(folder: Path) -> Decoded:
    """Cropped digits; the label 10 stands for a nought."""
    splits = []
    for part in ("train", "test"):
        file = folder / f"{part}_32x32.mat"
        try:
            found = read_arrays(file, ("X", "y"))
        except (ValueError, zlib.error) as error:
            raise DataError(f"{file} cannot be read: {error}. Fetch it again.") from error
        pixels, labels = found["X"], found["y"].reshape(-1)
        if pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
            raise DataError(f"{file} holds images of shape {pixels.shape[:3]}; (32, 32, 3) is expected. Fetch it again.")
        if labels.size and not 0 <= labels.min() <= labels.max() <= 10:
            raise DataError(f"{file} holds labels from {labels.min()} to {labels.max()}; they go from 1 to 10. Fetch it again.")
        splits.append((np.ascontiguousarray(_bytes(pixels, file).transpose(3, 2, 0, 1)), labels % 10))
    return Decoded(splits[0], splits[1], _numbers(10))


def _bytes(pixels: np.ndarray, file: Path) -> np.ndarray:
    """Pixel values as bytes; others than whole numbers from 0 to 255 would be lost."""
    if pixels.dtype != np.uint8 and not np.array_equal(pixels, pixels.astype(np.uint8)):
        raise DataError(f"{file} holds pixels as {pixels.dtype} that are not whole numbers from 0 to 255.")
    return pixels.astype(np.uint8, copy=False)


# -- Folders of pictures: notMNIST, GTSRB, and users' own ------------------------------------------------------------------


def read_notmnist(folder: Path) -> Decoded:
    """Ten folders, A to J, without a split: a tenth is set aside as test data."""
    train, test, note = read_parts([folder / letter for letter in "ABCDEFGHIJ"], 28, 1, share=0.1)
    return Decoded(train, test, tuple("ABCDEFGHIJ"), note)


def read_gtsrb(folder: Path) -> Decoded:
    """Pictures of 43 signs in sizes of all kinds, made 32 x 32; the test labels stand in a table."""
    signs = [folder / "Final_Training" / "Images" / f"{number:05}" for number in range(43)]
    files, labels, note = listed(signs)
    images = folder / "Final_Test" / "Images"
    table = next(file for file in (folder / "GT-final_test.csv", images / "GT-final_test.csv") if file.is_file())
    rows = _sign_rows(table)
    test = decode_pictures([images / name for name in rows], (3, 32, 32)), np.array(list(rows.values()), np.int64)
    return Decoded((decode_pictures(files, (3, 32, 32)), labels), test, _numbers(43), note)


def _sign_rows(table: Path) -> dict[str, int]:
    """The names of the test pictures, which must lie in one folder, and their labels."""
    rows: dict[str, int] = {}
    try:
        with open_file(table, LARGEST_TABLE) as stream:
            text = io.StringIO(stream.read().decode("utf-8-sig"), newline="")
        mark = ";" if ";" in text.readline() else ","
        text.seek(0)
        for row in csv.DictReader(text, delimiter=mark):
            name, label = row["Filename"], int(row["ClassId"])
            plain = name == Path(name).name and name.isprintable() and name.lower().endswith(PICTURES)
            if not plain or name in rows or not 0 <= label < 43:
                raise ValueError(f"the row {name[:100]!r} with {row['ClassId'][:100]!r} is no sign, or is there twice")
            rows[name] = label
    except (KeyError, TypeError, AttributeError, ValueError, csv.Error) as error:
        raise DataError(
            f"{table} is not the table of test signs, with Filename and ClassId: {error}. Fetch it again."
        ) from error
    return rows


LARGEST_TABLE = 1 << 24  # bytes, forty times what is published


def list_pictures(folder: Path) -> list[Path]:
    """The pictures in a folder, however deep, in order; what systems and tools hide there is none of them."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    return sorted(path for path in found if not any(hidden(part) for part in path.relative_to(folder).parts))


def hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX", "@eaDir"))


def listed(folders: Sequence[Path]) -> tuple[list[Path], np.ndarray, str]:
    """The pictures in one folder for each class, and their labels. Empty files are left out, and said."""
    files, labels, empty = [], [], 0
    for label, folder in enumerate(folders):
        found = list_pictures(folder)
        whole = [file for file in found if not _is_empty(file)]
        empty += len(found) - len(whole)
        files += whole
        labels += [label] * len(whole)
        if not whole:
            raise DataError(f"{folder} holds no pictures ({', '.join(PICTURES)}).")
    return files, np.array(labels, np.int64), f"{empty} empty files left out" if empty else ""


def _is_empty(file: Path) -> bool:
    """Whether a file is regular and empty. What is no file at all is named when it is opened."""
    try:
        status = file.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and not status.st_size


def read_parts(folders: Sequence[Path], size: int, channels: int, share: float) -> tuple[Split, Split, str]:
    """Pictures of classes, a share of them set aside as test data, the same ones every time."""
    files, labels, note = listed(folders)
    rest, test = set_aside(len(files), share)
    parts = [(decode_pictures([files[row] for row in rows], (channels, size, size)), labels[rows]) for rows in (rest, test)]
    return parts[0], parts[1], note


def decode_pictures(files: Sequence[Path], shape: Sequence[int]) -> np.ndarray:
    """Pictures as bytes, all of one shape (channels, height, width); all that cannot be read are named."""
    require_pillow()
    found, broken = np.empty((len(files), *shape), np.uint8), []
    for row, file in enumerate(files):
        try:
            with open_file(file) as stream, open_picture(stream) as picture:
                found[row] = to_pixels(picture, shape)
        except Exception as error:  # decoders fail in all ways
            broken.append(f"{file} ({str(error) or type(error).__name__})")
    if broken:
        more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
        raise DataError(f"These pictures cannot be read: {'; '.join(broken[:5])}{more}. Remove or replace them.")
    return found


class LargePictureError(ValueError):
    """A picture with more than PIXELS pixels; a file of kilobytes may hold one that takes gigabytes."""


@contextmanager
def open_picture(stream: BinaryIO) -> Iterator[Any]:
    """Open a picture of one of FORMATS with Pillow, of at most PIXELS pixels."""
    Image = require_pillow()  # noqa: N806
    large = LargePictureError(f"it has more than {PIXELS:,} pixels")
    try:
        picture = Image.open(stream, formats=FORMATS)
        if picture.width * picture.height > PIXELS:
            raise large
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # Pillow's own limit is higher
        raise large from None
    except Image.UnidentifiedImageError:
        raise ValueError(f"it is none of {', '.join(FORMATS)}") from None
    with picture:
        yield picture


def to_pixels(picture: Any, shape: Sequence[int]) -> np.ndarray:
    """One picture as it is seen, as bytes: turned as its camera says, what is transparent on white, 16 bits as 8."""
    from PIL import Image, ImageOps

    channels, high, wide = shape
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8))
    if picture.has_transparency_data:
        clear = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != (wide, high):
        picture = picture.resize((wide, high), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(picture).reshape(high, wide, channels).transpose(2, 0, 1)


def require_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError('Reading pictures needs Pillow. Install it with: pip install "spacecl[data]"') from error
    return Image


def set_aside(count: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers in two parts, the second with a share of them; the same ones every time."""
    order = np.random.default_rng(0).permutation(count)
    cut = round(share * count)
    return np.sort(order[cut:]), np.sort(order[:cut])


def _joined(splits: Sequence[Split]) -> Split:
    return np.concatenate([split[0] for split in splits]), np.concatenate([split[1] for split in splits])


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def read(name: str, folder: Path) -> Decoded:
    """A dataset's files as arrays. Whatever is wrong with them is an error that names the folder."""
    try:
        found = READERS[name](folder)
    except SpaceError:
        raise
    except OSError as error:
        raise DataError(f"{folder} cannot be read as {name}: {error}. Repair or replace the file.") from error
    except Exception as error:  # damaged files may fail in any way
        raise DataError(f"{folder} cannot be read as {name}: {type(error).__name__}: {error}. Fetch it again.") from error
    for part, (pixels, labels) in (("training", found.train), ("test", found.test)):
        if len(pixels) != len(labels) or not len(labels):
            raise DataError(f"{folder} holds {len(pixels)} {part} images and {len(labels)} labels. Fetch it again.")
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= len(found.classes):
            raise DataError(
                f"{folder}: {part} labels are not whole numbers from 0 to {len(found.classes) - 1}. Fetch it again."
            )
    train, test = ((pixels, labels.astype(np.int64)) for pixels, labels in (found.train, found.test))
    return replace(found, train=train, test=test)


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
