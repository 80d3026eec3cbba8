"""The folder of a run: its settings, tasks and machine on disk, and a lock for one process at a time."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from pydantic import with_config
from torch import Tensor
from typing_extensions import NotRequired, TypedDict

from .. import __version__, disk, store
from ..data.benchmarks.streams import load_stream
from ..data.prepare import DataCounts, fingerprint, prepare_data
from ..data.registry import split_file
from ..data.targets import TargetKind
from ..data.task import Task
from ..data.task_data import open_data
from ..documents import Count, read_document
from ..errors import ConfigError, StoreError
from ..learner import Learner
from ..learning.saved import SavedLearner, example_input
from ..seeds import task_seed, use_seed
from ..structure.calling import Inputs, map_tensors, select_rows
from .config import Config, find_differences, identify_settings
from .costs import Machine, describe_machine
from .events import EVENTS
from .methods import shorten_method

PACKAGES = ("torch", "numpy", "scipy", "lightning-fabric", "safetensors", "scikit-learn", "pillow")
PARTS = ("train", "valid", "test")
PROOFS = ("metrics.jsonl", "checkpoints", "model", "result.json")  # any of these shows that something was learned
_ENVIRONMENT = "environment.json"
FILES = {"config.json", "tasks.json", _ENVIRONMENT, "tensorboard", "log.txt", EVENTS, *PROOFS}


@with_config(extra="allow")
class TaskFacts(TypedDict):
    """A task in tasks.json: how many classes and examples it has, and fingerprints of its data."""

    classes: Count
    train: Count
    valid: Count
    test: Count
    data: dict[str, str | None]
    target_kind: NotRequired[TargetKind]  # classes, if it is missing


class Start(TypedDict):
    """One start of a run in environment.json."""

    time: str  # UTC, as in ISO 8601
    spacecl: str
    python: str
    packages: dict[str, str]  # versions
    machine: Machine
    device: str
    processes: int


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Keep other processes from working in a run's folder; the lock of a process that is killed is released."""
    busy = ConfigError(f"Another process is working in {folder}. Wait for it, or give another folder with --out.")
    with store.lock_folder(folder, 0, busy):
        disk.remove_leftovers(folder, "config.json", "tasks.json", "environment.json", "result.json", "checkpoints")
        yield


def check_same_settings(folder: Path, config: Config) -> None:
    """Refuse a folder that holds a run with other settings, or files of something else.

    A run that has not learned anything yet may be replaced.
    """
    file = folder / "config.json"
    if file.exists() and _has_begun(folder):
        before, now = (identify_settings(settings.to_json()) for settings in (Config.from_file(file), config))
        changes = find_differences(before, now)
        if changes:
            raise ConfigError(
                f"{folder} holds a run with other settings:\n{_format_bullets(changes)}\n"
                "Give another folder with --out, or resume the run with its own settings: spacecl run --resume --out ..."
            )
    others = [path.name for path in folder.iterdir() if path.name not in FILES and not path.name.startswith(".")]
    if others and not file.exists():
        raise ConfigError(
            f"{folder} is not empty and does not hold a run ({', '.join(sorted(others)[:3])}). Give another folder with --out."
        )


def _has_begun(folder: Path) -> bool:
    """Whether the run in a folder has learned anything."""
    return any((folder / name).exists() for name in PROOFS)


def describe_tasks(tasks: Sequence[Task], counts: Sequence[DataCounts]) -> dict[str, TaskFacts]:
    """The facts about every task by which a resumed run recognises its data."""
    return {
        task.name: {**count, "data": {part: _fingerprint(task, part) for part in PARTS}} for task, count in zip(tasks, counts)
    }


def _fingerprint(task: Task, part: str) -> str | None:
    return None if getattr(task, part) is None else fingerprint(open_data(task, part))


def check_same_data(folder: Path, facts: Mapping[str, TaskFacts]) -> None:
    """Refuse to resume a run with other data than it started with."""
    if _has_begun(folder) and (folder / "tasks.json").exists():
        before = read_document(folder / "tasks.json", dict[str, TaskFacts])
        changes = find_differences(before, json.loads(json.dumps(facts)))
        if changes:
            raise ConfigError(
                f"The data differ from those that the run in {folder} started with:\n{_format_bullets(changes)}\n"
                "Give another folder with --out, or the data that it had."
            )


def record_start(folder: Path, config: Config, facts: Mapping[str, TaskFacts], learner: Learner) -> None:
    """Write the settings and tasks of a new run, and the environment of this start.

    To be called when everything has been checked: a run that cannot start leaves no settings behind.
    """
    names = list(facts)[: len(learner.tasks)]
    if list(learner.tasks) != names:
        raise StoreError(f"{folder} has learned {', '.join(learner.tasks)}, but the tasks now start with {', '.join(names)}.")
    if not (_has_begun(folder) and (folder / "tasks.json").exists()):
        disk.write_file(folder / "tasks.json", json.dumps(facts, indent=1).encode())
        disk.write_file(folder / "config.json", json.dumps(config.to_json(), indent=1).encode())
    _record_environment(folder, learner)


def _format_bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"  - {line}" for line in lines)


