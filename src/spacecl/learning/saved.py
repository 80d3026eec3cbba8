"""A learner's tasks as JSON and sets of tensors, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ..data.images import Preprocessing
from ..data.targets import Scaling
from ..documents import RESTORE, Json, encode_json
from ..errors import DataError, SpaceError, StoreError
from ..inference.task_inference import find_signature_problems
from ..store import TensorFile
from ..structure.blueprint import rebuild
from ..structure.calling import Inputs, list_tensors
from ..structure.owners import RULES
from ..structure.tensors import Tensors, named_tensors
from .checkpoints import select_prefix
from .core import Core
from .growth import resize
from .ownership import CommittedTask, Ownership, SubnetOwnership, UnitOwnership, WeightOwnership
from .record import TaskRecord

ABOUT = "."  # the names of what is stored of a task beside its private tensors begin with it, as no name of theirs can


@dataclass(frozen=True)
class SavedMethod:
    """The method that a learner uses, with its options."""

    name: Annotated[str, Field(pattern=r"^\w+$")]  # of its class
    options: dict[str, Any]
    forgets: bool | None = None  # whether learning changes earlier tasks; version 0.1 did not say


@dataclass(frozen=True)
class SavedLearner:
    """What a saved learner's manifest says beside the files of tensors."""

    method: SavedMethod
    seed: Annotated[int, Field(ge=0, lt=2**40)]
    torch: str  # the version that traced the model
    head: str
    shared: tuple[str, ...]
    units: tuple[Annotated[int, Field(ge=1, lt=2**31)], ...]  # of every group
    fingerprint: str
    operations: tuple[str, ...]
    tensors: dict[str, str]  # of the model: type and shape in words
    tasks: tuple[TaskRecord, ...]
    pretrained: bool = False  # whether the model was trained before it was given
    given: bool = False  # whether free positions of weights have the values that the model was given with
    rules: Annotated[int, Field(ge=1, le=RULES)] = 1  # the version of the rules by which channels were found

    def __post_init__(self) -> None:
        names = [record.name for record in self.tasks]
        if len(set(names)) < len(names):
            raise DataError(f"two tasks have the same name in {names}.")


@dataclass(frozen=True, eq=False)
class SavedTask:
    """A task as a saved learner has it. It is made once: what a task is never changes, and saving it again costs nothing."""

    task: CommittedTask
    record: TaskRecord
    file: TensorFile
    text: Json  # the record

    @staticmethod
    def of(task: CommittedTask, record: TaskRecord) -> SavedTask:
        about = {"units": task.units} | {f"signature.{name}": tensor for name, tensor in task.signature.items()}
        if task.scaling is not None:
            about |= {"scaling.mean": task.scaling.mean, "scaling.scale": task.scaling.scale}
        tensors = {**task.private, **{f"{ABOUT}{name}": tensor for name, tensor in about.items()}}
        return SavedTask(task, record, TensorFile(tensors), encode_json(record.to_json()))


def to_files(
    core: Core, records: Mapping[str, TaskRecord], known: dict[str, SavedTask]
) -> tuple[dict[str, Any], dict[str, Tensors | TensorFile]]:
    """A core and the records of its tasks: a body for the manifest, and one set of shared and one of each task's tensors.

    `known` has tasks that were saved before, by their names; those that it lacks are added.
    """
    blueprint = core.blueprint
    tasks = []
    for task, record in zip(core.tasks, records.values()):
        saved = known.get(record.name)
        if saved is None or saved.task is not task or saved.record is not record:
            saved = known[record.name] = SavedTask.of(task, record)
        tasks.append(saved)
    body = {
        "torch": torch.__version__,
        "head": blueprint.head,
        "shared": list(blueprint.shared),
        "units": [len(group.units) for group in core.channels.groups],
        "fingerprint": core.channels.fingerprint(),
        "rules": core.blueprint.rules,
        "operations": list(core.channels.operations),
        "tensors": _describe_tensors(blueprint.module),
        "tasks": [saved.text for saved in tasks],
        "pretrained": blueprint.pretrained,
        "given": bool(blueprint.known_units.any()) and not blueprint.pretrained,
    }
    initial = blueprint.tensors()
    weights = core.shared | (_add_given_values(core) if body["given"] else {})
    shared = {f"core.{name}": tensor for name, tensor in weights.items()}
    given = initial.keys() if blueprint.pretrained else core.channels.private  # of the former, later tasks need everything
    shared |= {f"given.{name}": initial[name] for name in given - core.channels.heads}
    shared |= core.ownership.masks
    shared |= {f"memory.{name}": tensor for name, tensor in core.memory.items()}
    files = {f"task {number}": saved.file for number, saved in enumerate(tasks)}
    return body, {"core": shared | _name_example(blueprint.example), **files}


