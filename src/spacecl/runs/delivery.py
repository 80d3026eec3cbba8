"""A run's networks as files: one task's or all, calibrated and measured where they become bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.images import preprocess
from ..data.pictures import decode_pictures, list_pictures
from ..data.task import Source, Task
from ..data.task_data import Data, prepare_data
from ..errors import ConfigError, DataError, SpaceError
from ..export.export import FORMATS, ExportInfo, file_names, open_session, write_index
from ..learner import Learner
from ..learning.record import TaskRecord
from ..seeds import task_seed
from .open_run import OpenRun

CALIBRATION = 500  # inputs at most: ranges settle long before
Entry = ExportInfo


def deliver(
    run: OpenRun,
    tasks: Sequence[str] | None,
    out: str | os.PathLike[str] | None = None,
    *,
    format: str = "onnx",
    fold: bool = True,
    calibrate: str | None = None,
    data: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = print,
) -> list[Entry]:
    """Export some tasks of a run, or with None all and an index.json of them, and return what there is to say of each.

    With `calibrate` networks become bytes; their accuracy is measured before and after where the run's data is at hand.
    """
    learner = run.learner()
    names = list(learner.tasks) if tasks is None else list(tasks)
    for name in names:
        learner.subnet(name)  # an unknown name is told before anything is written
    folder, files = _places(run, learner, names, out, format, single=tasks is not None)
    streams: dict[str, Task] = {}
    lost: SpaceError | None = None
    if calibrate is not None:
        try:
            streams = run.tasks(data)
        except SpaceError as error:
            lost = error
            if calibrate == "train":
                raise
    entries = []
    for name in names:
        inputs = None if calibrate is None else _calibration(calibrate, streams, learner, name)
        entry = learner.export(name, folder / files[name], format=format, fold=fold, int8=inputs)
        if inputs is not None:
            entry |= {"calibrated": len(inputs), "accuracy": None, "not_measured": str(lost) if lost else None}
        if name in streams:
            test: Source = streams[name].test  # type: ignore[assignment]
            before, after = learner.evaluate(test, name), accuracy(open_session(folder / files[name]), test)
            entry["accuracy"] = {"before": before, "after": after}
        entries.append(entry)
        say(f"{name}: {folder / files[name]}, {entry['bytes']:,} bytes")
    if tasks is None:
        say(f"{write_index(folder, entries)} lists them.")
    return entries


def _places(
    run: OpenRun, learner: Learner, names: Sequence[str], out: str | os.PathLike[str] | None, format: str, single: bool
) -> tuple[Path, dict[str, str]]:
    """The folder to write to, and a file name for each task; a single task may be given a file of its own name."""
    files = file_names(learner.tasks, format)
    path = run.folder / "export" if out is None else Path(out)
    if single and len(names) == 1 and path.suffix in FORMATS.values() and not path.is_dir():
        return path.parent, {names[0]: path.name}
    if not path.is_dir() and (path.exists() or path.suffix in FORMATS.values()):
        raise ConfigError(f"{path} is a file, but {len(names)} tasks are to be written. Give a folder with --out.")
    return path, files


def _calibration(given: str, streams: Mapping[str, Task], learner: Learner, task: str) -> Tensor:
    """Inputs to calibrate a task's network by: its own training data, a folder of pictures, or an array in a file."""
    if given == "train":
        seed = torch.Generator().manual_seed(task_seed(learner.seed, learner.tasks.index(task)))
        train, _, _ = prepare_data(streams[task], learner.example, seed)
        return train.finish(next(train.batches(CALIBRATION, torch.Generator().manual_seed(0)))[0])
    path, record = Path(given), learner.records[task]
    if path.is_dir():
        found = list_pictures(path)
        if not found:
            raise DataError(f"--calibrate {given}: the folder holds no pictures.")
        told = _told(record)
        return preprocess(told, decode_pictures(found[:CALIBRATION], told["pixels"]))
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        what = 'neither "train", a folder of pictures nor an array in .npy'
        raise DataError(f"--calibrate {given} is {what}: {error}") from error
    if not isinstance(array, np.ndarray) or not array.ndim or array.dtype.kind not in "fiu":
        raise DataError(f"--calibrate {given}: not one array of numbers, a row for each input.")
    if array.dtype == np.uint8:
        return preprocess(_told(record), np.ascontiguousarray(array[:CALIBRATION]))
    return torch.from_numpy(array[:CALIBRATION]).to(learner.example.dtype)


def _told(record: TaskRecord) -> Any:
    if record.pictures is None:
        raise DataError(
            f"Task {record.name!r} was not taught with spacecl.Images, so how pictures become its inputs is not known. "
            "Give the inputs themselves, as an array in a .npy file."
        )
    return record.pictures


def accuracy(network: Callable[[Tensor], Tensor], source: Source) -> float:
    """The share of labelled data that a network of whatever kind gets right."""
    data, right, seen = Data(source, "data"), 0, 0
    for x, y in data.batches(256):
        right += int((network(data.finish(x)).argmax(1) == y).sum())
        seen += len(y)
    return right / seen
