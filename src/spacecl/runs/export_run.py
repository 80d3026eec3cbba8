"""Export the networks of a run as files: one task or all, calibrated and tested where weights become bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.images import Preprocessing, preprocess
from ..data.pictures import decode_pictures, list_pictures
from ..data.prepare import prepare_data
from ..data.targets import Targets
from ..data.task import Source, Task
from ..data.task_data import Data, open_data
from ..errors import ConfigError, DataError, SpaceError
from ..export.export import FORMATS, ExportInfo, file_names, open_session, write_index
from ..export.together import TogetherInfo
from ..learner import Learner
from ..learning.objective import Objective
from ..learning.record import TaskRecord
from ..seeds import task_seed
from ..structure.calling import Inputs, count_rows
from .open_run import OpenRun

CALIBRATION = 500  # inputs at most: ranges settle long before


def export_run(
    run: OpenRun,
    tasks: Sequence[str] | None,
    out: str | os.PathLike[str] | None = None,
    *,
    format: str = "onnx",
    fold: bool = True,
    calibrate: str | None = None,
    data: str | os.PathLike[str] | None = None,
    pad: int = 1,
    tune: bool = False,
    print_line: Callable[[str], None] = print,
) -> list[ExportInfo]:
    """Export the networks of some tasks, or with `tasks=None` of all, with an index.json that lists them.

    With `calibrate` the weights and activations of ONNX files become bytes, with ranges found on these inputs: "train", a
    folder of pictures or an array in a .npy file. The test score is then measured before and after, if there is data.
    `pad` and `tune` are those of `Learner.export`.
    `out` is a folder or, for a single task, a file; default: `export` in the run's folder.
    """
    learner = run.learner()
    names = list(learner.tasks) if tasks is None else list(tasks)
    for name in names:
        learner.subnet(name)  # an unknown name is an error before anything is written
    folder, files = _choose_files(run, learner, names, out, format, single=tasks is not None)
    streams: dict[str, Task] = {}
    problem: SpaceError | None = None
    if calibrate is not None:
        try:
            streams = run.tasks(data)
        except SpaceError as error:
            problem = error
            if calibrate == "train":
                raise
    entries = []
    for name in names:
        inputs = None if calibrate is None else _load_calibration(calibrate, streams, learner, name)
        entry = learner.export(name, folder / files[name], format=format, fold=fold, int8=inputs, pad=pad, tune=tune)
        if inputs is not None:
            entry |= {"calibrated": count_rows(inputs), "metric": learner.records[name].metric, "score": None, "accuracy": None}
            entry["not_measured"] = str(problem) if problem else None
        if name in streams:
            stream, session, record = streams[name], open_session(folder / files[name]), learner.records[name]
            objective = Objective(Targets(record.target_kind, record.classes, record.flat), own_metric=stream.metric)
            test: Source = stream.test  # type: ignore[assignment]
            before = learner.evaluate(test, name, metric=stream.metric, keys=stream.keys, collate=stream.collate)
            after = evaluate_file(session, open_data(stream, "test"), objective)
            entry["score"] = {"before": before, "after": after}
            entry["accuracy"] = entry["score"] if objective.is_accuracy else None
        entries.append(entry)
        print_line(f"{name}: {folder / files[name]}, {entry['bytes']:,} bytes")
        for line in describe_tuning(entry):
            print_line(line)
    if tasks is None:
        print_line(f"{write_index(folder, entries)} lists them.")
    return entries


def export_run_together(
    run: OpenRun,
    tasks: Sequence[str] | None,
    out: str | os.PathLike[str] | None = None,
    print_line: Callable[[str], None] = print,
) -> TogetherInfo:
    """Export the networks of some tasks, or with `tasks=None` of all, as one ONNX file; default: `export/tasks.onnx`.

    `out` is the file, or a folder for it.
    """
    path = run.folder / "export" if out is None else Path(out)
    file = path if path.suffix == FORMATS["onnx"] and not path.is_dir() else path / f"tasks{FORMATS['onnx']}"
    info = run.learner().export_together(file, tasks)
    shared = f"{info['shared_bytes']:,} of them in weights that tasks share"
    print_line(f"{len(info['tasks'])} tasks: {file}, {info['bytes']:,} bytes, {shared}")
    return info


def describe_tuning(entry: ExportInfo) -> list[str]:
    """What was measured to choose a file's padding, as lines of a table."""
    lines = []
    for number, row in enumerate(entry.get("tuned", [])):
        what = "dense network" if row["pad"] is None else "not padded" if row["pad"] == 1 else f"padded to {row['pad']}"
        kept = "  <- kept" if number == 0 else ""
        lines.append(f"  {what:<14} {row['bytes']:>12,} bytes  {row['ms']:>8.3f} ms  {row['of_dense']:>6.2f} of dense{kept}")
    if lines and entry["tuned"][0]["of_dense"] > 1:
        lines.append("  The dense network is faster here than every file of this task.")
    return lines


