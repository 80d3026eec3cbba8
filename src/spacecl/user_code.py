"""Users' own Python code, named as `module:name` or `file.py:name`: functions and classes."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import runpy
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ConfigError, user_code_errors

_Version = tuple[int, int, int]  # modification time, size, seed
_namespaces: dict[Path, tuple[_Version, dict[str, Any]]] = {}  # of the files that were executed
_executing: list[Path] = []  # files that are being executed, the innermost last
_lock = threading.RLock()


def run_file(file: str | os.PathLike[str], label: str | None = None) -> Mapping[str, Any]:
    """Execute a Python file and return the names that it defines.

    A process executes a file once, however often it is named. It is executed again if it has changed, or if torch has
    another seed: a file that draws random numbers gives the same ones for the same seed, whatever was run before.
    `label` begins error messages (default: the file).
    """
    import torch

    path = Path(file).absolute()
    with _lock, user_code_errors(f"{label or file} cannot be loaded"):
        status = path.stat()
        version = status.st_mtime_ns, status.st_size, torch.initial_seed()
        if path not in _namespaces or _namespaces[path][0] != version:
            _search_first(str(path.parent))  # for modules beside the file
            _namespaces[path] = version, _execute(path)
        return _namespaces[path][1]


def _execute(path: Path) -> dict[str, Any]:
    """Execute a file as a module of its own, which type annotations of its classes are looked up in later."""
    name = f"{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    _executing.append(path)
    try:
        namespace = runpy.run_path(str(path), run_name=name)
    finally:
        _executing.pop()
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(namespace)
    return namespace


def get_executing_file() -> Path | None:
    """The file that `run_file` is executing, if any."""
    return _executing[-1] if _executing else None


def load_function(name: str, label: str) -> Callable[[], Any]:
    """Load a function by `module:function` or `file.py:function`; `label` begins error messages."""
    function = _load(name, label, "function")
    if not callable(function):
        module, _, function_name = name.rpartition(":")
        raise ConfigError(f"{label}: {module} has no function {function_name}()")
    return function


def load_class(name: str, label: str) -> type[Any]:
    """Load a class by `module:Class` or `file.py:Class`; `label` begins error messages."""
    kind = _load(name, label, "Class")
    if not isinstance(kind, type):
        module, _, class_name = name.rpartition(":")
        raise ConfigError(f"{label}: {module} has no class {class_name}")
    return kind


def make_absolute(name: str) -> str:
    """The same name with the absolute path of its file, so that it means the same in every folder.

    >>> make_absolute("package.module:function"), make_absolute("/code/net.py:function")
    ('package.module:function', '/code/net.py:function')
    """
    return str(Path(name).absolute()) if name.rpartition(":")[0].endswith(".py") else name


def _load(name: str, label: str, kind: str) -> Any:
    """What a module or file has under a name; None if there is no such name in it."""
    module, colon, attribute = name.rpartition(":")
    if not colon or not module or not attribute:
        raise ConfigError(f"{label} is not of the form module:{kind} or file.py:{kind}")
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise ConfigError(f"{label}: {module} does not exist")
        namespace = run_file(module, f"{label}: {module}")
    else:
        _search_first("")  # the user's module is in the current folder
        with user_code_errors(f"{label}: {module} cannot be loaded"):
            namespace = vars(importlib.import_module(module))
    return namespace.get(attribute)


def _search_first(folder: str) -> None:
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
