"""What a learner has committed, as JSON and sets of tensors, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ..documents import RESTORE
from ..errors import DataError, SpaceError, StoreError
from ..inference.task_inference import find_signature_problems
from ..structure.blueprint import named_tensors
from ..structure.channels import Tensors
from .checkpoints import select_prefix
from .core import Core
from .record import Picture, TaskRecord


@dataclass(frozen=True)
class UsedMethod:
    """The method that a learner was taught by."""

    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class SavedLearner:
    """What a saved learner's manifest says beside the files of tensors."""

    method: UsedMethod
    seed: Annotated[int, Field(ge=0, lt=2**40)]
    torch: str  # the version that traced the model
    head: str
    shared: tuple[str, ...]
    units: tuple[Annotated[int, Field(ge=1, lt=2**31)], ...]  # of every group
    fingerprint: str
    operations: tuple[str, ...]
    tensors: dict[str, str]  # of the model: type and shape in words
    tasks: tuple[TaskRecord, ...]

    def __post_init__(self) -> None:
        names = [record.name for record in self.tasks]
        if len(set(names)) < len(names):
            raise DataError(f"a task's name is there twice in {names}.")


Saved = tuple[dict[str, Any], dict[str, Tensors]]


def to_files(core: Core, records: Iterable[TaskRecord]) -> Saved:
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
    needed = given.keys() - (blueprint.redrawn_names() if core.own else set())  # what later tasks begin with
    common = {f"core.{name}": tensor for name, tensor in core.tensors.items()}
    common |= {f"given.{name}": given[name] for name in needed}
    common |= {f"taken.{name}": tensor for name, tensor in core.taken.items()}
    common |= {f"memory.{name}": tensor for name, tensor in core.memory.items()}
    common |= {f"keep.{number}": keep for number, keep in enumerate(core.keeps)}
    for number, signed in enumerate(core.signatures):
        common |= {f"signature.{number}.{name}": tensor for name, tensor in signed.items()}
    own = {f"task {number}": tensors for number, tensors in enumerate(core.own)}
    return body, {"core": common | {"example": blueprint.example}, **own}


def from_files(
    core: Core, body: SavedLearner, files: Mapping[str, Tensors], folder: object
) -> tuple[Core, dict[str, TaskRecord]]:
    """What a saved learner had committed, in the network that `core` has; not verified yet.

    Every tensor is compared with what the model and the records ask for before anything of its size is made.
    """
    sizes, units = [len(group.units) for group in core.channels.groups], list(body.units)
    if len(sizes) == len(units) and any(now > then for now, then in zip(sizes, units)):
        raise StoreError(f"{folder} was saved from a network with fewer channels than this one has. Load it anew.")
    tensors = _file(files, "core", folder)
    count, keeps = len(body.tasks), select_prefix(tensors, "keep")
    wrong = [f"{name} is missing" for name in core.tensors if f"core.{name}" not in tensors]
    wrong += [f"keep.{n} is missing" for n in range(count) if str(n) not in keeps]
    for name, keep in keeps.items():
        wrong += _misfit(f"keep.{name}", keep, torch.bool, (sum(units),))
    _refuse(wrong, folder)
    if sizes != units and len(sizes) == len(units):  # it had grown
        try:
            core = core.resized(units, {name: tensors[f"core.{name}"].shape for name in core.tensors})
        except SpaceError as error:
            raise StoreError(f"{folder} is damaged: {error} {RESTORE}") from error
    same = core.channels.operations == body.operations or torch.__version__ != body.torch
    if core.channels.fingerprint() != body.fingerprint or not same:
        raise StoreError(
            f"{folder} was saved from another architecture: the tensors are the same, but forward() is not"
            f" (saved with torch {body.torch}, this is {torch.__version__}). Build the model as it was."
        )
    common = {name: tensors[f"core.{name}"] for name in core.tensors}
    own = tuple(_file(files, f"task {number}", folder) for number in range(count))
    taken, memory = select_prefix(tensors, "taken"), select_prefix(tensors, "memory")
    signed = tuple(select_prefix(tensors, f"signature.{number}") for number in range(count))
    found = replace(
        core,
        tensors=common,
        keeps=tuple(keeps[str(number)] for number in range(count)),
        own=own,
        taken=taken,
        memory=memory,
        signatures=signed,
    )
    _refuse(_misfits(found, body.tasks), folder)
    return found, {record.name: record for record in body.tasks}


def given_tensors(files: Mapping[str, Tensors], model: nn.Module, folder: object) -> Tensors:
    """The tensors that the model began with, as far as they are still needed."""
    given, shapes = select_prefix(_file(files, "core", folder), "given"), named_tensors(model)
    wrong = [f"given.{name} belongs to no tensor of the model" for name in given if name not in shapes]
    for name, tensor in given.items():
        wrong += _misfit(f"given.{name}", tensor, shapes[name].dtype, shapes[name].shape) if name in shapes else []
    _refuse(wrong, folder)
    return given