def _choose_files(
    run: OpenRun, learner: Learner, names: Sequence[str], out: str | os.PathLike[str] | None, format: str, single: bool
) -> tuple[Path, dict[str, str]]:
    """The folder to write to, and a file name for each task; for a single task, `out` may be the file itself."""
    files = file_names(learner.tasks, format)
    path = run.folder / "export" if out is None else Path(out)
    if single and len(names) == 1 and path.suffix in FORMATS.values() and not path.is_dir():
        return path.parent, {names[0]: path.name}
    if not path.is_dir() and (path.exists() or path.suffix in FORMATS.values()):
        raise ConfigError(f"{path} is a file, but {len(names)} tasks are to be written. Give a folder with --out.")
    return path, files


def _load_calibration(source: str, streams: Mapping[str, Task], learner: Learner, task: str) -> Inputs:
    """Load inputs to calibrate a task's network with: its own training data, a folder of pictures, or an array in a file."""
    if source == "train":
        seed = torch.Generator().manual_seed(task_seed(learner.seed, learner.tasks.index(task)))
        train, _, _ = prepare_data(streams[task], learner.example, seed)
        return train.finish(next(train.batches(CALIBRATION, torch.Generator().manual_seed(0)))[0])
    path, record = Path(source), learner.records[task]
    if path.is_dir():
        pictures = list_pictures(path)
        if not pictures:
            raise DataError(f"--calibrate {source}: the folder holds no pictures.")
        preprocessing = _get_preprocessing(record)
        return preprocess(preprocessing, decode_pictures(pictures[:CALIBRATION], preprocessing["pixels"]))
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        what = 'neither "train", a folder of pictures nor an array in .npy'
        raise DataError(f"--calibrate {source} is {what}: {error}") from error
    if not isinstance(array, np.ndarray) or not array.ndim or array.dtype.kind not in "fiu":
        raise DataError(f"--calibrate {source} is not one array of numbers with a row for each input.")
    if array.dtype == np.uint8:
        return preprocess(_get_preprocessing(record), np.ascontiguousarray(array[:CALIBRATION]))
    if not isinstance(learner.example, Tensor):
        raise DataError(f"--calibrate {source} is one array, but the network has several inputs. Use --calibrate train.")
    return torch.from_numpy(array[:CALIBRATION]).to(learner.example.dtype)


def _get_preprocessing(record: TaskRecord) -> Preprocessing:
    """How pictures become inputs of a task."""
    if record.pictures is None:
        raise DataError(
            f"Task {record.name!r} was not taught with spacecl.Images, so it is not known how pictures become its inputs. "
            "Give the inputs themselves, as an array in a .npy file."
        )
    return record.pictures


def evaluate_file(network: Callable[[Inputs], Tensor], data: Data, objective: Objective) -> float:
    """The score of a network of any kind on labelled data."""
    answers = [(network(data.finish(x)), objective.prepare(y)) for x, y in data.batches(256)]
    return objective.score(*map(torch.cat, zip(*answers)))