def _add_given_values(core: Core) -> Tensors:
    """The shared weights, with the values that later tasks begin with in place of the zeros at free positions."""
    channels, blueprint = core.channels, core.blueprint
    given = {name: tensor for name, tensor in blueprint.tensors().items() if name in _partly_free(core)}
    given = channels.scatter(given, blueprint.known_units, {name: core.shared[name] for name in given})
    return {name: torch.where(core.used_positions(name), core.shared[name], tensor) for name, tensor in given.items()}


def _restore_given_values(core: Core) -> Core:
    """A core whose shared weights were read from a file: zeros at free positions again, the values there in the blueprint."""
    channels, blueprint = core.channels, core.blueprint
    stored = {name: core.shared[name] for name in _partly_free(core)}
    module = rebuild(blueprint.module, channels.gather(stored, blueprint.known_units))
    module.eval()
    shared = {name: torch.where(core.used_positions(name), tensor, torch.zeros_like(tensor)) for name, tensor in stored.items()}
    return replace(core, blueprint=replace(blueprint, module=module), shared=core.shared | shared)


def _partly_free(core: Core) -> list[str]:
    """Names of the weights that later tasks may take positions of; tasks that have weights of their own leave none."""
    own = set().union(*(task.private for task in core.tasks))
    return [name for name in core.shared if name not in own]


def from_files(
    core: Core, body: SavedLearner, files: Mapping[str, Tensors], folder: object
) -> tuple[Core, dict[str, TaskRecord]]:
    """The tasks of a saved learner, in the network that `core` has; their digests are not verified yet.

    Every tensor is compared with the model and the records before anything of its size is made.
    """
    sizes, units = [len(group.units) for group in core.channels.groups], list(body.units)
    if len(sizes) == len(units) and any(now > then for now, then in zip(sizes, units)):
        raise StoreError(f"{folder} was saved from a network with fewer channels than this one. Use Learner.load.")
    tensors = _get_file(files, "core", folder)
    parts = _split_tasks(files, len(body.tasks), folder)
    problems = [f"{name} is missing" for name in core.shared if f"core.{name}" not in tensors]
    for order, (_, about) in enumerate(parts):
        if "units" in about:
            problems += _compare(f"task {order}, units", about["units"], torch.bool, (sum(units),))
        else:
            problems.append(f"task {order} lacks its units")
    _refuse(problems, folder)
    if sizes != units and len(sizes) == len(units):  # the network had grown
        try:
            core = resize(core, units, {name: tensors[f"core.{name}"].shape for name in core.shared})
        except SpaceError as error:
            raise StoreError(f"{folder} is damaged: {error} {RESTORE}") from error
    same_operations = core.channels.operations == body.operations or torch.__version__ != body.torch
    if core.channels.fingerprint() != body.fingerprint or not same_operations:
        raise StoreError(
            f"{folder} was saved from another architecture: the tensors are the same, but forward() is not"
            f" (saved with torch {body.torch}, this is {torch.__version__}). Build the model as it was."
        )
    tasks = [
        CommittedTask(
            units=about["units"],
            private=private,
            signature=select_prefix(about, "signature"),
            scaling=_read_scaling(select_prefix(about, "scaling"), record, folder),
        )
        for (private, about), record in zip(parts, body.tasks)
    ]
    core = replace(
        core,
        shared={name: tensors[f"core.{name}"] for name in core.shared},
        tasks=tuple(tasks),
        ownership=_read_ownership(tensors),
        memory=select_prefix(tensors, "memory"),
    )
    _refuse(_find_problems(core, body.tasks), folder)
    core = replace(core, blueprint=replace(core.blueprint, pretrained=body.pretrained))
    if body.given:
        core = _restore_given_values(core)
    elif core.tasks and not body.pretrained:  # version 0.1 did not save these values: free channels are newly drawn
        core = replace(core, blueprint=replace(core.blueprint, given_units=torch.zeros_like(core.committed_units)))
    return core, {record.name: record for record in body.tasks}


