"""Readers of the publishers' file formats: files in, bytes and labels out. Nothing in a pickle is run."""

from __future__ import annotations

import csv
import gzip
import io
import pickle
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError, SpaceError
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


def content(file: Path) -> bytes:
    """A file's bytes, unpacked if it is packed."""
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def idx(file: Path) -> np.ndarray:
    """An array of bytes in the IDX format."""
    try:
        data = content(file)
    except (EOFError, zlib.error, OSError) as error:
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


class _Said:
    """What a pickle says of an array or a type: words, numbers and bytes that nothing has been done with yet."""

    __slots__ = ("said", "state", "what")

    def __init__(self, what: str, said: tuple[Any, ...]):
        self.what, self.said = what, said
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Taker:
    """Stands for a function that a pickle would call, and notes what it would be called with."""

    __slots__ = ("what",)

    def __init__(self, what: str):
        self.what = what

    def __call__(self, *said: Any) -> _Said:
        return _Said(self.what, said)


class _Restricted(pickle.Unpickler):
    """Nothing of the interpreter is handed to a pickle: arrays are made afterwards, from what it says of them."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"_reconstruct", "scalar", "_frombuffer", "ndarray", "dtype"} if module.split(".")[0] == "numpy" else set()
        if name in known or (module, name) == ("_codecs", "encode"):
            return _Taker(name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a file of images")


def _made(found: Any) -> Any:
    """Plain values and arrays of numbers, from what a pickle says."""
    if isinstance(found, dict):
        return {_made(key): _made(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [_made(value) for value in found]
    if not isinstance(found, _Said):
        return found
    if found.what == "encode":  # how old protocols write bytes
        text, encoding = found.said
        return _text(text).encode({"latin1": "latin1"}[_text(encoding)])
    if found.what == "dtype":
        name, order = _text(found.said[0]), _text(found.state[1]) if found.state is not None else "="
        if not re.fullmatch(r"[biuf][1248]", name):
            raise pickle.UnpicklingError(f"values of type {name} have no place in a file of images")
        return np.dtype(f"{'=' if order == '|' else order}{name}")
    if found.what == "scalar":
        number, data = map(_made, found.said)
        return np.frombuffer(data, number, 1)[0]
    if found.what == "_frombuffer":
        data, kind, shape, order = map(_made, found.said)
    else:
        _, shape, kind, columns, data = map(_made, found.state)
        order = "F" if columns else "C"
    if not isinstance(kind, np.dtype):
        raise pickle.UnpicklingError("an array without a type of numbers")
    return np.frombuffer(bytes(data), kind).reshape(tuple(shape), order="F" if _text(order) == "F" else "C")


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else value


def unpickled(file: Path) -> dict[str, Any]:
    """A dictionary from a pickle, its keys as text; anything but data is refused."""
    data = file.read_bytes()
    try:
        found = _made(_Restricted(io.BytesIO(data), encoding="bytes").load())
        return {_text(key): value for key, value in found.items()}
    except Exception as error:  # a damaged pickle may fail in any way
        raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}. Fetch it again.") from error


def read_cifar10(folder: Path) -> Decoded:
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    train = _joined([_rows(folder / f"data_batch_{number}", "labels") for number in range(1, 6)])
    return Decoded(train, _rows(folder / "test_batch", "labels"), names)


def read_cifar100(folder: Path) -> Decoded:
    names = tuple(_text(name) for name in unpickled(folder / "meta").get("fine_label_names", []))
    return Decoded(_rows(folder / "train", "fine_labels"), _rows(folder / "test", "fine_labels"), names or _numbers(100))


def _rows(file: Path, labels: str) -> Split:
    found = unpickled(file)
    pixels, targets = found.get("data"), found.get(labels)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,) or targets is None:
        raise DataError(f'{file} does not hold "data" of 3,072 bytes an image and "{labels}". Fetch it again.')
    return pixels.reshape(-1, 3, 32, 32), np.asarray(targets)


def read_facescrub(folder: Path) -> Decoded:
    """HAT's two pickles of 100 people, or a folder of pictures for each person, of which the 100 with most are taken."""
    pickles = [folder / f"facescrub_{part}_100.pkl" for part in ("train", "test")]
    if all(file.is_file() for file in pickles):
        splits = []
        for file in pickles:
            found = unpickled(file)
            pixels, labels = np.asarray(found["features"]), np.asarray(found["labels"])
            if pixels.shape[1:] != (3, 32, 32):
                raise DataError(f"{file} does not hold 32 x 32 colour images.")
            splits.append((_bytes(pixels, file), labels))
        return Decoded(splits[0], splits[1], _numbers(100))
    people = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: (-len(pictures(path)), path.name))
    if len(people) < 100:
        raise DataError(f"{folder} holds pictures of {len(people)} people; 100 are needed, a folder for each.")
    people = sorted(people[:100])
    train, test, note = read_parts(people, 32, 3, share=2289 / 22889)
    return Decoded(train, test, tuple(path.name for path in people), note)


