"""The errors that spacecl raises on purpose: each says what was given, why it cannot be, and what to do."""

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
    """The model cannot be taught task after task as it stands; the message names layers and source lines."""


class ConfigError(SpaceError, ValueError):
    """An option has a value that cannot be used with this model."""


class DataError(SpaceError, ValueError):
    """A task's data cannot be trained on."""


class TaskError(SpaceError, LookupError):
    """A task's name is unknown, or is taken already."""


class FullError(SpaceError):
    """A layer has no free channels left and `on_full="error"` was asked for."""


class TrainingError(SpaceError):
    """Training broke down; what was committed before is untouched."""


class StoreError(SpaceError):
    """A saved learner is damaged, or belongs to another model."""


class SpaceWarning(UserWarning):
    """Something works, but not as well as it could; the message says what to do about it."""


def first_line(error: BaseException) -> str:
    """What an exception says, without the lines that only its author needs."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def warn_user(message: str, category: type[Warning] = SpaceWarning) -> None:
    """Warn of something that works, but not as well as it could, at the line of the user's code that led to it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


_LOADERS = ("<frozen ", runpy.__file__, os.path.dirname(importlib.__file__) + os.sep)
_OURS = (os.path.dirname(__file__) + os.sep, contextlib.__file__)


def renamed(old: str, new: str) -> Any:
    """A class attribute for an old public name: it warns, and gives what the new name does.

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
    """Where a user's own file runs: whatever it raises is told with its line, as an error of the settings."""
    try:
        yield
    except SpaceError:
        raise
    except (Exception, SystemExit) as error:
        everything = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in everything if not frame.filename.startswith((*_OURS, *_LOADERS))]
        line = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise ConfigError(f"{what}: {type(error).__name__}: {error}{line}") from error
