"""Read numeric arrays from MATLAB 5 files, the format of SVHN. Damaged files raise errors; none can crash the program.

The format: a header of 128 bytes, then elements. An element is a tag (type and size) followed by data, padded to 8 bytes.
Data of at most 4 bytes are stored in the tag itself. An array is an element that contains elements: flags, dimensions,
name, values. It may be compressed with zlib as a whole. The values may be stored in a smaller type than the array's own;
they are returned in that type.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from .files import CHUNK, LARGEST_ARRAY, open_file, read_into

MATRIX, COMPRESSED = 14, 15
KINDS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
NUMERIC_CLASSES = range(6, 16)  # double to uint64
COMPLEX = 0x0800


class MatlabError(ValueError):
    """A file does not follow the format."""


class Tag(NamedTuple):
    """Type and size of an element, and its data if they are stored in the tag."""

    kind: int
    size: int
    data: bytes | None


def read_arrays(file: Path, names: Collection[str], largest: int = LARGEST_ARRAY) -> dict[str, np.ndarray]:
    """Read the arrays with the given names, each of at most `largest` bytes. All others are skipped."""
    arrays: dict[str, np.ndarray] = {}
    with open_file(file) as stream:
        header = stream.read(128)
        order = {b"\0\1IM": "<", b"\1\0MI": ">"}.get(header[124:])
        if order is None:
            raise MatlabError("it does not begin with the header of a MATLAB 5 file")
        while set(names) - set(arrays):
            tag = stream.read(8)
            if not tag:
                break
            if len(tag) < 8:
                raise MatlabError("it is truncated")
            kind, size = struct.unpack(f"{order}II", tag)
            end = stream.tell() + size
            if kind == COMPRESSED:
                inflated = io.BufferedReader(_InflatedElement(stream, size), CHUNK)
                kind, size = struct.unpack(f"{order}II", _read_exactly(inflated, 8))
                name, array = _read_matrix(inflated, kind, order, names, largest)
                if array is not None and len(inflated.read(9)) > 8:  # read to the end, where zlib compares its checksum
                    raise MatlabError(f"{name} contains more than its values")
            else:
                name, array = _read_matrix(stream, kind, order, names, largest)
                if array is not None and not 0 <= end - stream.tell() < 8:
                    raise MatlabError(f"the size of {name} does not match its values")
            if array is not None:
                arrays[name] = array
            stream.seek(end)
    missing = sorted(set(names) - set(arrays))
    if missing:
        raise MatlabError(f"it has no array {', '.join(missing)}")
    return arrays


class _InflatedElement(io.RawIOBase):
    """The decompressed data of an element, read piece by piece."""

    def __init__(self, stream: BinaryIO, size: int):
        self.stream, self.left, self.inflater = stream, size, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self.inflater.eof:
            compressed = self.inflater.unconsumed_tail
            if not compressed:
                compressed = self.stream.read(min(self.left, CHUNK))
                self.left -= len(compressed)
            data = self.inflater.decompress(compressed, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            if not compressed:
                raise MatlabError("it is truncated")
        return 0


def _read_matrix(
    stream: BinaryIO, kind: int, order: str, names: Collection[str], largest: int
) -> tuple[str, np.ndarray | None]:
    """Read the name of an array, and its values if the name is one of `names`."""
    if kind != MATRIX:
        return "", None
    flags = struct.unpack(f"{order}II", _read_element(stream, order, 6, 8))[0]
    sizes = _read_element(stream, order, 5, 4 * 32)
    name = _read_element(stream, order, 1, 1 << 16).decode("latin1")
    if name not in names:
        return name, None
    if flags & 0xFF not in NUMERIC_CLASSES or flags & COMPLEX:
        raise MatlabError(f"{name} is not an array of real numbers")
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    tag = _read_tag(stream, order)
    if tag.kind not in KINDS or min(shape, default=-1) < 0:
        raise MatlabError(f"{name} has values of type {tag.kind} and the shape {shape}")
    dtype = np.dtype(f"{order}{KINDS[tag.kind]}")
    if tag.size != math.prod(shape) * dtype.itemsize:
        raise MatlabError(f"{name} has {tag.size} bytes for the shape {shape} of {dtype.name}")
    if tag.size > largest:
        raise MatlabError(f"{name} has {tag.size:,} bytes; at most {largest:,} are expected")
    if tag.data is not None:
        return name, np.frombuffer(tag.data[: tag.size], dtype).reshape(shape, order="F")
    array = np.empty(tag.size, np.uint8)
    if read_into(stream, array) < tag.size:
        raise MatlabError("it is truncated")
    return name, array.view(dtype).reshape(shape, order="F")


def _read_tag(stream: BinaryIO, order: str) -> Tag:
    data = _read_exactly(stream, 8)
    kind, size = struct.unpack(f"{order}II", data)
    if kind >> 16:
        kind, size = kind & 0xFFFF, kind >> 16
        if size > 4:
            raise MatlabError(f"a tag claims to hold {size} bytes of data; it can hold 4")
        return Tag(kind, size, data[4:])
    return Tag(kind, size, None)


def _read_element(stream: BinaryIO, order: str, kind: int, largest: int) -> bytes:
    """Read the data of a small element of type `kind`, without padding."""
    tag = _read_tag(stream, order)
    if tag.kind != kind or tag.size > largest:
        raise MatlabError(f"an element of type {kind} is expected; got type {tag.kind} with {tag.size} bytes")
    return tag.data[: tag.size] if tag.data is not None else _read_exactly(stream, -(-tag.size // 8) * 8)[: tag.size]


def _read_exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise MatlabError("it is truncated")
    return data
