"""The folder of a run: settings, tasks and machine written down; whose run it is; one process at a time."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from pydantic import with_config
from torch import Tensor
from typing_extensions import TypedDict

from .. import __version__, disk, store
from ..data.benchmarks.streams import load_stream
from ..data.task import Task
from ..data.task_data import Data, fingerprint, prepare_data
from ..documents import Count, read_document
from ..errors import ConfigError, StoreError
from ..learner import Learner
from ..learning.saved import SavedLearner, example_input
from ..seeds import task_seed, use_seed
from .config import Config, find_differences
from .costs import machine

PACKAGES = ("torch", "numpy", "scipy", "lightning-fabric", "safetensors", "scikit-learn", "pillow")
PARTS = ("train", "valid", "test")
Row = dict[str, Any]


@with_config(extra="allow")
class TaskFacts(TypedDict):
    """What tasks.json says of a task: counts, and short marks of its data."""

    classes: Count
    train: Count
    valid: Count
    test: Count
    data: dict[str, str | None]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time; a killed one leaves nothing that would keep others out."""
    busy = ConfigError(f"Another process is at work in {folder}. Wait for it, or give another folder with --out.")
    with store.lock_folder(folder, 0, busy):
        disk.remove_leftovers(folder, "config.json", "tasks.json", "environment.json", "result.json", "checkpoints")
        yield


def compare(folder: Path, config: Config) -> None:
    """Compare the settings with those that the folder's run began with; one that never began counts for nothing."""
    file = folder / "config.json"
    if file.exists() and _begun(folder):
        changed = find_differences(Config.from_file(file).to_json(), config.to_json())
        if changed:
            raise ConfigError(
                f"{folder} holds a run with other settings:\n{_bullets(changed)}\n"
                "Give another folder with --out, or go on with its own settings: spacecl run --resume --out ..."
            )
    known = {
        "config.json",
        "tasks.json",
        "environment.json",
        "metrics.jsonl",
        "result.json",
        "model",
        "checkpoints",
        "tensorboard",
        "log.txt",
    }
    strange = [path.name for path in folder.iterdir() if path.name not in known and not path.name.startswith(".")]
    if strange and not file.exists():
        raise ConfigError(
            f"{folder} is not empty and holds no run ({', '.join(sorted(strange)[:3])}). Give another with --out."
        )


def _begun(folder: Path) -> bool:
    """Whether anything in a run's folder was learned."""
    return any((folder / name).exists() for name in ("metrics.jsonl", "checkpoints", "model", "result.json"))


def begin(folder: Path, config: Config, learner: Learner, tasks: Sequence[Task], counts: Sequence[Row]) -> None:
    """When all is known to fit: write settings and tasks down, or compare the tasks with those that the run began with."""
    known = [task.name for task in tasks[: len(learner.tasks)]]
    if list(learner.tasks) != known:
        raise StoreError(f"{folder} has learned {', '.join(learner.tasks)}, but the tasks now begin with {', '.join(known)}.")
    found = {
        task.name: {**count, "data": {p: fingerprint(getattr(task, p)) for p in PARTS}} for task, count in zip(tasks, counts)
    }
    if _begun(folder) and (folder / "tasks.json").exists():
        before = read_document(folder / "tasks.json", dict[str, TaskFacts])
        changed = find_differences(before, json.loads(json.dumps(found)))
        if changed:
            raise ConfigError(
                f"The data are not those that the run in {folder} began with:\n{_bullets(changed)}\n"
                "Give another folder with --out, or the data that it had."
            )
    else:
        disk.write_file(folder / "tasks.json", json.dumps(found, indent=1).encode())
        disk.write_file(folder / "config.json", json.dumps(config.to_json(), indent=1).encode())
    _note_start(folder, learner)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"  - {line}" for line in lines)


def _note_start(folder: Path, learner: Learner) -> None:
    """Add this start to environment.json: when, with which packages, on what machine."""
    file = folder / "environment.json"
    starts = read_document(file, list[dict[str, Any]]) if file.exists() else []
    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    device = learner.fabric.device
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    start: dict[str, Any] = {"time": now, "spacecl": __version__, "python": platform.python_version(), "packages": packages}
    start["machine"] = machine(device)
    disk.write_file(file, json.dumps([*starts, start | {"device": str(device)}], indent=1).encode())


def interrupted(out: object) -> str:
    return f"Interrupted. Everything up to the last finished epoch is in {out}; the same command goes on from there."


def folder_for(config: Config) -> Path:
    """Where a run goes when no folder is named."""
    return Path("runs") / f"{short_name(config.benchmark)}-{config.method}-{config.recipe}-seed{config.seed}"


def short_name(benchmark: str) -> str:
    return benchmark if "/" not in benchmark and os.sep not in benchmark else Path(benchmark).stem


def tasks_of(config: Config, data: str | os.PathLike[str] | None) -> tuple[list[Task], Tensor]:
    """The tasks that settings speak of, each with what is to be measured on, and an input of the shape that they have."""
    tasks = load_stream(
        config.benchmark,
        data,
        tasks=config.tasks,
        limit=config.limit,
        order=config.order,
        seed=config.seed,
        image_size=config.image_size,
    )
    example = _example(tasks[0])
    if config.eval_split == "valid":
        tasks = [_without_test(task, example, task_seed(config.seed, number)) for number, task in enumerate(tasks)]
    return tasks, example


def _without_test(task: Task, example: Tensor, seed: int) -> Task:
    """The same task with its validation data, those that learning would set aside, in place of the test data."""
    train, valid, classes = prepare_data(task, example, torch.Generator().manual_seed(seed))
    return Task(task.name, train.source, valid.source, task.class_names or classes, test=valid.source)


def _example(task: Task) -> Tensor:
    """An input of the shape that the first task has, all zeros."""
    data = Data(task.train, f"Task {task.name!r}, train")
    x = data.finish(data.first()[:1])
    return torch.zeros_like(x, dtype=torch.get_default_dtype() if x.is_floating_point() else x.dtype)


def learner_in(folder: Path, config: Config, network: str | None = None, verify: bool = True) -> Learner:
    """The learner that is saved in a folder, with the network that settings name, or that the user does."""
    from lightning_fabric import Fabric

    body, files = store.load(folder, SavedLearner)
    shape = tuple(example_input(files, folder).shape[1:])
    if not body.tasks:
        raise StoreError(f"{folder} holds a learner that has not learned a task.")
    with use_seed(config.seed):
        model = replace(config, model=network or config.model).make_model(shape, body.tasks[0].classes)
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


def settings_in(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings that a folder's run began with."""
    file = Path(folder) / "config.json"
    if not file.exists():
        raise ConfigError(f"{folder} holds no run to resume: there is no config.json in it.")
    return {key: value for key, value in Config.from_file(file).to_json().items() if value is not None}


def refuse_code(folder: object, code: Sequence[str]) -> None:
    """Code that a folder names is somebody's: it is run only if the user says so."""
    if code:
        raise ConfigError(
            f"{folder} names code that would be run: {', '.join(code)}. If you trust it, say so with --trust-code"
            f"{', or name the network yourself with --model FILE.py:function' if len(code) == 1 else ''}."
        )