def _record_environment(folder: Path, learner: Learner) -> None:
    """Add this start to environment.json: the time, the versions of packages, and the machine."""
    starts = _read_starts(folder)
    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    device = learner.fabric.device
    start: Start = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "spacecl": __version__,
        "python": platform.python_version(),
        "packages": packages,
        "machine": describe_machine(device),
        "device": str(device),
        "processes": learner.fabric.world_size,
    }
    disk.write_file(folder / _ENVIRONMENT, json.dumps([*starts, start], indent=1).encode())


def _read_starts(folder: Path) -> list[dict[str, Any]]:
    """All starts of a run; those of older versions may have other keys."""
    file = folder / _ENVIRONMENT
    return read_document(file, list[dict[str, Any]]) if file.exists() else []


def find_threads(folder: Path, processes: int) -> int | None:
    """The number of threads with which a run was started last in so many processes: with another, it would have other bits."""
    starts = _read_starts(folder) if _has_begun(folder) else []
    threads = [start.get("machine", {}).get("threads") for start in starts if start.get("processes", 1) == processes]
    return threads[-1] if threads else None


def format_interrupted(out: object) -> str:
    """The message for a user who has interrupted a command that writes to a folder."""
    return f"Interrupted. All finished epochs are saved in {out}. To resume, repeat the command."


def choose_folder(config: Config) -> Path:
    """The folder of a run for which the user names none."""
    method = shorten_method(config.method)
    return Path("runs") / f"{shorten_name(config.benchmark)}-{method}-{config.recipe}-seed{config.seed}"


def shorten_name(benchmark: str) -> str:
    """A benchmark's name; of one in a file the name after the colon, and for a path the last part without its ending."""
    benchmark = split_file(benchmark)[1] or benchmark
    return benchmark if "/" not in benchmark and os.sep not in benchmark else Path(benchmark).stem


def load_tasks(config: Config, data: str | os.PathLike[str] | None) -> tuple[list[Task], Inputs]:
    """Load the tasks that settings name, and an input of their shape, all zeros.

    With `eval_split="valid"` the test data of every task are its validation data. `data` is a folder with datasets.
    """
    tasks = load_stream(
        config.benchmark,
        data,
        tasks=config.tasks,
        limit=config.limit,
        order=config.order,
        seed=config.seed,
        image_size=config.image_size,
    )
    example = _make_example(tasks[0])
    if config.eval_split == "valid":
        tasks = [_replace_test(task, example, task_seed(config.seed, number)) for number, task in enumerate(tasks)]
    return tasks, example


def _replace_test(task: Task, example: Inputs, seed: int) -> Task:
    """The same task with its validation data, those that learning would set aside, in place of the test data."""
    train, valid, targets = prepare_data(task, example, torch.Generator().manual_seed(seed))
    classes = task.class_names or targets.outputs
    parts = {"train": train.source, "valid": valid.source, "test": valid.source}
    return replace(task, **parts, classes=classes, target=targets.kind, valid_transform=None)  # type: ignore[arg-type]


def make_data_absolute(data: str | None) -> str | None:
    """The folders with datasets that a user names, as a process with another working folder must know them."""
    return None if data is None else os.pathsep.join(str(Path(part).absolute()) for part in data.split(os.pathsep))


def _make_example(task: Task) -> Inputs:
    """An input of the shape and type that a task has, all zeros; whole numbers among several inputs are the first example's.

    A mask of zeros would hide everything.
    """
    data = open_data(task, "train")
    inputs = data.finish(select_rows(data.first(), slice(1)))

    def clear(x: Tensor) -> Tensor:
        if not x.is_floating_point() and not isinstance(inputs, Tensor):
            return x.clone()
        return torch.zeros_like(x, dtype=torch.get_default_dtype() if x.is_floating_point() else x.dtype)

    return map_tensors(clear, inputs)


def load_learner(folder: Path, config: Config, network: str | None = None, verify: bool = True) -> Learner:
    """Load the learner that is saved in a folder, with the network that the settings name, or `network` in its place."""
    from lightning_fabric import Fabric

    body, files = store.load(folder, SavedLearner)
    example = example_input(files, folder)
    if not body.tasks:
        raise StoreError(f"{folder} holds a learner that has not learned a task.")
    with use_seed(config.seed):
        model = replace(config, model=network or config.model).make_model(example, body.tasks[0].classes)
    fabric = Fabric(accelerator=config.device, devices=1)
    return Learner.load(folder, model, fabric=fabric, progress=False, verify=verify)


def is_run(file: Path) -> bool:
    """Whether a config.json is that of a run."""
    try:
        Config.from_file(file)
    except StoreError:
        return False
    except ConfigError:  # a run with values that this version does not know
        return True
    return True


def read_settings(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the settings that a folder's run started with, in the form that `resolve` takes."""
    file = Path(folder) / "config.json"
    if not file.exists():
        raise ConfigError(f"{folder} holds no run to resume: there is no config.json in it.")
    return {key: value for key, value in Config.from_file(file).to_json().items() if value is not None}


def refuse_code(folder: object, code: Sequence[str], instead: str = "name it yourself on the command line") -> None:
    """Raise an error if a folder names code: somebody else may have written it, so the user has to trust it explicitly.

    `instead` is what the user can do otherwise.
    """
    if code:
        raise ConfigError(
            f"{folder} names code that would be run: {', '.join(code)}. If you trust it, add --trust-code, or {instead}."
        )
