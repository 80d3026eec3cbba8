"""A reader of numeric arrays in MATLAB 5 files, as SVHN is published in. It cannot crash, whatever the bytes are.

The format: a header of 128 bytes, then elements. An element is a tag (type and size) and data, padded to 8 bytes; data of at
most 4 bytes stand in the tag itself. An array is an element of elements: flags, dimensions, name, values. It may be packed
with zlib as a whole. The values may be stored in a smaller type than the array's own, and are left in it.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .files import CHUNK, LARGEST_ARRAY, fill, open_file

MATRIX, COMPRESSED = 14, 15
KINDS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
NUMERIC_CLASSES = range(6, 16)  # double to uint64
COMPLEX = 0x0800


class MatlabError(ValueError):
    """A file that is not what the format says."""


def read_arrays(file: Path, names: Collection[str], largest: int = LARGEST_ARRAY) -> dict[str, np.ndarray]:
    """Read the arrays with some names, each of at most `largest` bytes; all others are skipped."""
    found: dict[str, np.ndarray] = {}
    with open_file(file) as stream:
        head = stream.read(128)
        order = {b"\0\1IM": "<", b"\1\0MI": ">"}.get(head[124:])
        if order is None:
            raise MatlabError("it has no header of a MATLAB 5 file")
        while set(names) - set(found):
            tag = stream.read(8)
            if not tag:
                break
            if len(tag) < 8:
                raise MatlabError("it is cut off")
            kind, size = struct.unpack(f"{order}II", tag)
            end = stream.tell() + size
            if kind == COMPRESSED:
                inflated = io.BufferedReader(_Inflated(stream, size), CHUNK)
                kind, size = struct.unpack(f"{order}II", _exactly(inflated, 8))
                name, array = _matrix(inflated, kind, order, names, largest)
                if array is not None and len(inflated.read(9)) > 8:  # to the end, where zlib compares its checksum
                    raise MatlabError(f"there is more in {name} than its values")
            else:
                name, array = _matrix(stream, kind, order, names, largest)
                if array is not None and not 0 <= end - stream.tell() < 8:
                    raise MatlabError(f"the size of {name} is not that of its values")
            if array is not None:
                found[name] = array
            stream.seek(end)
    missing = sorted(set(names) - set(found))
    if missing:
        raise MatlabError(f"it has no array {', '.join(missing)}")
    return found


class _Inflated(io.RawIOBase):
    """What a packed element unpacks to, read piece by piece."""

    def __init__(self, stream: BinaryIO, size: int):
        self.stream, self.left, self.inflater = stream, size, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        while not self.inflater.eof:
            packed = self.inflater.unconsumed_tail
            if not packed:
                packed = self.stream.read(min(self.left, CHUNK))
                self.left -= len(packed)
            data = self.inflater.decompress(packed, len(into))
            if data:
                into[: len(data)] = data
                return len(data)
            if not packed:
                raise MatlabError("it is cut off")
        return 0


def _matrix(stream: BinaryIO, kind: int, order: str, names: Collection[str], largest: int) -> tuple[str, np.ndarray | None]:
    """The name of an array, and its values if it is one of those that are wanted."""
    if kind != MATRIX:
        return "", None
    flags = struct.unpack(f"{order}II", _element(stream, order, 6, 8))[0]
    sizes = _element(stream, order, 5, 4 * 32)
    name = _element(stream, order, 1, 1 << 16).decode("latin1")
    if name not in names:
        return name, None
    if flags & 0xFF not in NUMERIC_CLASSES or flags & COMPLEX:
        raise MatlabError(f"{name} is not an array of real numbers")
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    kind, size, inside = _tag(stream, order)
    if kind not in KINDS or min(shape, default=-1) < 0:
        raise MatlabError(f"{name} has values of type {kind} and the shape {shape}")
    dtype = np.dtype(f"{order}{KINDS[kind]}")
    count = math.prod(shape)
    if size != count * dtype.itemsize:
        raise MatlabError(f"{name} has {size} bytes for the shape {shape} of {dtype.name}")
    if size > largest:
        raise MatlabError(f"{name} has {size:,} bytes; an honest file has at most {largest:,}")
    if inside is not None:
        return name, np.frombuffer(inside[:size], dtype).reshape(shape, order="F")
    array = np.empty(size, np.uint8)
    if fill(stream, array) < size:
        raise MatlabError("it is cut off")
    return name, array.view(dtype).reshape(shape, order="F")


def _tag(stream: BinaryIO, order: str) -> tuple[int, int, bytes | None]:
    """Type and size of an element, and its data if they stand in the tag."""
    tag = _exactly(stream, 8)
    kind, size = struct.unpack(f"{order}II", tag)
    if kind >> 16:
        kind, size = kind & 0xFFFF, kind >> 16
        if size > 4:
            raise MatlabError(f"{size} bytes stand in a tag, which has room for 4")
        return kind, size, tag[4:]
    return kind, size, None


def _element(stream: BinaryIO, order: str, kind: int, most: int) -> bytes:
    """The data of a small element of a type, without its padding."""
    found, size, inside = _tag(stream, order)
    if found != kind or size > most:
        raise MatlabError(f"an element of type {found} and {size} bytes stands in the place of type {kind}")
    return inside[:size] if inside is not None else _exactly(stream, -(-size // 8) * 8)[:size]


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise MatlabError("it is cut off")
    return data
