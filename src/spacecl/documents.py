"""Read files that others may have written or damaged: within bounds, and JSON validated against a named type.

Every JSON file that spacecl reads goes through `read_document`. An invalid one is reported in a sentence that names the file,
the place in it and what to do; the rest of the program only sees values of the right types.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from .errors import SpaceError, StoreError
from .os_errors import explain, to_store_error

LARGEST_DOCUMENT = 256 << 20  # bytes of a JSON file; real ones have a few megabytes at most
RESTORE = "Restore it from a copy."
T = TypeVar("T")

Count = Annotated[int, Field(ge=0, lt=2**53)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _check_plain_name(name: str) -> str:
    if not name or name in (".", "..") or name.startswith(".") or any(letter in name for letter in "/\\:\0") or len(name) > 255:
        raise PydanticCustomError("plain_name", "is not the plain name of a file in this folder")
    return name


FileName = Annotated[str, AfterValidator(_check_plain_name)]


def read_bytes(file: str | os.PathLike[str], limit: int, remedy: str = RESTORE) -> bytes:
    """Read a regular file of at most `limit` bytes; links, pipes and devices are refused.

    Parameters
    ----------
    file : the file.
    limit : in bytes; a larger file is refused without reading it.
    remedy : the sentence of an error message that says what to do.
    """
    path = Path(file)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing. {remedy}") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise StoreError(f"{path} is a link. Put the file itself there.") from None
        raise to_store_error(error, f"{path} cannot be read", path) from error
    except ValueError as error:  # a NUL in the name
        raise StoreError(f"{str(path)!r} is not a file name: {error}.") from error
    try:
        with explain(path, "read"):
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise StoreError(f"{path} is not a regular file. {remedy}")
            if status.st_size > limit:
                raise StoreError(f"{path} has {status.st_size:,} bytes; at most {limit:,} are expected. {remedy}")
            with open(descriptor, "rb", closefd=False) as stream:
                return stream.read(status.st_size)
    finally:
        os.close(descriptor)


def load_json(data: bytes, file: object, remedy: str = RESTORE) -> Any:
    """Parse JSON; an error names the file."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "it is not JSON text"
        raise StoreError(f"{file} is damaged or truncated: it cannot be read as JSON ({reason}). {remedy}") from error


def parse_document(data: bytes, kind: type[T], file: object, remedy: str = RESTORE) -> T:
    """Parse JSON as a value of a type; an error names the file and up to five places that do not fit."""
    try:
        return _get_adapter(kind).validate_json(data, strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        if problems[0]["type"] == "json_invalid":
            reason = f"it cannot be read as JSON ({problems[0]['msg'].removeprefix('Invalid JSON: ')})"
            raise StoreError(f"{file} is damaged or truncated: {reason}. {remedy}") from None
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise StoreError(f"{file} is damaged: {'; '.join(map(_describe, problems[:5]))}{more}. {remedy}") from None
    except SpaceError as error:  # raised by a check of the type itself
        raise StoreError(f"{file} is damaged: {error} {remedy}") from None


def read_document(file: str | os.PathLike[str], kind: type[T], remedy: str = RESTORE) -> T:
    """Read a JSON file as a value of a type."""
    return parse_document(read_bytes(file, LARGEST_DOCUMENT, remedy), kind, file, remedy)


class Json(str):
    """A value as JSON text, as `encode_json` returns it: it need not be encoded again."""

    __slots__ = ()


def encode_json(value: Any) -> Json:
    """Encode a value as JSON with sorted keys. A dictionary and lists in it may have parts that are encoded already.

    >>> encode_json({"b": [encode_json({"d": 1, "c": 2})], "a": "x"})
    '{"a": "x", "b": [{"c": 2, "d": 1}]}'
    """
    if isinstance(value, Json):
        return value
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return Json(f"{{{', '.join(f'{json.dumps(key)}: {encode_json(value[key])}' for key in sorted(value))}}}")
    if isinstance(value, list) and any(isinstance(item, Json) for item in value):
        return Json(f"[{', '.join(map(encode_json, value))}]")
    return Json(json.dumps(value, sort_keys=True))


def digest_json(value: Any) -> str:
    """Return the SHA-256 of a value as JSON; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@cache
def _get_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _describe(problem: Any) -> str:
    place = ".".join(map(str, problem["loc"])) or "the document"
    if problem["type"] == "missing":
        return f"{place} is missing"
    if problem["type"] == "value_error":  # raised by a check of the type itself, in our words
        return f"{place}: {problem['msg'].removeprefix('Value error, ').rstrip('.')}"
    value = repr(problem["input"])
    value = value if len(value) <= 60 else f"{value[:57]}..."
    return f"{place} is {value}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"
