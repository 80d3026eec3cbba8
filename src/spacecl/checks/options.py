"""Checks of a method's options, and that a learner keeps its method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..learner import Learner
from ..methods import METHODS
from ..options import describe_options, is_checked
from .models import FAMILIES
from .subject import CheckError, NotApplicableError, Subject, require


def check_options(subject: Subject, folder: Path) -> None:
    """A value of the wrong type, and an infinite number, are refused when they are given, with the option's name."""
    kind = subject.kind
    if not fields(kind):
        raise NotApplicableError("the method has no options")
    if not is_checked(kind):
        raise NotApplicableError(
            "Python does not check the values of a plain dataclass. Declare it with @spacecl.options.options"
        )
    for entry in describe_options(kind):
        values = ([] if entry.values == "text" else ["much"]) + ([float("inf")] if type(entry.default) is float else [])
        for value in values:
            _expect_error(entry.name, f"{entry.name}={value!r}", kind, **{entry.name: value})


def check_help(subject: Subject, folder: Path) -> None:
    """The method has a docstring, and every option of an `@options` class has a help text, for `--help` and the docs."""
    kind = subject.kind
    own_text = kind.__dict__.get("__doc__") or ""
    generated = own_text.startswith(f"{kind.__name__}(")  # by dataclass
    require(bool(own_text) and not generated, "the class has no docstring. Say in one sentence what it does")
    without = [entry.name for entry in describe_options(kind) if is_checked(kind) and not entry.help]
    require(not without, f"no help text: {', '.join(without)}. Declare options as option(default=..., help=...)")


def check_method_is_kept(subject: Subject, folder: Path) -> None:
    """A saved learner goes on with its own method, and with no other."""
    family = FAMILIES["chain"]
    subject.teach(family).save(folder)
    other = next(kind() for kind in METHODS.values() if kind.__name__ != subject.kind.__name__)
    what = f"a learner with {type(other).__name__} in place of its method"
    _expect_error(subject.kind.__name__, what, Learner.load, folder, family.make(), method=other)
    Learner.load(folder, family.make(), method=subject.kind())


def _expect_error(name: str, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Fail unless a function raises an error that names something; `what` describes the call."""
    try:
        function(*args, **kwargs)
    except ConfigError as error:
        require(name in str(error), f"{what}: the error does not name {name}: {error}")
    else:
        raise CheckError(f"{what} was accepted")