def example_input(files: Mapping[str, Tensors], folder: object) -> Tensor:
    """The input that the model was traced with."""
    example = _file(files, "core", folder).get("example")
    if example is None or example.dim() < 2 or len(example) != 1 or not example.numel():
        raise StoreError(f"{folder} is damaged: there is no example input in it. {RESTORE}")
    return example


def _misfits(core: Core, records: Sequence[TaskRecord]) -> list[str]:
    """What of some tensors does not fit the model, the units that tasks keep, or their records, in words."""
    given, shapes, channels = core.blueprint.tensors(), core.channels.shapes, core.channels
    wrong = []
    for name, tensor in core.tensors.items():
        wrong += _misfit(f"core.{name}", tensor, given[name].dtype, shapes[name])
    for name, tensor in core.taken.items():
        wrong += [f"taken.{name} belongs to no weight"] if name not in core.tensors else []
        wrong += _misfit(f"taken.{name}", tensor, torch.uint8, shapes.get(name, ()))
    for name, tensor in core.memory.items():
        for weight in (name, name.partition(".")[2]):  # EWC keeps two of each
            wrong += _misfit(f"memory.{name}", tensor, tensor.dtype, shapes[weight]) if weight in shapes else []
    for number, (keep, own, record) in enumerate(zip(core.keeps, core.own, records)):
        where = f"task {number}"
        lost = channels.private - own.keys()
        odd = own.keys() - channels.private - core.tensors.keys()
        wrong += [f"{where} lacks {', '.join(sorted(lost))}"] if lost else []
        wrong += [f"{where} has {', '.join(sorted(odd))}, which the model has not"] if odd else []
        for name in own.keys() - odd:
            expected = tuple(int(size) for size in channels.narrowed_shape(name, keep))
            expected = (record.classes, *expected[1:]) if channels.is_head(name) else expected
            wrong += _misfit(f"{where}, {name}", own[name], given[name].dtype, expected)
        wrong += [f"{where}: {text}" for text in find_signature_problems(core.signatures[number], core.blueprint.example)]
        wrong += [f"{where}: {text}" for text in _misfits_of_picture(record.pictures, core.blueprint.example)]
    return wrong


def _misfits_of_picture(picture: Picture | None, example: Tensor) -> list[str]:
    """Whether pictures made inputs in this way are of the shape that the model reads."""
    if picture is None:
        return []
    channels, high, wide = picture["pixels"]
    shape = tuple(picture["shape"] or picture["pixels"])
    order = picture["order"]
    fits = channels in (1, shape[0]) and high <= shape[1] and wide <= shape[2] and min(channels, high, wide) >= 1
    made = shape if order is None else (len(order),)
    scaled = all(
        len(values) in (1, channels) and all(map(math.isfinite, values)) for values in (picture["mean"], picture["std"])
    )
    permuted = order is None or (len(order) == math.prod(shape) and sorted(order) == list(range(len(order))))
    if fits and scaled and all(picture["std"]) and made == tuple(example.shape[1:]) and permuted:
        return []
    return [f"pictures of {picture['pixels']} do not become inputs of {list(example.shape[1:])}"]


def _misfit(name: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> list[str]:
    if tensor.dtype == dtype and tuple(tensor.shape) == tuple(shape):
        return []
    return [f"{name} is {_in_words(tensor.dtype, tensor.shape)} instead of {_in_words(dtype, shape)}"]


def _file(files: Mapping[str, Tensors], name: str, folder: object) -> Tensors:
    if name not in files:
        raise StoreError(f"{folder} is damaged: its manifest lists no tensors of {name!r}. {RESTORE}")
    return files[name]


def _refuse(wrong: Sequence[str], folder: object) -> None:
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise StoreError(f"{folder} is damaged: {'; '.join(wrong[:5])}{more}. {RESTORE}")


def _in_words(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _described(model: nn.Module) -> dict[str, str]:
    """Every tensor of a model as text, such as `float32 [8, 3, 3, 3]`."""
    return {name: _in_words(tensor.dtype, tensor.shape) for name, tensor in named_tensors(model).items()}


def compare_tensors(saved: Mapping[str, str], model: nn.Module, folder: object) -> None:
    given = _described(model)
    wrong = [f"{n} is {saved[n]} there and {given[n]} here" for n in saved.keys() & given.keys() if saved[n] != given[n]]
    wrong += [f"{name} is missing here" for name in saved.keys() - given.keys()]
    wrong += [f"{name} is missing there" for name in given.keys() - saved.keys()]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise StoreError(f"{folder} was saved from another architecture: {'; '.join(sorted(wrong)[:5])}{more}.")
