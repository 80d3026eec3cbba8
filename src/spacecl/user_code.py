"""Users' own Python code, named as `module:function` or `file.py:function`."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError, user_code_errors

_Version = tuple[int, int, int]  # modification time, size, seed
_namespaces: dict[Path, tuple[_Version, dict[str, Any]]] = {}  # of the files that were executed
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
            _namespaces[path] = version, runpy.run_path(str(path))
        return _namespaces[path][1]


def load_function(name: str, label: str) -> Callable[[], Any]:
    """Load a function by `module:function` or `file.py:function`; `label` begins error messages."""
    module, colon, function = name.rpartition(":")
    if not colon or not module or not function:
        raise ConfigError(f"{label} is not of the form module:function or file.py:function")
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise ConfigError(f"{label}: {module} does not exist")
        namespace = run_file(module, f"{label}: {module}")
    else:
        _search_first("")  # the user's module is in the current folder
        with user_code_errors(f"{label}: {module} cannot be loaded"):
            namespace = vars(importlib.import_module(module))
    if not callable(namespace.get(function)):
        raise ConfigError(f"{label}: {module} has no function {function}()")
    return namespace[function]


def _search_first(folder: str) -> None:
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
