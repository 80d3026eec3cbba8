"""Options that users set, each declared once: its type and bounds, its default, and its help text.

`help(SPACE)`, `spacecl run --help`, the docs and the error messages all read this one declaration:

    @options
    class Blur:
        radius: Annotated[float, Field(gt=0)] = option(default=1.0, help="standard deviation, in pixels")
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import PydanticCustomError
from typing_extensions import dataclass_transform

from .errors import ConfigError, warn_user
from .validation import show

T = TypeVar("T")

NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Description:
    """What a value of a type must be, in words, where the type itself does not say it: `Annotated[..., Description("...")]`."""

    text: str


@dataclass(frozen=True)
class Option:
    """One option as the docs and the command line show it."""

    name: str
    values: str  # what it must be, in words
    default: Any
    help: str


def option(*, default: Any, help: str) -> Any:
    """Declare a field of an `@options` class with its default and its help text."""
    make: dict[str, Any] = {"default_factory": lambda: dict(default)} if isinstance(default, dict) else {"default": default}
    return dataclasses.field(**make, metadata={"help": help})


@dataclass_transform(frozen_default=True, field_specifiers=(option,))
def options(kind: type[T]) -> type[T]:
    """Make a class of options: a frozen dataclass whose values are checked, and whose docstring lists them.

    Numbers of other libraries become Python's own, so that JSON can hold them. `renamed_options`, a class attribute, maps
    deprecated names to the present ones. `find_conflicts(values)`, a static method that a class may have, says what is wrong
    with values together.

    >>> @options
    ... class Blur:
    ...     "Blur an image."
    ...     radius: Annotated[float, Field(gt=0)] = option(default=1.0, help="standard deviation, in pixels")
    >>> Blur(radius=-1)
    Traceback (most recent call last):
    ...
    spacecl.errors.ConfigError: Invalid Blur options: radius=-1 must be a number above 0.
    """
    kind.__post_init__ = _check_options  # type: ignore[attr-defined]
    made = dataclass(frozen=True)(kind)
    made.__init__ = _translate_names(made.__init__, getattr(made, "renamed_options", {}))  # type: ignore[method-assign]
    entries = [
        f"{entry.name} : {entry.values}, default {entry.default!r}\n{textwrap.indent(textwrap.fill(entry.help, 100), '    ')}"
        for entry in describe_options(made)
    ]
    if entries:
        made.__doc__ = f"{inspect.cleandoc(made.__doc__ or '')}\n\nParameters\n----------\n" + "\n".join(entries)
    return made


def is_checked(kind: type) -> bool:
    """Whether a class checks its values when it is made, as `@options` lets it."""
    return getattr(kind, "__post_init__", None) is _check_options


def describe_options(kind: type) -> list[Option]:
    """The options of an `@options` class, in the order of their declaration."""
    hints = get_type_hints(kind, include_extras=True)
    defaults = {field.name: _default(field) for field in dataclasses.fields(kind)}
    return [
        Option(field.name, describe_type(hints[field.name]), defaults[field.name], field.metadata.get("help", ""))
        for field in dataclasses.fields(kind)
    ]


def describe_type(hint: Any) -> str:
    """What values a type admits, in words.

    >>> describe_type(PositiveFraction), describe_type(Literal["best", "last"])
    ('a number above 0 and at most 1', 'one of best, last')
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for entry in arguments[1:]:
            if isinstance(entry, Description):
                return entry.text
        bounds = [bound for entry in arguments[1:] for bound in getattr(entry, "metadata", ())]
        limits = {name: getattr(bound, name) for bound in bounds for name in ("ge", "gt", "le", "lt") if hasattr(bound, name)}
        words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        text = " and ".join(f"{words[name]} {limit:,}" for name, limit in limits.items())
        comma = "," if arguments[0] is int and text else ""
        return f"{describe_type(arguments[0])}{comma}{' ' if text else ''}{text}"
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, UnionType):
        return " or ".join(describe_type(entry) for entry in arguments if entry is not NoneType)
    return {int: "a whole number", float: "a number", bool: "True or False", str: "text"}.get(hint, str(hint))


def add_former_values(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a file, with those that it lacks as they were before they existed.

    A class attribute, `former_values`, has the options that version 0.1 did not have, and what was in force then.
    """
    return {**getattr(kind, "former_values", {}), **values}


def find_problems(kind: type, values: Mapping[str, Any]) -> list[str]:
    """What is wrong with some values of an `@options` class, in words; an empty list if nothing is."""
    return _validate(kind, values)[1]


def suggest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """The name most like one that does not exist, as a hint for a message; empty if none is like it.

    >>> suggest("epoch", ["epochs", "lr"])
    ' (did you mean epochs?)'
    """
    close = difflib.get_close_matches(str(name), list(names), 1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def to_plain(value: Any) -> Any:
    """A value with numbers of any library as Python's own."""
    if isinstance(value, (list, tuple)):
        return [to_plain(entry) for entry in value]
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _check_options(options: Any) -> None:
    """Check every field of a new instance, and replace its value by the plain one."""
    kind = type(options)
    values, problems = _validate(kind, {field.name: getattr(options, field.name) for field in dataclasses.fields(kind)})
    if problems:
        raise ConfigError(f"Invalid {kind.__name__} options: {'; '.join(problems)}.")
    for name, value in values.items():
        object.__setattr__(options, name, value)


def _validate(kind: type, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    try:
        checked = _adapter(kind).validate_python(dict(values))
        plain = {name: getattr(checked, name) for name in values}
        return plain, getattr(kind, "find_conflicts", lambda _: [])(plain)
    except ValidationError as error:
        expected = {entry.name: entry.values for entry in describe_options(kind)}
        hints = get_type_hints(kind, include_extras=True)
        problems: dict[str, str] = {}  # one for each option
        for entry in error.errors(include_url=False):
            name = str(entry["loc"][0])
            value = values.get(name)
            text = f"={show(value)} must be {expected.get(name, 'left out: there is no such option')}"
            text += suggest(value, _choices(hints.get(name))) if isinstance(value, str) else ""
            if entry["type"] == "value_error":  # raised by one of our own validators, in our own words
                text = str(entry["ctx"]["error"])
            problems.setdefault(name, f"{name}{text}")
        return {}, list(problems.values())


def _choices(hint: Any) -> list[str]:
    """The words that a type admits."""
    if get_origin(hint) is Literal:
        return [entry for entry in get_args(hint) if isinstance(entry, str)]
    return [word for entry in get_args(hint) for word in _choices(entry)]


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {
        field.name: (Annotated[hints[field.name], BeforeValidator(_read)], ...) for field in dataclasses.fields(kind)
    }
    return TypeAdapter(create_model(kind.__name__, __config__=ConfigDict(strict=True, extra="forbid"), **fields))


def _read(value: Any) -> Any:
    value = to_plain(value)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"={show(value)} is too large: whole numbers have at most 64 bits")
    if isinstance(value, float) and not isfinite(value):
        raise PydanticCustomError("finite", "not a finite number")
    return value


def _translate_names(initialize: Callable[..., None], renamed: Mapping[str, str]) -> Callable[..., None]:
    """Let a constructor take deprecated names, with a warning."""
    if not renamed:
        return initialize

    @functools.wraps(initialize)
    def translate(self: Any, *args: Any, **kwargs: Any) -> None:
        for old in renamed.keys() & kwargs.keys():
            warn_user(f"{type(self).__name__}({old}=...) is deprecated; use {renamed[old]}=...", DeprecationWarning)
            kwargs[renamed[old]] = kwargs.pop(old)
        initialize(self, *args, **kwargs)

    return translate


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default
