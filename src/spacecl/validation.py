"""Rules for values that users give: what is good, and how to say what is not."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from .errors import ConfigError, StoreError

Rule = tuple[Callable[[Any], bool], str]  # whether a value is good, and what it must be
_LONGEST = 120  # characters of a value that a message shows


def integer(least: int) -> Rule:
    return lambda v: is_integer(v) and int(v) >= least, f"a whole number, at least {least}"


def number(good: Callable[[Any], bool], what: str) -> Rule:
    return lambda v: isinstance(v, Real) and not isinstance(v, bool) and _is_finite(v) and bool(good(v)), f"a number {what}"


def one_of(names: tuple[str, ...]) -> Rule:
    return lambda v: isinstance(v, str) and v in names, f"one of {', '.join(names)}"


def flag() -> Rule:
    return lambda v: isinstance(v, bool), "True or False"


def is_integer(value: Any) -> bool:
    """Whether a value is a whole number; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return isfinite(value)
    except (OverflowError, TypeError, ValueError):  # beyond all floats
        return False


def faults(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> list[str]:
    """What is wrong with some values, in words.

    >>> faults({"epochs": 0, "lr": 0.1}, {"epochs": whole(1), "lr": number(lambda v: v > 0, "above 0")})
    ['epochs=0 must be a whole number, at least 1']
    """
    found = []
    for name, (good, what) in rules.items():
        value = values[name]
        if not good(value):
            found.append(f"{name}={show(value)} must be {what}")
        elif is_integer(value) and int(value) >= 2**63:
            found.append(f"{name}={show(value)} is too large: whole numbers have at most 64 bits")
    return found


def settle(options: Any, rules: Mapping[str, Rule]) -> None:
    """Check the fields of a frozen dataclass, and make their numbers plain ones, of no library, so that JSON can hold them."""
    wrong = faults({field.name: getattr(options, field.name) for field in fields(options)}, rules)
    if wrong:
        raise ConfigError(f"{type(options).__name__} cannot be used like this: {'; '.join(wrong)}.")
    for name in rules:
        object.__setattr__(options, name, plain(getattr(options, name)))


def plain(value: Any) -> Any:
    """A number of any library as one of Python's own; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def show(value: Any) -> str:
    """A value as messages show it: its `repr`, or its type where there is none, and never more than a line."""
    try:
        text = repr(value)
    except Exception:  # of a value that cannot be shown, such as a number of 5,000 digits
        text = f"a {type(value).__name__} that cannot be printed"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def find_name_problem(name: Any) -> str | None:
    """What is wrong with the name of a task or a class, or None: names go into JSON, tables, file names and addresses.

    >>> problem_of_name("cats"), problem_of_name(" "), problem_of_name("a\\nb")
    (None, 'it is blank', "it holds the control character '\\\\n'")
    """
    if not isinstance(name, str):
        return f"it is a {type(name).__name__}, not text"
    if not name.strip():
        return "it is blank"
    bad = next((letter for letter in name if unicodedata.category(letter) in ("Cc", "Cs")), None)
    return None if bad is None else f"it holds the control character {bad!r}"


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={show(value)} must be True or False.")


def check_path(name: str, value: Any) -> Path:
    """A path that a user gave, as a Path."""
    try:
        path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        if isinstance(path, str) and path and b"\0" not in os.fsencode(path):
            return Path(path)
    except (UnicodeError, TypeError):
        pass
    raise ConfigError(f"{name}={show(value)} is no path. Give the name of a file or folder, as text or as a pathlib.Path.")


@contextmanager
def file_errors(doing: str) -> Iterator[None]:
    """Report what the system says of files and folders as a StoreError; also a decorator."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise StoreError(
            f"{doing}: {error.strerror or error}{where}. Check the path, its permissions and the space on its disk."
        ) from error
