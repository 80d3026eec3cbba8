"""Checkpoints of a task that is being learned: after every epoch, all that the rest of training depends on."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import store
from .errors import SpaceError, StoreError
from .rules import file_errors

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Keeper:
    """Keeps the state of each phase of a task's learning in a folder; `identity` says what the phases belong to."""

    folder: Path
    identity: Mapping[str, Any]
    seen: set[str] = field(default_factory=set)

    def load(self, phase: str) -> tuple[dict[str, Any], Tensors] | None:
        """The last state of a phase, or None if it has none yet."""
        if phase in self.seen:
            raise SpaceError(f"Two phases of one task are named {phase!r}; checkpoints need names of their own.")
        self.seen.add(phase)
        if not (self.folder / phase / store.MANIFEST).exists():
            return None
        body, files = store.load(self.folder / phase)
        other = [key for key, value in self.identity.items() if body["identity"].get(key) != value]
        if other:
            told = "; ".join(f"{key} was {body['identity'].get(key)} and is {self.identity[key]}" for key in other)
            raise StoreError(
                f"{self.folder} holds a checkpoint of other work: {told}. "
                "Remove the folder to begin anew, or go on with what it was."
            )
        return body["state"], {f"{name}.{key}": tensor for name, file in files.items() for key, tensor in file.items()}

    def save(self, phase: str, state: Mapping[str, Any], files: Mapping[str, Tensors]) -> None:
        with file_errors("No checkpoint can be kept"):
            store.save(self.folder / phase, {"identity": dict(self.identity), "state": dict(state)}, files)


def part(tensors: Tensors, name: str) -> Tensors:
    """The tensors of one of the files that were saved."""
    return {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}


def randomness(device: torch.device) -> tuple[dict[str, Any], Tensors]:
    """The state of every generator that training may draw from."""
    name, keys, *rest = np.random.get_state()
    found = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        found["device"] = torch.mps.get_rng_state()
    return {"python": random.getstate(), "numpy": [name, np.asarray(keys).tolist(), *rest]}, found


def restore_randomness(state: Mapping[str, Any], tensors: Tensors, device: torch.device) -> None:
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))
    torch.set_rng_state(tensors["torch"])
    if device.type == "cuda" and "device" in tensors:
        torch.cuda.set_rng_state(tensors["device"], device)
    elif device.type == "mps" and "device" in tensors:
        torch.mps.set_rng_state(tensors["device"])
