"""The errors that spacecl raises on purpose; each message says what was given, why it cannot be used, and what to do."""

import contextlib
import importlib
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class SpaceError(Exception):
    """The parent of every error that spacecl raises on purpose."""


class UnsupportedModelError(SpaceError):
    """The model cannot learn tasks one after another as it is; the message names layers and source lines."""


class ConfigError(SpaceError, ValueError):
    """An option has a value that cannot be used with this model."""


class DataError(SpaceError, ValueError):
    """A task's data cannot be trained on."""


class TaskError(SpaceError, LookupError):
    """A task's name is unknown, or is in use already."""


class FullError(SpaceError):
    """A layer has no free channels left, and the method was made with `on_full="error"`."""


class TrainingError(SpaceError):
    """Training failed; committed tasks are untouched."""


class StoreError(SpaceError):
    """A file cannot be read or written, is damaged, or belongs to another model."""


class SpaceWarning(UserWarning):
    """Something works, but not as well as it could; the message says what to do."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type if there is none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def warn_user(message: str, category: type[Warning] = SpaceWarning) -> None:
    """Issue a warning that points at the line of the user's code that called spacecl."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


_LOADERS = ("<frozen ", runpy.__file__, os.path.dirname(importlib.__file__) + os.sep)
_OURS = (os.path.dirname(__file__) + os.sep, contextlib.__file__)


def renamed(old: str, new: str) -> Any:
    """Return a class attribute for an old public name: it warns, and returns the value of the new name.

    >>> class Box:
    ...     width = 3
    ...     wide = renamed("wide", "width")
    >>> Box().wide
    3
    """

    def get(instance: Any) -> Any:
        name = type(instance).__name__
        warn_user(f"{name}.{old} is deprecated; use {name}.{new}.", DeprecationWarning)
        return getattr(instance, new)

    return property(get, doc=f"Deprecated; use `{new}`.")


@contextmanager
def user_code_errors(what: str) -> Iterator[None]:
    """Run a user's own file; raise whatever it raises as a `ConfigError` with the line of code."""
    try:
        yield
    except SpaceError:
        raise
    except (Exception, SystemExit) as error:
        everything = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in everything if not frame.filename.startswith((*_OURS, *_LOADERS))]
        line = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise ConfigError(f"{what}: {type(error).__name__}: {error}{line}") from error
