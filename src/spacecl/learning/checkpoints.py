"""Checkpoints of a task that is being learned: after every epoch, everything that the rest of training depends on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import AliasChoices, Field, with_config
from torch import Tensor, nn
from typing_extensions import NotRequired, TypedDict

from .. import store
from ..documents import Count, Finite, Fraction
from ..errors import SpaceError, StoreError
from ..options import add_former_values
from .recipe import Recipe

Tensors = dict[str, Tensor]
Score = Annotated[Finite, Field(validation_alias=AliasChoices("score", "accuracy"))]  # version 0.1 wrote accuracy alone


@with_config(extra="allow")
class Epoch(TypedDict):
    """A finished epoch: the mean training loss, and score and loss on the validation data."""

    phase: str
    epoch: Count
    loss: float
    score: Score  # by the task's metric
    accuracy: NotRequired[Fraction]  # the same, if the metric is accuracy
    valid_loss: float
    lr: float
    seconds: float
    processes: NotRequired[Count]  # that trained together, if there were several


@dataclass(frozen=True)
class RandomState:
    """The states of Python's and NumPy's random generators; those of torch are stored as tensors."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, tuple[int, ...], int, int, float]


@dataclass(frozen=True)
class PhaseState:
    """The state of a phase of training, without its tensors."""

    history: tuple[Epoch, ...]
    highest: float  # best validation score so far
    done: bool
    rates: tuple[float, ...]  # learning rates, per group of parameters
    schedule: dict[str, Any]
    random: RandomState  # of the first process
    others: tuple[RandomState, ...] = ()  # of all further processes, in the order of their ranks


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint's manifest says beside the files of tensors: which work it belongs to, and its state."""

    identity: dict[str, Any]
    state: PhaseState


@dataclass(frozen=True)
class Checkpointer:
    """Saves and loads the state of each phase of learning a task, in a folder; `identity` says which work it belongs to."""

    folder: Path
    identity: Mapping[str, Any]
    renamed_options: Mapping[str, str] = field(default_factory=dict)  # of the method, from their names in older versions
    former_values: Mapping[str, Any] = field(default_factory=dict)  # of the method's options that older versions did not have
    loaded: set[str] = field(default_factory=set)  # phases, each of which is loaded once

    def load(self, phase: str) -> tuple[PhaseState, Tensors] | None:
        """The last saved state of a phase and its tensors, or None if there is none yet."""
        if phase in self.loaded:
            raise SpaceError(f"Two phases of one task are named {phase!r}. Give each a name of its own, for its checkpoint.")
        self.loaded.add(phase)
        if not (self.folder / phase / store.MANIFEST).exists():
            return None
        body, files = store.load(self.folder / phase, Checkpoint)
        saved = self._translate(body.identity)
        changes = [
            f"{key} was {saved.get(key)} and is {value}" for key, value in self.identity.items() if saved.get(key) != value
        ]
        if changes:
            raise StoreError(
                f"{self.folder} holds a checkpoint of other work: {'; '.join(changes)}. "
                "Remove the folder to start again, or resume with the settings that it was saved with."
            )
        return body.state, {f"{name}.{key}": tensor for name, file in files.items() for key, tensor in file.items()}

    def _translate(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """An identity that an older version may have saved, in the terms of this one."""
        here = self.identity.get("operations")  # which version 0.1 did not save, and other versions of torch name in other ways
        if here is not None and (identity.get("operations") or {}).get("torch") != here["torch"]:
            identity = {**identity, "operations": here}
        identity = {"precision": self.identity.get("precision"), **identity}  # which version 0.1 did not save, either
        recipe = identity.get("recipe")
        if isinstance(recipe, dict):
            identity = {**identity, "recipe": add_former_values(Recipe, recipe)}
        method = identity.get("method")
        if not isinstance(method, dict) or not isinstance(method.get("options"), dict):
            return dict(identity)
        options = {self.renamed_options.get(name, name): value for name, value in method["options"].items()}
        return {**identity, "method": {**method, "options": {**self.former_values, **options}}}

    def save(self, phase: str, state: PhaseState, files: Mapping[str, Tensors]) -> None:
        store.save(self.folder / phase, {"identity": dict(self.identity), "state": asdict(state)}, files)


def select_prefix(tensors: Tensors, name: str) -> Tensors:
    """The tensors whose names begin with `name.`, without it."""
    return {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}


def random_state(device: torch.device) -> tuple[RandomState, Tensors]:
    """The state of every random generator that training may draw from."""
    name, keys, *rest = np.random.get_state()
    tensors = {"torch": torch.get_rng_state()}
    if device.type != "cpu":
        tensors["device"] = torch.get_device_module(device).get_rng_state()  # of the current device, which Fabric has set
    return RandomState(random.getstate(), (name, tuple(np.asarray(keys).tolist()), *rest)), tensors  # type: ignore[arg-type]


def restore_random_state(state: RandomState, tensors: Tensors, device: torch.device) -> None:
    version, internal, gauss = state.python
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state.numpy
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(tensors["torch"])
    if device.type != "cpu" and "device" in tensors:
        torch.get_device_module(device).set_rng_state(tensors["device"])


@contextmanager
def undo(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore a module's buffers and all random generators at the end. Parameters must not be changed."""
    drawn, buffers = random_state(device), [buffer.clone() for buffer in module.buffers()]
    try:
        yield
    finally:
        restore_random_state(*drawn, device)
        with torch.no_grad():
            for buffer, before in zip(module.buffers(), buffers):
                buffer.copy_(before)
