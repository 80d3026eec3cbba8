"""What a learner has committed, as JSON and sets of tensors, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .blueprint import tensors_of
from .channels import Tensors
from .checkpoint import part
from .core import Core
from .errors import StoreError
from .record import TaskRecord

Saved = tuple[dict[str, Any], dict[str, Tensors]]


def written(core: Core, records: Iterable[TaskRecord]) -> Saved:
    """A core and the records of its tasks: a body for the manifest, and tensors in common and of each task."""
    blueprint = core.blueprint
    body = {
        "torch": torch.__version__,
        "head": blueprint.head,
        "shared": list(blueprint.shared),
        "units": [len(group.units) for group in core.channels.groups],
        "fingerprint": core.channels.fingerprint(),
        "operations": list(core.channels.operations),
        "tensors": _described(blueprint.module),
        "tasks": [record.to_json() for record in records],
    }
    given = blueprint.tensors()
    needed = given.keys() - (blueprint.drawn() if core.own else set())  # what later tasks begin with
    common = {f"core.{name}": tensor for name, tensor in core.tensors.items()}
    common |= {f"given.{name}": given[name] for name in needed}
    common |= {f"taken.{name}": tensor for name, tensor in core.taken.items()}
    common |= {f"memory.{name}": tensor for name, tensor in core.memory.items()}
    common |= {f"keep.{number}": keep for number, keep in enumerate(core.keeps)}
    for number, signed in enumerate(core.signatures):
        common |= {f"signature.{number}.{name}": tensor for name, tensor in signed.items()}
    own = {f"task {number}": tensors for number, tensors in enumerate(core.own)}
    return body, {"core": common | {"example": blueprint.example}, **own}


def restored(
    core: Core, body: Mapping[str, Any], files: Mapping[str, Tensors], folder: object
) -> tuple[Core, dict[str, TaskRecord]]:
    """What a saved learner had committed, in the network that `core` has; not verified yet."""
    sizes = [len(group.units) for group in core.channels.groups]
    if len(sizes) == len(body["units"]) and any(now > then for now, then in zip(sizes, body["units"])):
        raise StoreError(f"{folder} was saved from a network with fewer channels than this one has. Load it anew.")
    if sizes != body["units"] and len(sizes) == len(body["units"]):  # it had grown
        core = core.resized(body["units"])
    same = list(core.channels.operations) == body["operations"] or torch.__version__ != body["torch"]
    if core.channels.fingerprint() != body["fingerprint"] or not same:
        raise StoreError(
            f"{folder} was saved from another architecture: the tensors are the same, but forward() is not"
            f" (saved with torch {body['torch']}, this is {torch.__version__}). Build the model as it was."
        )
    tensors = files["core"]
    common = {name: tensors[f"core.{name}"] for name in core.tensors}
    own = tuple(files[f"task {number}"] for number in range(len(body["tasks"])))
    records = {record["name"]: TaskRecord.from_json(record) for record in body["tasks"]}
    keeps = tuple(tensors[f"keep.{number}"] for number in range(len(own)))
    taken, memory = part(tensors, "taken"), part(tensors, "memory")
    signed = tuple(part(tensors, f"signature.{number}") for number in range(len(own)))
    found = replace(core, tensors=common, keeps=keeps, own=own, taken=taken, memory=memory, signatures=signed)
    return found, records


def _described(model: nn.Module) -> dict[str, str]:
    """Every tensor of a model as text, such as `float32 [8, 3, 3, 3]`."""
    return {name: f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for name, t in tensors_of(model).items()}


def compare_tensors(saved: Mapping[str, str], model: nn.Module, folder: object) -> None:
    given = _described(model)
    wrong = [f"{n} is {saved[n]} there and {given[n]} here" for n in saved.keys() & given.keys() if saved[n] != given[n]]
    wrong += [f"{name} is missing here" for name in saved.keys() - given.keys()]
    wrong += [f"{name} is missing there" for name in given.keys() - saved.keys()]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise StoreError(f"{folder} was saved from another architecture: {'; '.join(sorted(wrong)[:5])}{more}.")
