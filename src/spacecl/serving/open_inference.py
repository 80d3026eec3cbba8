"""The Open Inference Protocol, version 2: requests as tensors and tensors as answers, in JSON or with binary data.

Whatever is wrong with a request is a RequestError, with the status to answer with and a reason that says what to do.
"""

from __future__ import annotations

import json
import math
import reprlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic_core import from_json

from ..errors import SpaceError
from ..export.export import INPUT

HEADER = "Inference-Header-Content-Length"
VERSION = "1"  # of every model: a committed task does not change
DATATYPES: dict[str, np.dtype[Any]] = {  # those of the protocol that numbers have
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
}


class RequestError(SpaceError):
    """A request that is not served, and the status that says so."""

    def __init__(self, reason: str, status: int = 400):
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Wanted:
    """What a request asks for: an array of rows, the outputs by name, and which of them as binary data."""

    rows: np.ndarray
    outputs: tuple[str, ...]
    binary: frozenset[str]
    id: str | None = None


def datatype(dtype: np.dtype) -> str:
    """The protocol's name for a type of numbers, or of text."""
    return next((name for name, known in DATATYPES.items() if known == dtype), "BYTES")


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """A body without its compression, at most so many bytes."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise RequestError(f"Content-Encoding {short(encoding)!r} is not known. Use gzip, deflate or none.", 415)
    try:
        reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # either of the two, by its first bytes
        found = reader.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(f"The body is not compressed as Content-Encoding says: {error}.") from error
    if len(found) > limit:
        raise RequestError(f"The body has more than {limit:,} bytes when it is unpacked. Send fewer rows.", 413)
    if not reader.eof:
        raise RequestError("The compressed body ends too early.")
    if reader.unused_data:
        raise RequestError(f"{len(reader.unused_data):,} bytes follow the compressed body. Compress it as one piece.")
    return found


def read(body: bytes, length: str | None, shape: Sequence[int], dtype: np.dtype, outputs: Sequence[str], most: int) -> Wanted:
    """A request for a model whose rows have such a shape and type and that has these outputs; `most` rows at a time.

    `length` is the value of the header that says how many bytes of the body are JSON; the rest is binary data.
    """
    document, rest = _document(body, length)
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise RequestError(f'"inputs" must be a list with one entry, named {INPUT!r}.')
    given = inputs[0]
    if given.get("name") != INPUT:
        raise RequestError(f'The input is named {short(given.get("name"))}, but must be named "{INPUT}".')
    rows = _array(given, rest, list(shape), dtype, most)
    names, binary = _outputs(document, outputs)
    number = document.get("id")
    if number is not None and not isinstance(number, str):
        raise RequestError(f'"id" must be text; got {short(number)}.')
    return Wanted(rows, names, binary, number)


def answer(model: str, wanted: Wanted, found: Mapping[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
    """The body that tells what was found, and its headers."""
    listed: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name in wanted.outputs:
        array = found[name]
        entry: dict[str, Any] = {"name": name, "datatype": datatype(array.dtype), "shape": list(array.shape)}
        if name in wanted.binary:
            tail.append(_bytes(array))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = array.reshape(-1).tolist()
        listed.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": VERSION, "outputs": listed}
    if wanted.id is not None:
        document["id"] = wanted.id
    head = json.dumps(document).encode()
    if not tail:
        return head, {"Content-Type": "application/json"}
    return b"".join([head, *tail]), {"Content-Type": "application/octet-stream", HEADER: str(len(head))}


def _document(body: bytes, length: str | None) -> tuple[dict[str, Any], bytes]:
    """The JSON of a request, and the binary data behind it."""
    cut = len(body)
    if length is not None:
        if not (length.isascii() and length.isdigit() and len(length) <= 20) or int(length) > len(body):  # int() has a limit
            raise RequestError(f"{HEADER} is {short(length)}, but the body has {len(body)} bytes.")
        cut = int(length)
    try:
        found = from_json(body[:cut])  # several times as fast as json.loads
    except ValueError as error:  # not JSON, not UTF-8, too deep, or a number of too many digits
        raise RequestError(f"The request is not JSON: {short(str(error))}.") from error
    if not isinstance(found, dict):
        raise RequestError(f"The request must be a JSON object; it is {short(found)}.")
    return found, body[cut:]


def _array(given: Mapping[str, Any], rest: bytes, shape: list[int], dtype: np.dtype, most: int) -> np.ndarray:
    """The rows of an input, of the type that the model reads."""
    named, size = given.get("datatype"), given.get("shape")
    kind = DATATYPES.get(named) if isinstance(named, str) else None
    kinds = "f" if dtype.kind == "f" else "iu"
    if kind is None or kind.kind not in kinds:
        names = ", ".join(name for name, known in DATATYPES.items() if known.kind in kinds)
        raise RequestError(f'"datatype" is {short(named)}; this model reads {names}.')
    whole = isinstance(size, list) and all(type(number) is int for number in size)
    if not whole or size[1:] != shape or not size or size[0] < 1:  # type: ignore[index]
        raise RequestError(f'"shape" is {short(size)}; this model reads {[-1, *shape]}, with one row or more for -1.')
    assert isinstance(size, list)
    if size[0] > most:
        raise RequestError(f"{short(size[0])} rows are too many for one request; send at most {most}.", 413)
    count, length = math.prod(size), _parameters(given).get("binary_data_size")
    if length is not None:
        if type(length) is not int or length != count * kind.itemsize or length != len(rest):
            raise RequestError(
                f'"binary_data_size" is {short(length)}; {count * kind.itemsize} bytes make the shape {size}, '
                f"and {len(rest)} follow the JSON."
            )
        values = np.frombuffer(rest, kind).reshape(size)
        with np.errstate(over="ignore"):  # infinite values are refused like those that are sent
            rows = values.astype(dtype)
        if kinds == "iu" and not np.array_equal(rows, values):
            raise RequestError(f"Some values are beyond the range of {datatype(dtype)}, which this model reads.")
        return rows
    if "data" not in given or rest:
        raise RequestError(f'An input needs "data", or "binary_data_size" among its parameters with {HEADER}.')
    try:
        if _kinds(given["data"]) <= ({int, float} if kinds == "f" else {int}):
            with np.errstate(over="ignore"):
                return np.asarray(given["data"], dtype).reshape(size)
    except (ValueError, TypeError, OverflowError, RecursionError):  # of another size, ragged, no list, or beyond all bounds
        pass
    raise RequestError(f'"data" must have {count} numbers, flat or nested, for the shape {size}.')


def _kinds(values: Any) -> set[type]:
    """The types of all values in lists of lists; JSON's true is no number."""
    found = set(map(type, values))
    if list in found:
        found = found.union(*(_kinds(value) for value in values if type(value) is list)) - {list}
    return found


