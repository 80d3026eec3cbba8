"""Open data files safely: only regular files of a plausible size."""

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

# The largest published file is FaceScrub as 64-bit numbers (506 MB); the largest array of bytes is SVHN's (225 MB).
LARGEST_FILE = 1 << 30
LARGEST_ARRAY = 1 << 29
CHUNK = 1 << 20
DECOMPRESSION_ERRORS = (EOFError, zlib.error, OSError)  # what a damaged compressed file raises


def open_file(file: Path, largest: int = LARGEST_FILE) -> BinaryIO:
    """Open a regular file of at most `largest` bytes. Links are followed.

    Pipes and devices are refused before they are opened: reading them could block for ever, or never end.
    """
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{file} is not a regular file. Replace it with one.")
    if not status.st_size:  # files in /proc also have size 0, whatever they contain
        raise DataError(f"{file} is empty. Fetch it again.")
    if status.st_size > largest:
        raise DataError(f"{file} has {status.st_size:,} bytes; at most {largest:,} are expected. Fetch it again.")
    return file.open("rb")


@contextmanager
def open_decompressed(file: Path) -> Iterator[BinaryIO]:
    """Open a file; one that ends in .gz is decompressed while it is read."""
    with open_file(file) as stream:
        yield gzip.GzipFile(fileobj=stream) if file.suffix == ".gz" else stream  # type: ignore[misc]


def read_into(stream: BinaryIO, array: np.ndarray) -> int:
    """Read into a flat array of bytes until it is full or the stream ends, and return the number of bytes read."""
    view, position = memoryview(array), 0  # type: ignore[arg-type]
    while position < len(view):
        count = stream.readinto(view[position : position + CHUNK])  # type: ignore[attr-defined]
        if not count:
            break
        position += count
    return position
