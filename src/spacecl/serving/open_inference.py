"""The Open Inference Protocol, version 2: requests to arrays and arrays to responses, as JSON or with binary data.

Every fault of a request raises a RequestError with an HTTP status and a reason that says what to do.
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

HEADER = "Inference-Header-Content-Length"
VERSION = "1"  # of every model: a committed task does not change
DATATYPES: dict[str, np.dtype[Any]] = {  # the protocol's numeric types
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
    "BOOL": np.dtype("?"),
}


class RequestError(SpaceError):
    """A request that is refused, with the HTTP status of the response."""

    def __init__(self, reason: str, status: int = 400):
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class InferenceRequest:
    """The rows of a request, the names of the requested outputs, and those to send as binary data."""

    rows: dict[str, np.ndarray]  # by the name of the input
    outputs: tuple[str, ...]
    binary: frozenset[str]
    id: str | None = None


def get_datatype(dtype: np.dtype) -> str:
    """Return the protocol's name for a NumPy type; text is BYTES."""
    return next((name for name, known in DATATYPES.items() if known == dtype), "BYTES")


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Undo the Content-Encoding of a body; refuse more than `limit` bytes."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise RequestError(f"Content-Encoding {shorten(encoding)!r} is not supported. Use gzip, deflate or none.", 415)
    try:
        decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # gzip or zlib, detected by the first bytes
        content = decompressor.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(f"The body is not compressed as Content-Encoding says: {error}.") from error
    if len(content) > limit:
        raise RequestError(f"The body has more than {limit:,} bytes when decompressed. Send fewer rows.", 413)
    if not decompressor.eof:
        raise RequestError("The compressed body ends too early.")
    if decompressor.unused_data:
        extra = len(decompressor.unused_data)
        raise RequestError(f"{extra:,} bytes follow the compressed body. Compress it as one piece.")
    return content


def parse_request(
    body: bytes, json_length: str | None, expected: Mapping[str, np.ndarray], outputs: Sequence[str], max_rows: int
) -> InferenceRequest:
    """Read an inference request.

    Parameters
    ----------
    body : the decompressed body.
    json_length : the value of `HEADER`: how many bytes of the body are JSON. Binary data follows. None: all is JSON.
    expected : an example of each of the model's inputs, by name.
    outputs : the names of the model's outputs.
    max_rows : requests with more rows are refused.
    """
    document, tail = _split_body(body, json_length)
    inputs = document.get("inputs")
    rows = _read_inputs(inputs, tail, expected, max_rows)
    names, binary = _read_outputs(document, outputs)
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise RequestError(f'"id" must be text; got {shorten(request_id)}.')
    return InferenceRequest(rows, names, binary, request_id)


