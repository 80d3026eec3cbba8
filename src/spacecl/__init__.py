"""Teach one fixed-size PyTorch network many tasks, one after another, without forgetting any."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

__version__ = "0.1.0"

_ROOMS = {
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
    "learning.recipe": ("Recipe",),
    "learning.record": ("TaskRecord",),
    "learning.method": ("Learned", "Method"),
    "data.task": ("Task",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "EWC",
    "HAT",
    "SPACE",
    "STL",
    "UCB",
    "ConfigError",
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
    "PackNet",
    "Recipe",
    "SpaceError",
    "SpaceWarning",
    "StoreError",
    "Task",
    "TaskError",
    "TaskRecord",
    "TrainingError",
    "UnsupportedModelError",
    "compress",
]


def __getattr__(name: str) -> Any:
    """Rooms are opened when first asked for, so that the command line answers before torch is loaded."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ROOM_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
