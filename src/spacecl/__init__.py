"""Teach one fixed-size PyTorch network many tasks, one after another, without forgetting any."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import benchmarks, options
    from .compression import compress
    from .data.images import Images
    from .data.task import Task
    from .errors import (
        ConfigError,
        DataError,
        FullError,
        SpaceError,
        SpaceWarning,
        StoreError,
        TaskError,
        TrainingError,
        UnsupportedModelError,
    )
    from .inference.task_inference import Identified, Inferred
    from .learner import Learner
    from .learning.context import TaskContext
    from .learning.core import Core
    from .learning.method import Learned, Method
    from .learning.recipe import Recipe
    from .learning.record import TaskRecord
    from .methods.ewc import EWC
    from .methods.finetune import FineTune
    from .methods.hat import HAT
    from .methods.joint import Joint
    from .methods.lwf import LwF
    from .methods.packnet import PackNet
    from .methods.space.method import SPACE
    from .methods.stl import STL
    from .methods.ucb import UCB
    from .methods.wsn import WSN
    from .structure.layers import register_layer
    from .structure.operation import Operation
    from .structure.operators import register_operator

__version__ = "0.1.0"

_MODULES = {
    "compression": ("compress",),
    "errors": (
        "ConfigError",
        "DataError",
        "FullError",
        "SpaceError",
        "SpaceWarning",
        "StoreError",
        "TaskError",
        "TrainingError",
        "UnsupportedModelError",
    ),
    "data.images": ("Images",),
    "learner": ("Learner",),
    "inference.task_inference": ("Identified", "Inferred"),
    "methods.ewc": ("EWC",),
    "methods.finetune": ("FineTune",),
    "methods.hat": ("HAT",),
    "methods.joint": ("Joint",),
    "methods.lwf": ("LwF",),
    "methods.packnet": ("PackNet",),
    "methods.space.method": ("SPACE",),
    "methods.stl": ("STL",),
    "methods.ucb": ("UCB",),
    "methods.wsn": ("WSN",),
    "learning.context": ("TaskContext",),
    "learning.core": ("Core",),
    "learning.recipe": ("Recipe",),
    "learning.record": ("TaskRecord",),
    "learning.method": ("Learned", "Method"),
    "structure.layers": ("register_layer",),
    "structure.operation": ("Operation",),
    "structure.operators": ("register_operator",),
    "data.task": ("Task",),
}
_PUBLIC_MODULES = ("benchmarks", "options")
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "EWC",
    "HAT",
    "SPACE",
    "STL",
    "UCB",
    "WSN",
    "ConfigError",
    "Core",
    "DataError",
    "FineTune",
    "FullError",
    "Identified",
    "Images",
    "Inferred",
    "Joint",
    "Learned",
    "Learner",
    "LwF",
    "Method",
    "Operation",
    "PackNet",
    "Recipe",
    "SpaceError",
    "SpaceWarning",
    "StoreError",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskRecord",
    "TrainingError",
    "UnsupportedModelError",
    "benchmarks",
    "compress",
    "options",
    "register_layer",
    "register_operator",
]


def __getattr__(name: str) -> Any:
    """Import a module when one of its names is first used, so that the command line starts before torch is loaded."""
    if name in _PUBLIC_MODULES:
        return import_module(f".{name}", __name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
