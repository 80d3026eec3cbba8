"""Data decoded once: bytes and labels in a folder, memory-mapped from there. An entry is whole or not there."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock

from .. import disk
from ..errors import ConfigError, DataError, StoreError
from ..images import statistics
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
    facts = [(str(file.absolute()), stat.st_size, stat.st_mtime_ns) for file in files for stat in [file.stat()]]
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
    except (StoreError, PermissionError) as error:
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
        sizes = {file: (made / file).stat().st_size for file in arrays}
        spread = statistics(found.train[0])
        about = {"classes": found.classes, "note": found.note, "spread": spread, "sizes": sizes}
        disk.write_file(made / "about.json", json.dumps(about).encode(), sync_name=False)
        disk.replace_folder(made, folder)
    except BaseException:
        with suppress(StoreError):
            disk.remove(made)
        raise


def _write_array(array: np.ndarray, stream: io.RawIOBase) -> None:
    np.save(stream, array)  # type: ignore[arg-type]


_KEPT = ("pixels", "labels")


def _cached(folder: Path) -> Decoded | None:
    """An entry of the cache as memory-mapped arrays, or None if it is not there or not whole."""
    try:
        about = json.loads((folder / "about.json").read_text())
        if any((folder / file).stat().st_size != size for file, size in about["sizes"].items()):
            return None
        train, test = (
            (np.load(folder / f"{part}-pixels.npy", mmap_mode="r"), np.load(folder / f"{part}-labels.npy"))
            for part in ("train", "test")
        )
        mean, std = (tuple(values) for values in about["spread"])
        return Decoded(train, test, tuple(about["classes"]), about["note"], (mean, std))
    except (FileNotFoundError, ValueError, KeyError, TypeError, EOFError):
        return None