def _read_ownership(tensors: Tensors) -> Ownership:
    """What tasks own, as the names of the masks say."""
    owners, selected = select_prefix(tensors, "taken"), select_prefix(tensors, "selected")
    if selected:
        return SubnetOwnership(selected)
    return WeightOwnership(owners) if owners else UnitOwnership()


def _split_tasks(files: Mapping[str, Tensors], count: int, folder: object) -> list[tuple[Tensors, Tensors]]:
    """For every task, its private tensors, and by shorter names what else is stored of it: units, signature and scaling."""
    former: dict[str, Tensors] = {}  # in format 2, the core's file had the latter
    for key, tensor in _get_file(files, "core", folder).items():
        what, _, rest = key.partition(".")
        owner, _, name = rest.partition(".")
        if what == "keep":
            former.setdefault(rest, {})["units"] = tensor
        elif what in ("signature", "scaling"):
            former.setdefault(owner, {})[f"{what}.{name}"] = tensor
    parts = []
    for number in range(count):
        private, about = {}, dict(former.get(str(number), {}))
        for name, tensor in _get_file(files, f"task {number}", folder).items():
            if name.startswith(ABOUT):
                about[name.removeprefix(ABOUT)] = tensor
            else:
                private[name] = tensor
        parts.append((private, about))
    return parts


def _read_scaling(tensors: Tensors, record: TaskRecord, folder: object) -> Scaling | None:
    """The mean and scale of a task's values; None if it predicts something else."""
    if record.target_kind != "values" and not tensors:
        return None
    where, problems = f"scaling of task {record.name!r}", []
    for name in ("mean", "scale"):
        tensor = tensors.get(name, torch.zeros(0))
        problems += _compare(f"{where}, {name}", tensor, torch.float64, (record.classes,))
        problems += [] if bool(torch.isfinite(tensor).all()) else [f"{where}, {name} is not finite"]
    _refuse(problems, folder)
    return Scaling(tensors["mean"], tensors["scale"])


def initial_tensors(files: Mapping[str, Tensors], model: nn.Module, folder: object) -> Tensors:
    """The tensors that the model began with, as far as later tasks need them."""
    initial, expected = select_prefix(_get_file(files, "core", folder), "given"), named_tensors(model)
    problems = [f"given.{name} does not belong to the model" for name in initial if name not in expected]
    for name, tensor in initial.items():
        if name in expected:
            problems += _compare(f"given.{name}", tensor, expected[name].dtype, expected[name].shape)
    _refuse(problems, folder)
    return initial


def _name_example(example: Inputs) -> Tensors:
    """The tensors of an example input by their names in the file: a number for each of a tuple, and a name of a dictionary."""
    if isinstance(example, Tensor):
        return {"example": example}
    several = example.items() if isinstance(example, Mapping) else enumerate(example)
    return {f"example.{name}": tensor for name, tensor in several}


def example_input(files: Mapping[str, Tensors], folder: object) -> Inputs:
    """The input that the model was traced with."""
    tensors = _get_file(files, "core", folder)
    example: Inputs = tensors["example"] if "example" in tensors else select_prefix(tensors, "example")
    if isinstance(example, Mapping) and set(example) == {str(number) for number in range(len(example))}:
        example = tuple(example[str(number)] for number in range(len(example)))
    several = not isinstance(example, Tensor)
    parts = list_tensors(example)
    if not parts or any(part.dim() < 2 - several or len(part) != 1 or not part.numel() for part in parts):
        raise StoreError(f"{folder} is damaged: it has no example input. {RESTORE}")
    return example


def compare_tensors(saved: Mapping[str, str], model: nn.Module, folder: object) -> None:
    """Raise StoreError if the tensors of a saved learner, as text, are not those of a model."""
    here = _describe_tensors(model)
    problems = [f"{n} is {saved[n]} there and {here[n]} here" for n in saved.keys() & here.keys() if saved[n] != here[n]]
    problems += [f"{name} is missing here" for name in saved.keys() - here.keys()]
    problems += [f"{name} is missing there" for name in here.keys() - saved.keys()]
    if problems:
        raise StoreError(f"{folder} was saved from another architecture: {_shorten(sorted(problems))}.")


