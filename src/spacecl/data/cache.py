"""The cache of decoded datasets: arrays of bytes and labels in a folder, memory-mapped from there.

An entry is complete or absent. An entry that is damaged is decoded again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from filelock import FileLock
from platformdirs import user_cache_path

from .. import disk
from ..documents import Count, Finite, Sha256, digest_json, read_document
from ..errors import ConfigError, DataError, StoreError
from .arrays import DecodedDataset, Split
from .files import CHUNK, open_file
from .images import Statistics, compute_statistics

VERSION = 2  # of the format; with a new number all datasets are decoded again
ARRAYS = ("pixels", "labels")


@dataclass(frozen=True)
class CachedFile:
    """Size and checksum of an array's file."""

    bytes: Count
    crc32: Count


@dataclass(frozen=True)
class Entry:
    """What the cache stores of a dataset in addition to its arrays (see `DecodedDataset`)."""

    classes: tuple[str, ...]
    note: str
    spread: tuple[tuple[Finite, ...], tuple[Finite, ...]]  # mean and standard deviation of the training images
    files: dict[str, CachedFile]


@dataclass(frozen=True)
class EntryDocument:
    """The file about.json. The checksum is there because another mean would change results without notice."""

    sha256: Sha256
    about: Entry


def cache_folder() -> Path:
    """Return the folder for downloads and decoded data: $SPACECL_CACHE, or the user's cache folder on this system."""
    folder = os.environ.get("SPACECL_CACHE")
    if folder:
        return Path(folder).expanduser()
    return user_cache_path("spacecl", appauthor=False, opinion=False)


def load_decoded(name: str, files: Sequence[Path], decode: Callable[[], DecodedDataset]) -> DecodedDataset:
    """Load a dataset from the cache, or call `decode` and store the result if one of its `files` has changed."""
    try:
        facts = [(str(file.absolute()), stat.st_size, stat.st_mtime_ns) for file in files for stat in [file.stat()]]
    except OSError as error:  # such as a link to a file that does not exist
        raise DataError(f"A data file cannot be read: {error}. Repair or remove it.") from error
    key = hashlib.sha256(json.dumps([VERSION, name, facts]).encode()).hexdigest()[:16]
    folder = cache_folder() / "decoded" / f"{name}-{key}"
    try:
        disk.make_folder(folder.parent)
        with FileLock(folder.parent / f".{name}.lock"):
            disk.remove_leftovers(folder.parent, folder.name)
            dataset = read_entry(folder)
            if dataset is None:
                _write_entry(folder, decode())
                dataset = read_entry(folder)
    except (StoreError, OSError) as error:  # problems with the data files themselves are DataErrors
        raise ConfigError(
            f"The cache {folder.parent} cannot be used: {str(error).rstrip('.')}. Name another folder with SPACECL_CACHE."
        ) from error
    if dataset is None:
        raise DataError(f"{folder} cannot be read back right after it was written. Name another folder with SPACECL_CACHE.")
    return dataset


def _write_entry(folder: Path, dataset: DecodedDataset) -> None:
    """Write an entry to a temporary folder, and rename it when it is complete and on the disk."""
    temporary = folder.with_name(f".making-{folder.name}")
    disk.remove(temporary)  # left by a process that was killed
    disk.make_folder(temporary)
    try:
        splits = {"train": dataset.train, "test": dataset.test}
        arrays = {f"{part}-{kind}.npy": array for part, split in splits.items() for kind, array in zip(ARRAYS, split)}
        for file, array in arrays.items():
            disk.write_file(temporary / file, partial(_write_array, array), sync_name=False)
        files = {file: CachedFile((temporary / file).stat().st_size, _checksum(temporary / file)) for file in arrays}
        entry = asdict(Entry(dataset.classes, dataset.note, compute_statistics(dataset.train[0]), files))
        text = json.dumps({"sha256": digest_json(entry), "about": entry})
        disk.write_file(temporary / "about.json", text.encode(), sync_name=False)
        disk.replace_folder(temporary, folder)
    except BaseException:
        with suppress(StoreError):
            disk.remove(temporary)
        raise


def _write_array(array: np.ndarray, stream: io.RawIOBase) -> None:
    np.save(stream, array)  # type: ignore[arg-type]


def read_entry(folder: Path) -> DecodedDataset | None:
    """Read an entry of the cache as memory-mapped arrays, or return None if it is missing or damaged."""
    try:
        document = read_document(folder / "about.json", EntryDocument)
        entry = document.about
        if digest_json(asdict(entry)) != document.sha256:
            return None
        splits = []
        for part in ("train", "test"):
            pixels, labels = (_map_array(folder / f"{part}-{kind}.npy", entry.files) for kind in ARRAYS)
            splits.append(Split(pixels, np.array(labels)))
        dataset = DecodedDataset(splits[0], splits[1], entry.classes, entry.note, Statistics(*entry.spread))
        return dataset if _is_valid(dataset) else None
    except PermissionError:
        raise
    except Exception:  # a damaged entry may fail in any way, and is decoded again
        return None


def _map_array(file: Path, files: Mapping[str, CachedFile]) -> np.ndarray:
    """Map an array's file into memory, once for all tasks that use it. Its header is only trusted if its checksum is right."""
    checksum = files[file.name].crc32
    if _checksum(file, files[file.name].bytes) != checksum:
        raise ValueError(f"{file} is damaged")
    array = _MAPPED.get((file, checksum))
    if array is None:
        _MAPPED[file, checksum] = array = np.load(file, mmap_mode="r", allow_pickle=False)
    return array


_MAPPED: WeakValueDictionary[tuple[Path, int], np.ndarray] = WeakValueDictionary()  # by file and checksum, while they are used


def _checksum(file: Path, largest: int = sys.maxsize) -> int:
    with open_file(file, largest) as stream:
        status = os.fstat(stream.fileno())
    return _compute_checksum(file, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(256)  # a stream of tasks loads the same entry for every task
def _compute_checksum(file: Path, size: int, changed: int, number: int) -> int:
    """A file that replaces another within one tick of the clock has the same time, but another inode `number`."""
    checksum = 0
    with file.open("rb") as stream:
        while part := stream.read(CHUNK):
            checksum = zlib.crc32(part, checksum)
    return checksum


def _is_valid(dataset: DecodedDataset) -> bool:
    """Whether an entry has the types and shapes that decoding gives."""
    mean, std = dataset.statistics or ((), ())
    return (
        all(
            pixels.dtype == np.uint8
            and pixels.ndim == 4
            and labels.dtype == np.int64
            and labels.shape == pixels.shape[:1]
            and pixels.shape[1:] == dataset.train.pixels.shape[1:]
            and labels.size > 0
            and 0 <= labels.min() <= labels.max() < len(dataset.classes)
            for pixels, labels in (dataset.train, dataset.test)
        )
        and len(mean) == len(std) == dataset.train.pixels.shape[1]
        and min(std) > 0
    )
