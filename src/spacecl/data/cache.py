"""Data decoded once: bytes and labels in a folder, memory-mapped from there. An entry is whole or not there."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from filelock import FileLock

from .. import disk
from ..documents import Count, Finite, Sha256, digest_json, read_document
from ..errors import ConfigError, DataError, StoreError
from .files import CHUNK, open_file
from .images import statistics
from .readers import Decoded

VERSION = 2  # of the decoded form; another number makes all be decoded anew


@dataclass(frozen=True)
class CachedFile:
    """An array's file as it was written."""

    bytes: Count
    crc32: Count


@dataclass(frozen=True)
class About:
    """What an entry says of its arrays: class names, what was left out, mean and deviation of the training images."""

    classes: tuple[str, ...]
    note: str
    spread: tuple[tuple[Finite, ...], tuple[Finite, ...]]
    files: dict[str, CachedFile]


@dataclass(frozen=True)
class Kept:
    """about.json, with its own checksum: another mean would change results in silence."""

    sha256: Sha256
    about: About


def cache() -> Path:
    """The folder for downloads and decoded data: SPACECL_CACHE, or the usual place of the system."""
    given = os.environ.get("SPACECL_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return Path(base or Path.home() / ".cache").expanduser() / "spacecl"


def decoded(name: str, files: Sequence[Path], decode: Callable[[], Decoded]) -> Decoded:
    """What `decode` makes of some files, from the cache if they are those of the last time."""
    try:
        facts = [(str(file.absolute()), stat.st_size, stat.st_mtime_ns) for file in files for stat in [file.stat()]]
    except OSError as error:  # such as a link that leads nowhere
        raise DataError(f"A data file cannot be read: {error}. Repair or remove it.") from error
    key = hashlib.sha256(json.dumps([VERSION, name, facts]).encode()).hexdigest()[:16]
    folder = cache() / "decoded" / f"{name}-{key}"
    try:
        disk.make_folder(folder.parent)
        with FileLock(folder.parent / f".{name}.lock"):
            disk.remove_leftovers(folder.parent, folder.name)
            found = _cached(folder)
            if found is None:
                _fill(folder, decode())
                found = _cached(folder)
    except (StoreError, OSError) as error:  # what is wrong with the data files themselves is a DataError
        raise ConfigError(
            f"The cache {folder.parent} cannot be used: {str(error).rstrip('.')}. Name another folder with SPACECL_CACHE."
        ) from error
    if found is None:
        raise DataError(f"{folder} cannot be read back right after it was written. Name another folder with SPACECL_CACHE.")
    return found


def _fill(folder: Path, found: Decoded) -> None:
    """Write an entry beside its place and put it there when it is whole and on the disk."""
    made = folder.with_name(f".making-{folder.name}")
    disk.remove(made)  # left by a process that was killed
    disk.make_folder(made)
    try:
        arrays = {f"{part}-{what}.npy": array for part in ("train", "test") for what, array in zip(_KEPT, getattr(found, part))}
        for file, array in arrays.items():
            disk.write_file(made / file, partial(_write_array, array), sync_name=False)
        files = {file: CachedFile((made / file).stat().st_size, _checksum(made / file)) for file in arrays}
        about = asdict(About(found.classes, found.note, statistics(found.train[0]), files))
        text = json.dumps({"sha256": digest_json(about), "about": about})
        disk.write_file(made / "about.json", text.encode(), sync_name=False)
        disk.replace_folder(made, folder)
    except BaseException:
        with suppress(StoreError):
            disk.remove(made)
        raise


def _write_array(array: np.ndarray, stream: io.RawIOBase) -> None:
    np.save(stream, array)  # type: ignore[arg-type]


_KEPT = ("pixels", "labels")


def _cached(folder: Path) -> Decoded | None:
    """An entry of the cache as memory-mapped arrays, or None if it is not there or is not what was written."""
    try:
        kept = read_document(folder / "about.json", Kept)
        about = kept.about
        if digest_json(asdict(about)) != kept.sha256:
            return None
        splits = []
        for part in ("train", "test"):
            pixels, labels = (_mapped(folder / f"{part}-{what}.npy", about.files) for what in _KEPT)
            splits.append((pixels, np.array(labels)))
        found = Decoded(splits[0], splits[1], about.classes, about.note, about.spread)
        return found if _is_whole(found) else None
    except PermissionError:
        raise
    except Exception:  # a damaged entry may fail in any way, and is made anew
        return None


def _mapped(file: Path, kept: dict[str, CachedFile]) -> np.ndarray:
    """An array in a file. What its header says is trusted only if the whole file is the one that was written."""
    if _checksum(file, kept[file.name].bytes) != kept[file.name].crc32:
        raise ValueError(f"{file} is damaged")
    return np.load(file, mmap_mode="r", allow_pickle=False)


def _checksum(file: Path, largest: int = sys.maxsize) -> int:
    with open_file(file, largest) as stream:
        status = os.fstat(stream.fileno())
    return _checksum_of(file, status.st_size, status.st_mtime_ns)


@lru_cache(256)  # a stream of tasks asks for the same entry once a task
def _checksum_of(file: Path, size: int, changed: int) -> int:
    found = 0
    with file.open("rb") as stream:
        while part := stream.read(CHUNK):
            found = zlib.crc32(part, found)
    return found


def _is_whole(found: Decoded) -> bool:
    """Whether an entry has the types and the shapes that decoding gives."""
    mean, std = found.spread or ((), ())
    channels = found.train[0].shape[1]
    return (
        all(
            pixels.dtype == np.uint8
            and pixels.ndim == 4
            and labels.dtype == np.int64
            and labels.shape == pixels.shape[:1]
            and pixels.shape[1:] == found.train[0].shape[1:]
            and labels.size > 0
            and 0 <= labels.min() <= labels.max() < len(found.classes)
            for pixels, labels in (found.train, found.test)
        )
        and len(mean) == len(std) == channels
        and min(std) > 0
    )
