"""Checkpoints of a task that is being learned: after every epoch, all that the rest of training depends on."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import with_config
from torch import Tensor
from typing_extensions import TypedDict

from .. import store
from ..documents import Count, Fraction
from ..errors import SpaceError, StoreError

Tensors = dict[str, Tensor]


@with_config(extra="allow")
class Epoch(TypedDict):
    """A finished epoch: means over the training data, and what the validation data say."""

    phase: str
    epoch: Count
    loss: float
    accuracy: Fraction
    valid_loss: float
    lr: float
    seconds: float


@dataclass(frozen=True)
class RandomState:
    """The states of Python's and NumPy's random generators; those of torch are tensors."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, tuple[int, ...], int, int, float]


@dataclass(frozen=True)
class PhaseState:
    """Where a phase of training stands, but for its tensors."""

    history: tuple[Epoch, ...]
    highest: float  # validation accuracy so far
    done: bool
    rates: tuple[float, ...]  # of learning, per group of parameters
    schedule: dict[str, Any]
    random: RandomState


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint's manifest says beside the files of tensors: what it belongs to, and where it stands."""

    identity: dict[str, Any]
    state: PhaseState


@dataclass(frozen=True)
class Checkpointer:
    """Keeps the state of each phase of a task's learning in a folder; `identity` says what the phases belong to."""

    folder: Path
    identity: Mapping[str, Any]
    seen: set[str] = field(default_factory=set)

    def load(self, phase: str) -> tuple[PhaseState, Tensors] | None:
        """The last state of a phase, or None if it has none yet."""
        if phase in self.seen:
            raise SpaceError(f"Two phases of one task are named {phase!r}; checkpoints need names of their own.")
        self.seen.add(phase)
        if not (self.folder / phase / store.MANIFEST).exists():
            return None
        body, files = store.load(self.folder / phase, Checkpoint)
        other = [key for key, value in self.identity.items() if body.identity.get(key) != value]
        if other:
            told = "; ".join(f"{key} was {body.identity.get(key)} and is {self.identity[key]}" for key in other)
            raise StoreError(
                f"{self.folder} holds a checkpoint of other work: {told}. "
                "Remove the folder to begin anew, or go on with what it was."
            )
        return body.state, {f"{name}.{key}": tensor for name, file in files.items() for key, tensor in file.items()}

    def save(self, phase: str, state: PhaseState, files: Mapping[str, Tensors]) -> None:
        store.save(self.folder / phase, {"identity": dict(self.identity), "state": asdict(state)}, files)


def select_prefix(tensors: Tensors, name: str) -> Tensors:
    """The tensors of one of the files that were saved."""
    return {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}


def randomness(device: torch.device) -> tuple[RandomState, Tensors]:
    """The state of every generator that training may draw from."""
    name, keys, *rest = np.random.get_state()
    found = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        found["device"] = torch.mps.get_rng_state()
    return RandomState(random.getstate(), (name, tuple(np.asarray(keys).tolist()), *rest)), found  # type: ignore[arg-type]


def restore_randomness(state: RandomState, tensors: Tensors, device: torch.device) -> None:
    random.setstate(state.python)
    name, keys, position, has_gauss, gauss = state.numpy
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(tensors["torch"])
    if device.type == "cuda" and "device" in tensors:
        torch.cuda.set_rng_state(tensors["device"], device)
    elif device.type == "mps" and "device" in tensors:
        torch.mps.set_rng_state(tensors["device"])
