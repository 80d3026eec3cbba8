"""The methods that settings can name: those of spacecl by their names, and users' own as `file.py:Class` or `module:Class`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ..errors import ConfigError, user_code_errors
from ..options import Description
from ..user_code import load_class

if TYPE_CHECKING:
    from ..learner import Method

# The order of the paper's table, with WSN, which is newer, beside its relative.
_ORDER = ("stl", "joint", "finetune", "lwf", "ewc", "ucb", "hat", "packnet", "wsn", "space")


def _list_methods() -> tuple[str, ...]:
    """The names of all methods, which are those of their files; found without loading torch."""
    package = find_spec("spacecl.methods")
    files = {file.name for file in iter_modules(package.submodule_search_locations if package else None)}
    return (*(name for name in _ORDER if name in files), *sorted(files - set(_ORDER)))


METHOD_ORDER = _list_methods()
if TYPE_CHECKING:
    MethodName: TypeAlias = str
else:
    _OwnMethod = Annotated[str, Field(pattern=r"^.+:\w+$"), Description("your own as file.py:Class")]
    MethodName = Literal[METHOD_ORDER] | _OwnMethod


def get_methods() -> dict[str, type[Any]]:
    """The methods of spacecl by their names on the command line."""
    from ..methods import METHODS

    return {name.lower(): method for name, method in METHODS.items()}


def is_own(method: str) -> bool:
    """Whether a setting names a user's own method, whose code is run by `load_method` and by nothing else."""
    return method not in METHOD_ORDER


def shorten_method(method: str) -> str:
    """A method's name for folders and tables.

    >>> shorten_method("space"), shorten_method("/code/my_method.py:L2Anchor")
    ('space', 'L2Anchor')
    """
    return method.rpartition(":")[2]


def load_method(method: str, seed: int = 0) -> type[Method]:
    """Load the class that a setting names. A user's file is executed with a seed, as that of the network is."""
    from ..learning.method import Method
    from ..seeds import use_seed

    if not is_own(method):
        return get_methods()[method]
    label, name = f"method={method!r}", shorten_method(method)
    with use_seed(seed):
        kind = load_class(method, label)
    if not issubclass(kind, Method) or not is_dataclass(kind):
        what = "a dataclass" if issubclass(kind, Method) else "a subclass of spacecl.Method"
        raise ConfigError(f"{label}: the class is not {what}. Write a method as docs/extending.md describes")
    if kind.__abstractmethods__:
        raise ConfigError(f"{label}: the class lacks {', '.join(sorted(kind.__abstractmethods__))}()")
    if kind.__name__ != name:
        raise ConfigError(f"{label}: the class is called {kind.__name__}; name it so")
    if not is_own(name.lower()):
        raise ConfigError(f"{label}: a method of spacecl is called {name}, too. Give your class another name")
    without = [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]
    if without:
        raise ConfigError(f"{label}: every option needs a default value, and {', '.join(without)} has none")
    return kind


def make_method(method: str, options: Mapping[str, Any], seed: int = 0) -> Method:
    """Make the method that a setting names with some options; they must be plain values, so that files can hold them."""
    kind = load_method(method, seed)
    with user_code_errors(f"method={method!r} cannot be made with its options"):
        made = kind(**options)
        json.dumps(asdict(made))  # type: ignore[call-overload]
    return made
