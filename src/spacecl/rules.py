"""Rules for values that users give: what is good, and how to say what is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite
from numbers import Integral, Real
from typing import Any

from .errors import ConfigError

Rule = tuple[Callable[[Any], bool], str]  # whether a value is good, and what it must be


def whole(least: int) -> Rule:
    return (
        lambda v: isinstance(v, Integral) and not isinstance(v, bool) and int(v) >= least,
        f"a whole number, at least {least}",
    )


def number(good: Callable[[Any], bool], what: str) -> Rule:
    return lambda v: isinstance(v, Real) and not isinstance(v, bool) and isfinite(v) and bool(good(v)), f"a number {what}"


def one_of(names: tuple[str, ...]) -> Rule:
    return lambda v: v in names, f"one of {', '.join(names)}"


def faults(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> list[str]:
    """What is wrong with some values, in words.

    >>> faults({"epochs": 0, "lr": 0.1}, {"epochs": whole(1), "lr": number(lambda v: v > 0, "above 0")})
    ['epochs=0 must be a whole number, at least 1']
    """
    return [f"{name}={values[name]!r} must be {what}" for name, (good, what) in rules.items() if not good(values[name])]


def settle(options: Any, rules: Mapping[str, Rule]) -> None:
    """Check the fields of a frozen dataclass, and make their numbers plain ones, of no library, so that JSON can hold them."""
    wrong = faults(asdict(options), rules)
    if wrong:
        raise ConfigError(f"{type(options).__name__} cannot be used like this: {'; '.join(wrong)}.")
    for name in rules:
        value = getattr(options, name)
        object.__setattr__(options, name, int(value) if isinstance(value, Integral) else float(value))
