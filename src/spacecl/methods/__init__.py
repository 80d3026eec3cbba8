"""The methods, one file or package each: a subclass of `Method` whose name is that of its file, in any case."""

from importlib import import_module
from pkgutil import iter_modules

from ..learning.method import Method


def _find_methods() -> dict[str, type[Method]]:
    """Every public method in this package, by the name of its class."""
    methods = {}
    for file in iter_modules(__path__):
        module = import_module(f".{file.name}", __name__)
        (kind,) = [value for name, value in vars(module).items() if name.lower() == file.name and isinstance(value, type)]
        methods[kind.__name__] = kind
    return methods


METHODS = _find_methods()
