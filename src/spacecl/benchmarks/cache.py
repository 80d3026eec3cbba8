"""Data decoded once: bytes and labels in a folder, memory-mapped from there. An entry is whole or not there."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from filelock import FileLock

from ..errors import ConfigError, DataError
from ..images import statistics
from ..store import write_whole
from .files import CHUNK, open_file
from .formats import Decoded

VERSION = 1  # of the decoded form; another number makes all be decoded anew


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
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{name}.lock"):
            found = _cached(folder)
            if found is None:
                _fill(folder, decode())
                found = _cached(folder)
    except OSError as error:  # what is wrong with the data files themselves is a DataError
        raise ConfigError(
            f"The cache {folder.parent} cannot be used: {error}. Free some space there, or name another folder with "
            "SPACECL_CACHE."
        ) from error
    if found is None:
        raise DataError(f"{folder} cannot be read back right after it was written. Name another folder with SPACECL_CACHE.")
    return found


def _fill(folder: Path, found: Decoded) -> None:
    """Write an entry beside its place and put it there when it is whole and on the disk."""
    made = folder.with_name(f".making-{folder.name}")
    for left in (made, folder):  # by a process that was killed, or damaged since
        shutil.rmtree(left, ignore_errors=True)
    made.mkdir()
    try:
        arrays = {f"{part}-{what}.npy": array for part in ("train", "test") for what, array in zip(_KEPT, getattr(found, part))}
        for file, array in arrays.items():
            with (made / file).open("wb") as stream:
                np.save(stream, array)
                stream.flush()
                os.fsync(stream.fileno())
        kept = {file: {"bytes": (made / file).stat().st_size, "crc32": _checksum(made / file)} for file in arrays}
        spread = statistics(found.train[0])
        about = {"classes": found.classes, "note": found.note, "spread": spread, "files": kept}
        write_whole(made / "about.json", json.dumps(about).encode())
        os.replace(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


_KEPT = ("pixels", "labels")


def _cached(folder: Path) -> Decoded | None:
    """An entry of the cache as memory-mapped arrays, or None if it is not there or is not what was written."""
    try:
        with open_file(folder / "about.json", LARGEST_ABOUT) as stream:
            about = json.loads(stream.read())
        splits = []
        for part in ("train", "test"):
            pixels, labels = (_mapped(folder / f"{part}-{what}.npy", about["files"]) for what in _KEPT)
            splits.append((pixels, np.array(labels)))
        mean, std = (tuple(values) for values in about["spread"])
        found = Decoded(splits[0], splits[1], tuple(about["classes"]), about["note"], (mean, std))
        return found if _is_whole(found) else None
    except PermissionError:
        raise
    except Exception:  # a damaged entry may fail in any way, and is made anew
        return None


LARGEST_ABOUT = 1 << 24  # bytes; the names of classes are the most of it


def _mapped(file: Path, kept: dict[str, dict[str, int]]) -> np.ndarray:
    """An array in a file. What its header says is trusted only if the whole file is the one that was written."""
    if _checksum(file, kept[file.name]["bytes"]) != kept[file.name]["crc32"]:
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
        and all(isinstance(name, str) for name in (*found.classes, found.note))
        and len(mean) == len(std) == channels
        and all(isinstance(value, float) and math.isfinite(value) for value in (*mean, *std))
        and min(std) > 0
    )