# -- MATLAB: SVHN -----------------------------------------------------------------------------------------------------


def read_svhn(folder: Path) -> Decoded:
    """Cropped digits; the label 10 stands for a nought."""
    from scipy.io import loadmat

    splits = []
    for part in ("train", "test"):
        file = folder / f"{part}_32x32.mat"
        try:
            found = loadmat(file)
            pixels, labels = found["X"].transpose(3, 2, 0, 1), found["y"].reshape(-1)
        except Exception as error:  # a damaged file may fail in any way
            raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}. Fetch it again.") from error
        splits.append((np.ascontiguousarray(_bytes(pixels, file)), labels % 10))
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
    try:
        with table.open(newline="", encoding="utf-8-sig") as stream:
            mark = ";" if ";" in stream.readline() else ","
            stream.seek(0)
            rows = [(row["Filename"], int(row["ClassId"])) for row in csv.DictReader(stream, delimiter=mark)]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{table} is not the table of test signs, with Filename and ClassId: {error}. Fetch it again."
        ) from error
    test = decode([images / name for name, _ in rows], (3, 32, 32)), np.array([label for _, label in rows], np.int64)
    return Decoded((decode(files, (3, 32, 32)), labels), test, _numbers(43), note)


def pictures(folder: Path) -> list[Path]:
    """The pictures in a folder, however deep, in order; what systems and tools hide there is none of them."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    return sorted(path for path in found if not any(hidden(part) for part in path.relative_to(folder).parts))


def hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX", "@eaDir"))


def listed(folders: Sequence[Path]) -> tuple[list[Path], np.ndarray, str]:
    """The pictures in one folder for each class, and their labels. Empty files are left out, and said."""
    files, labels, empty = [], [], 0
    for label, folder in enumerate(folders):
        found = pictures(folder)
        whole = [file for file in found if file.stat().st_size]
        empty += len(found) - len(whole)
        files += whole
        labels += [label] * len(whole)
        if not whole:
            raise DataError(f"{folder} holds no pictures ({', '.join(PICTURES)}).")
    return files, np.array(labels, np.int64), f"{empty} empty files left out" if empty else ""


def read_parts(folders: Sequence[Path], size: int, channels: int, share: float) -> tuple[Split, Split, str]:
    """Pictures of classes, a share of them set aside as test data, the same ones every time."""
    files, labels, note = listed(folders)
    rest, test = set_aside(len(files), share)
    parts = [(decode([files[row] for row in rows], (channels, size, size)), labels[rows]) for rows in (rest, test)]
    return parts[0], parts[1], note


def decode(files: Sequence[Path], shape: Sequence[int]) -> np.ndarray:
    """Pictures as bytes, all of one shape (channels, height, width); all that cannot be read are named."""
    Image = need_pillow()  # noqa: N806
    found, broken = np.empty((len(files), *shape), np.uint8), []
    for row, file in enumerate(files):
        try:
            with Image.open(file) as picture:
                found[row] = seen(picture, shape)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            broken.append(f"{file} ({error})")
    if broken:
        more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
        raise DataError(f"These pictures cannot be read: {'; '.join(broken[:5])}{more}. Remove or replace them.")
    return found


def seen(picture: Any, shape: Sequence[int]) -> np.ndarray:
    """One picture as it is seen, as bytes: turned as its camera says, what is transparent on white, 16 bits as 8."""
    from PIL import Image, ImageOps

    channels, high, wide = shape
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    if picture.has_transparency_data:
        clear = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != (wide, high):
        picture = picture.resize((wide, high), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(picture).reshape(high, wide, channels).transpose(2, 0, 1)


def need_pillow() -> Any:
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
    except (SpaceError, OSError):
        raise
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
