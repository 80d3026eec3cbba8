"""Files that others may have written or damaged: read with bounds, and JSON validated against a named type.

Every JSON file that spacecl reads goes through `read_document`: what is wrong with it becomes one sentence that names the file,
the place in it and what to do, and the rest of the program sees values of the right types only.
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

LARGEST_DOCUMENT = 256 << 20  # bytes of a JSON file; the largest honest ones have some megabytes
RESTORE = "Restore it from a copy."
T = TypeVar("T")

Count = Annotated[int, Field(ge=0, lt=2**53)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _is_plain(name: str) -> str:
    if not name or name in (".", "..") or name.startswith(".") or any(letter in name for letter in "/\\:\0") or len(name) > 255:
        raise PydanticCustomError("plain_name", "is not the plain name of a file in this folder")
    return name


FileName = Annotated[str, AfterValidator(_is_plain)]


def read_bytes(file: str | os.PathLike[str], most: int, remedy: str = RESTORE) -> bytes:
    """The content of a regular file of at most `most` bytes; links, pipes and devices are refused, whatever they hold."""
    path = Path(file)
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing. {remedy}") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise StoreError(f"{path} is a link. Put the file itself there.") from None
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # a NUL in the name
        raise StoreError(f"{str(path)!r} is no file name: {error}.") from error
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise StoreError(f"{path} is not a regular file. {remedy}")
        if about.st_size > most:
            raise StoreError(f"{path} has {about.st_size:,} bytes; at most {most:,} are expected. {remedy}")
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(about.st_size)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    finally:
        os.close(descriptor)


def load_json(data: bytes, file: object, remedy: str = RESTORE) -> Any:
    """The value that some JSON stands for, or an error that names the file."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "it is no JSON text"
        raise StoreError(f"{file} is damaged or truncated: it cannot be read as JSON ({reason}). {remedy}") from error


def parse_document(data: bytes, kind: type[T], file: object, remedy: str = RESTORE) -> T:
    """JSON as a value of a type, or an error that names what does not fit, up to five places at once."""
    try:
        return _adapter(kind).validate_json(data, strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        places = error.errors(include_url=False, include_context=False)
        if places[0]["type"] == "json_invalid":
            reason = f"it cannot be read as JSON ({places[0]['msg'].removeprefix('Invalid JSON: ')})"
            raise StoreError(f"{file} is damaged or truncated: {reason}. {remedy}") from None
        more = f" and {len(places) - 5} more" if len(places) > 5 else ""
        raise StoreError(f"{file} is damaged: {'; '.join(map(_describe, places[:5]))}{more}. {remedy}") from None
    except SpaceError as error:  # a type's own check
        raise StoreError(f"{file} is damaged: {error} {remedy}") from None


def read_document(file: str | os.PathLike[str], kind: type[T], remedy: str = RESTORE) -> T:
    """A JSON file as a value of a type."""
    return parse_document(read_bytes(file, LARGEST_DOCUMENT, remedy), kind, file, remedy)


def digest_json(value: Any) -> str:
    """SHA-256 of a value as JSON, the same however its keys are ordered."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _describe(place: Any) -> str:
    where = ".".join(map(str, place["loc"])) or "the whole"
    if place["type"] == "missing":
        return f"{where} is missing"
    if place["type"] == "value_error":  # a type's own check, in our words
        return f"{where}: {place['msg'].removeprefix('Value error, ').rstrip('.')}"
    value = repr(place["input"])
    value = value if len(value) <= 60 else f"{value[:57]}..."
    return f"{where} is {value}: {place['msg'][:1].lower()}{place['msg'][1:]}"