def build_response(model: str, request: InferenceRequest, arrays: Mapping[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of the response to a request."""
    outputs: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name in request.outputs:
        array = arrays[name]
        entry: dict[str, Any] = {"name": name, "datatype": get_datatype(array.dtype), "shape": list(array.shape)}
        if name in request.binary:
            tail.append(_to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = array.reshape(-1).tolist()
        outputs.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": VERSION, "outputs": outputs}
    if request.id is not None:
        document["id"] = request.id
    head = json.dumps(document).encode()
    if not tail:
        return head, {"Content-Type": "application/json"}
    return b"".join([head, *tail]), {"Content-Type": "application/octet-stream", HEADER: str(len(head))}


def _split_body(body: bytes, json_length: str | None) -> tuple[dict[str, Any], bytes]:
    """Return the JSON object of a request, and the binary data behind it."""
    end = len(body)
    if json_length is not None:
        is_number = json_length.isascii() and json_length.isdigit() and len(json_length) <= 20  # int() has a limit of its own
        if not is_number or int(json_length) > len(body):
            raise RequestError(f"{HEADER} is {shorten(json_length)}, but the body has {len(body)} bytes.")
        end = int(json_length)
    try:
        document = from_json(body[:end])  # several times as fast as json.loads
    except ValueError as error:  # not JSON, not UTF-8, nested too deeply, or a number with too many digits
        raise RequestError(f"The request is not JSON: {shorten(str(error))}.") from error
    if not isinstance(document, dict):
        raise RequestError(f"The request must be a JSON object; it is {shorten(document)}.")
    return document, body[end:]


def _read_inputs(inputs: Any, tail: bytes, expected: Mapping[str, np.ndarray], max_rows: int) -> dict[str, np.ndarray]:
    """Return the rows of every input, in the order that the model expects; their binary data stand in that of the request."""
    names = list(expected)
    if not isinstance(inputs, list) or len(inputs) != len(names) or not all(isinstance(entry, dict) for entry in inputs):
        count = "one entry" if len(names) == 1 else f"{len(names)} entries"
        raise RequestError(f'"inputs" must be a list with {count}, named {", ".join(map(repr, names))}.')
    rows: dict[str, np.ndarray] = {}
    for entry in inputs:
        name = entry.get("name")
        if not isinstance(name, str) or name not in names or name in rows:
            wanted = f'must be named "{names[0]}"' if len(names) == 1 else f"the inputs are {', '.join(names)}, each once"
            raise RequestError(f"The input is named {shorten(name)}, but {wanted}.")
        size = _get_parameters(entry).get("binary_data_size")
        last = len(rows) == len(names) - 1
        own = len(tail) if last or type(size) is not int else max(0, size)  # bytes of this input; none may be left over
        has_data = size is not None or last
        example = expected[name]
        rows[name] = _read_rows(entry, tail[:own] if has_data else b"", list(example.shape[1:]), example.dtype, max_rows)
        tail = tail[own:] if has_data else tail
    if len({len(array) for array in rows.values()}) > 1:
        raise RequestError("The inputs have different numbers of rows; give one row per example in each.")
    return {name: rows[name] for name in names}


def _read_rows(entry: Mapping[str, Any], tail: bytes, shape: list[int], dtype: np.dtype, max_rows: int) -> np.ndarray:
    """Return the rows of an input, in the type that the model reads."""
    kinds = dtype.kind if dtype.kind in "fb" else "iu"
    sent = _read_datatype(entry.get("datatype"), kinds)
    size = entry.get("shape")
    is_shape = isinstance(size, list) and all(type(number) is int for number in size)
    if not is_shape or size[1:] != shape or not size or size[0] < 1:  # type: ignore[index]
        raise RequestError(f'"shape" is {shorten(size)}; this model reads {[-1, *shape]}, with one row or more for -1.')
    assert isinstance(size, list)
    if size[0] > max_rows:
        raise RequestError(f"{shorten(size[0])} rows are too many for one request; send at most {max_rows}.", 413)
    count, length = math.prod(size), _get_parameters(entry).get("binary_data_size")
    if length is not None:
        if type(length) is not int or length != count * sent.itemsize or length != len(tail):
            raise RequestError(
                f'"binary_data_size" is {shorten(length)}; the shape {size} takes {count * sent.itemsize} bytes, '
                f"and {len(tail)} follow the JSON."
            )
        values = np.frombuffer(tail, sent).reshape(size)
        with np.errstate(over="ignore"):  # they become infinite, and infinite values are refused later
            rows = values.astype(dtype)
        if kinds == "iu" and not np.array_equal(rows, values):
            raise RequestError(f"Some values are out of the range of {get_datatype(dtype)}, which this model reads.")
        return rows
    if "data" not in entry or tail:
        raise RequestError(f'An input needs "data", or "binary_data_size" among its parameters with {HEADER}.')
    try:
        if _collect_types(entry["data"]) <= _JSON_TYPES[kinds]:
            with np.errstate(over="ignore"):
                return np.asarray(entry["data"], dtype).reshape(size)
    except (ValueError, TypeError, OverflowError, RecursionError):  # the wrong size, ragged, not a list, or out of range
        pass
    raise RequestError(f'"data" must have {count} numbers, flat or nested, for the shape {size}.')


_JSON_TYPES: dict[str, set[type]] = {"f": {int, float}, "b": {bool}, "iu": {int}}  # by NumPy's kinds of the model's input


def _read_datatype(name: Any, kinds: str) -> np.dtype:
    """Return the type of the sent values; it must be of one of NumPy's `kinds`, since the model reads no others."""
    dtype = DATATYPES.get(name) if isinstance(name, str) else None
    if dtype is None or dtype.kind not in kinds:
        names = ", ".join(name for name, known in DATATYPES.items() if known.kind in kinds)
        raise RequestError(f'"datatype" is {shorten(name)}; this model reads {names}.')
    return dtype


def _collect_types(values: Any) -> set[type]:
    """Return the types of all values in nested lists; JSON's true is a bool, not an int."""
    types = set(map(type, values))
    if list in types:
        types = types.union(*(_collect_types(value) for value in values if type(value) is list)) - {list}
    return types


def _read_outputs(document: Mapping[str, Any], known: Sequence[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the outputs that a request lists, by default all, and those to send as binary data."""
    entries = document.get("outputs") or []
    if not isinstance(entries, list):
        raise RequestError(f'"outputs" must be a list; got {shorten(entries)}.')
    default = _get_parameters(document).get("binary_data_output") is True
    if not entries:
        return tuple(known), frozenset(known if default else ())
    names: list[str] = []
    binary: set[str] = set()
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in known:
            raise RequestError(f"There is no output {shorten(name)}. The outputs are: {', '.join(known)}.")
        names.append(name)
        if _get_parameters(entry).get("binary_data", default) is True:
            binary.add(name)
    return tuple(dict.fromkeys(names)), frozenset(binary)


def _get_parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestError(f'"parameters" must be an object; got {shorten(parameters)}.')
    return parameters


def _to_bytes(array: np.ndarray) -> bytes:
    """Encode an array as the protocol's binary data; each text follows its length."""
    if array.dtype.kind != "U":
        return array.astype(DATATYPES[get_datatype(array.dtype)]).tobytes()
    texts = [str(text).encode() for text in array.reshape(-1)]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def shorten(value: Any) -> str:
    """Format a value for an error message, in at most 80 characters, however long or deeply nested it is."""
    text = value if isinstance(value, str) else _REPR.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_REPR = reprlib.Repr()  # stops where the text is cut: repr() of a deeply nested list raises RecursionError
_REPR.maxlist = _REPR.maxtuple = 10
