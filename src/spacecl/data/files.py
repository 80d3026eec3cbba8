"""Data files, opened with care: regular files of a plausible size only."""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import DataError

# The largest honest file is FaceScrub as 64-bit numbers (506 MB); the largest array of bytes is SVHN's (225 MB).
LARGEST_FILE = 1 << 30
LARGEST_ARRAY = 1 << 29
CHUNK = 1 << 20


def open_file(file: Path, largest: int = LARGEST_FILE) -> BinaryIO:
    """Open a regular file, or the one that a link leads to. A pipe or a device could block for ever, or never end."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{file} is not a regular file. Replace it with one.")
    if not status.st_size:  # so are the files of /proc, whatever they hold
        raise DataError(f"{file} is empty. Fetch it again.")
    if status.st_size > largest:
        raise DataError(f"{file} has {status.st_size:,} bytes; an honest file has at most {largest:,}. Fetch it again.")
    return file.open("rb")


@contextmanager
def open_unpacked(file: Path) -> Iterator[BinaryIO]:
    """Open a file that may be packed with gzip, to be unpacked as it is read."""
    with open_file(file) as stream:
        yield gzip.GzipFile(fileobj=stream) if file.suffix == ".gz" else stream  # type: ignore[misc]


def fill(stream: BinaryIO, array: np.ndarray) -> int:
    """Read into a flat array of bytes until it is full or the stream ends; returns how many were read."""
    view, done = memoryview(array), 0  # type: ignore[arg-type]
    while done < len(view):
        count = stream.readinto(view[done : done + CHUNK])  # type: ignore[attr-defined]
        if not count:
            break
        done += count
    return done


UNPACKING_ERRORS = (EOFError, zlib.error, OSError)  # what a damaged packed file raises