def _find_problems(core: Core, records: Sequence[TaskRecord]) -> list[str]:
    """Tensors that do not fit the model, the units of their task or its record, in words."""
    initial, shapes, channels = core.blueprint.tensors(), core.channels.shapes, core.channels
    problems = []
    for name, tensor in core.shared.items():
        problems += _compare(f"core.{name}", tensor, initial[name].dtype, shapes[name])
    masks = core.ownership.masks
    mask_shapes = core.ownership.mask_shapes({name: shapes[name] for name in core.shared}, len(core.tasks))
    for name, tensor in masks.items():
        problems += [f"{name} belongs to no weight"] if name not in mask_shapes else []
        problems += _compare(name, tensor, torch.uint8, mask_shapes.get(name, ()))
    problems += [f"{name} is missing" for name in mask_shapes if name not in masks]
    for name, tensor in core.memory.items():
        for weight in (name, name.partition(".")[2]):  # EWC stores two of each
            problems += _compare(f"memory.{name}", tensor, tensor.dtype, shapes[weight]) if weight in shapes else []
    for number, (task, record) in enumerate(zip(core.tasks, records)):
        where = f"task {number}"
        missing = channels.private - task.private.keys()
        unknown = task.private.keys() - channels.private - core.shared.keys()
        problems += [f"{where} lacks {', '.join(sorted(missing))}"] if missing else []
        problems += [f"{where} has {', '.join(sorted(unknown))}, which the model does not have"] if unknown else []
        for name in task.private.keys() - unknown:
            expected = tuple(int(size) for size in channels.narrowed_shape(name, task.units))
            expected = (record.classes, *expected[1:]) if channels.is_head(name) else expected
            problems += _compare(f"{where}, {name}", task.private[name], initial[name].dtype, expected)
        problems += [f"{where}: {text}" for text in find_signature_problems(task.signature, core.blueprint.example)]
        problems += [f"{where}: {text}" for text in _find_picture_problems(record.pictures, core.blueprint.example)]
    return problems


def _find_picture_problems(preprocessing: Preprocessing | None, example: Inputs) -> list[str]:
    """Why pictures that are preprocessed in this way do not have the shape of the model's inputs, in words."""
    if preprocessing is None:
        return []
    channels, high, wide = preprocessing["pixels"]
    shape = tuple(preprocessing["shape"] or preprocessing["pixels"])
    order = preprocessing["order"]
    fits = channels in (1, shape[0]) and high <= shape[1] and wide <= shape[2] and min(channels, high, wide) >= 1
    result = shape if order is None else (len(order),)
    scaled = all(
        len(values) in (1, channels) and all(map(math.isfinite, values))
        for values in (preprocessing["mean"], preprocessing["std"])
    )
    permuted = order is None or (len(order) == math.prod(shape) and sorted(order) == list(range(len(order))))
    expected = [tuple(tensor.shape[1:]) for tensor in list_tensors(example)]
    if fits and scaled and all(preprocessing["std"]) and [result] == expected and permuted:
        return []
    return [f"pictures of {preprocessing['pixels']} do not become inputs of {', '.join(str(list(size)) for size in expected)}"]


def _compare(name: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> list[str]:
    if tensor.dtype == dtype and tuple(tensor.shape) == tuple(shape):
        return []
    return [f"{name} is {_describe(tensor.dtype, tensor.shape)} instead of {_describe(dtype, shape)}"]


def _get_file(files: Mapping[str, Tensors], name: str, folder: object) -> Tensors:
    if name not in files:
        raise StoreError(f"{folder} is damaged: its manifest lists no tensors of {name!r}. {RESTORE}")
    return files[name]


def _refuse(problems: Sequence[str], folder: object) -> None:
    if problems:
        raise StoreError(f"{folder} is damaged: {_shorten(problems)}. {RESTORE}")


def _shorten(problems: Sequence[str]) -> str:
    more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
    return f"{'; '.join(problems[:5])}{more}"


def _describe(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _describe_tensors(model: nn.Module) -> dict[str, str]:
    """Every tensor of a model as text, such as `float32 [8, 3, 3, 3]`."""
    return {name: _describe(tensor.dtype, tensor.shape) for name, tensor in named_tensors(model).items()}
