"""Checks of single values that users pass to functions, and how messages show them. Classes of options are in `options`."""

from __future__ import annotations

import os
import unicodedata
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from .errors import ConfigError

MAX_SHOWN = 120  # characters of a value that a message shows


def is_integer(value: Any) -> bool:
    """Whether a value is a whole number, of Python or of another library; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, of Python or of another library; True and False are not."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # larger than every float
        return False


def show(value: Any) -> str:
    """A value as messages show it: its `repr` in one line, shortened; its type where `repr` fails."""
    try:
        text = repr(value)
    except Exception:  # such as a number of 5,000 digits
        text = f"a {type(value).__name__} that cannot be printed"
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def find_name_problem(name: Any) -> str | None:
    """Why a name cannot be that of a task or a class, or None. Names go into JSON, tables, file names and URLs.

    >>> find_name_problem("cats"), find_name_problem(" "), find_name_problem("a\\nb")
    (None, 'it is blank', "it contains the control character '\\\\n'")
    """
    if not isinstance(name, str):
        return f"it is a {type(name).__name__}, not text"
    if not name.strip():
        return "it is blank"
    control = next((letter for letter in name if unicodedata.category(letter) in ("Cc", "Cs")), None)
    return None if control is None else f"it contains the control character {control!r}"


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={show(value)} must be True or False.")


def check_path(name: str, value: Any) -> Path:
    """Return a user's path as a Path, or raise if it cannot be one."""
    try:
        path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        if isinstance(path, str) and path and b"\0" not in os.fsencode(path):
            return Path(path)
    except (UnicodeError, TypeError):
        pass
    raise ConfigError(f"{name}={show(value)} is not a path. Pass the name of a file or folder, as text or as a pathlib.Path.")