def _outputs(document: Mapping[str, Any], known: Sequence[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """The outputs that a request asks for, all by default, and those that it wants as binary data."""
    listed = document.get("outputs") or []
    if not isinstance(listed, list):
        raise RequestError(f'"outputs" must be a list; got {short(listed)}.')
    usual = _parameters(document).get("binary_data_output") is True
    if not listed:
        return tuple(known), frozenset(known if usual else ())
    names: list[str] = []
    binary: set[str] = set()
    for entry in listed:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in known:
            raise RequestError(f"There is no output {short(name)}. The outputs are: {', '.join(known)}.")
        names.append(name)
        if _parameters(entry).get("binary_data", usual) is True:
            binary.add(name)
    return tuple(dict.fromkeys(names)), frozenset(binary)


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    found = given.get("parameters") or {}
    if not isinstance(found, dict):
        raise RequestError(f'"parameters" must be an object; got {short(found)}.')
    return found


def _bytes(array: np.ndarray) -> bytes:
    """An array as the protocol has binary data; every text comes after its length."""
    if array.dtype.kind != "U":
        return array.astype(DATATYPES[datatype(array.dtype)]).tobytes()
    texts = [str(text).encode() for text in array.reshape(-1)]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def short(value: Any) -> str:
    """A value for an error message: at most 80 characters, however long or deeply nested it is."""
    text = value if isinstance(value, str) else _REPR.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_REPR = reprlib.Repr()  # looks no deeper than it shows: repr() of a deep list is a RecursionError
_REPR.maxlist = _REPR.maxtuple = 10
