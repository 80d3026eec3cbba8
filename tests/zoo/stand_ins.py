"""Import torchvision where its compiled operators are missing, as with a CPU build of torch from another index.

They serve object detection, which no model of the zoo does. So operators without an implementation stand in for them.
"""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import torch

_KEPT = []  # a library of operators exists as long as its object


def import_torchvision() -> ModuleType:
    """Import torchvision, with stand-ins for its compiled operators if they are missing."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torchvision is not installed; the extra zoo has it.")
    folder = Path(spec.origin).parent
    if not _KEPT and not _can_load(folder / "_C.so"):
        text = (folder / "_meta_registrations.py").read_text()
        names = re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"\)', text)
        library = torch.library.Library("torchvision", "DEF")
        for name in dict.fromkeys(names):
            library.define(f"{name}() -> Tensor")
        _KEPT.append(library)
    import torchvision

    return torchvision


def _can_load(file: Path) -> bool:
    try:
        torch.ops.load_library(file)
    except (OSError, RuntimeError):
        return False
    return True
