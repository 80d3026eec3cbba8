"""Tasks from users' own data: a folder of pictures, or a Python file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError, user_code_errors, warn_user
from ..user_code import run_file
from .arrays import DecodedDataset, Split, split_rows
from .cache import load_decoded
from .images import Images
from .pictures import (
    PICTURE_SUFFIXES,
    LabelledPictures,
    decode_pictures,
    is_hidden,
    list_labelled_pictures,
    list_pictures,
    require_pillow,
)
from .registry import RegisteredBenchmark, list_registered, load_registered, split_file
from .task import Task

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class TaskFolder:
    """A folder of pictures that makes one task: the names of its classes, and the class folders in each part of it."""

    path: Path
    classes: tuple[str, ...]
    parts: dict[str, dict[str, Path]]  # part -> class -> folder


def load_folder(root: Path, size: int = 32) -> list[Task]:
    """Load a task from each folder in `root`: a folder per class, or `train`, `test` and perhaps `valid` with such folders.

    Pictures become colour images of `size` x `size` pixels. Without `test`, a tenth of each class is set aside for it.
    """
    require_pillow()
    paths = [path for path in sorted(root.iterdir(), key=_natural_key) if path.is_dir() and not is_hidden(path.name)]
    folders = [_find_parts(path) for path in paths]
    problems = [] if folders else [f"{root} holds no folders; a task is a folder of class folders"]
    if {path.name for path in paths} & set(PARTS):
        problems.append(
            f"{root} holds train, valid or test itself; put them into a folder for the task, such as {root}/task-1/train"
        )
    problems += [problem for folder in folders for problem in _find_problems(folder)]
    if problems:
        raise DataError("These folders cannot be used as tasks:\n" + "\n".join(f"  - {line}" for line in problems))
    return [_load_task(folder, size) for folder in folders]


def _find_parts(path: Path) -> TaskFolder:
    folders = _list_folders(path)
    parts = {part: _list_folders(folders[part]) for part in PARTS if part in folders} or {"train": folders}
    return TaskFolder(path, tuple(parts.get("train", ())), parts)


def _find_problems(folder: TaskFolder) -> list[str]:
    problems = []
    names, classes = set(_list_folders(folder.path)), list(folder.classes)
    if names & set(PARTS) and names - set(PARTS):
        problems.append(
            f"{folder.path} has {', '.join(names - set(PARTS))} next to train, valid and test, which is not allowed"
        )
    if len(classes) < 2:
        where = " in train" if "train" in names else ""
        problems.append(f"{folder.path} needs at least two class folders{where}; it has {classes}")
    for part, class_folders in folder.parts.items():
        if list(class_folders) != classes:
            problems.append(f"{folder.path / part} has the classes {list(class_folders)}, but train has {classes}")
        problems += [
            f"{path} holds no pictures ({', '.join(PICTURE_SUFFIXES)})"
            for path in class_folders.values()
            if not list_pictures(path)
        ]
    return problems


def _natural_key(path: Path) -> list[tuple[int, str]]:
    """A key that sorts task-10 after task-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _list_folders(path: Path) -> dict[str, Path]:
    return {folder.name: folder for folder in sorted(path.iterdir()) if folder.is_dir() and not is_hidden(folder.name)}


def _load_task(folder: TaskFolder, size: int) -> Task:
    parts = {part: list_labelled_pictures(list(folders.values())) for part, folders in folder.parts.items()}
    for part, pictures in parts.items():
        if pictures.note:
            warn_user(f"{folder.path}, {part}: {pictures.note}.")
    if "test" not in parts:
        parts["train"], parts["test"] = _split_off_test(folder, parts["train"])

    def load(first: str, second: str) -> DecodedDataset:
        """Load two parts as one dataset, which is what the cache stores."""

        def decode() -> DecodedDataset:
            train, test = (
                Split(decode_pictures(parts[part].files, (3, size, size)), parts[part].labels) for part in (first, second)
            )
            return DecodedDataset(train, test, folder.classes)

        name = f"own-{folder.path.parent.name}-{folder.path.name}-{size}-{first}"
        return load_decoded(name, [*parts[first].files, *parts[second].files], decode)

    dataset = load("train", "test")
    mean, std = dataset.statistics or (None, None)
    train, test = (Images(*split, mean, std) for split in (dataset.train, dataset.test))
    valid = Images(*load("valid", "test").train, mean, std) if "valid" in parts else None
    return Task(folder.path.name, train, valid, folder.classes, test)


def _split_off_test(folder: TaskFolder, pictures: LabelledPictures) -> tuple[LabelledPictures, LabelledPictures]:
    """Set a tenth of every class, and at least one picture, aside as test data. Returns the rest and the test data."""
    rows_by_class = [np.flatnonzero(pictures.labels == label) for label in range(len(folder.classes))]
    singles = [name for name, rows in zip(folder.classes, rows_by_class) if len(rows) < 2]
    if singles:
        raise DataError(f"{folder.path}: one picture of {', '.join(singles)} cannot be both trained on and tested. Add more.")
    test = np.concatenate([rows[split_rows(len(rows), max(0.1, 1 / len(rows)))[1]] for rows in rows_by_class])
    train = np.setdiff1d(np.arange(len(pictures.labels)), test)
    train_pictures, test_pictures = (
        LabelledPictures([pictures.files[row] for row in rows], pictures.labels[rows]) for rows in (train, test)
    )
    return train_pictures, test_pictures


def load_file(name: str) -> list[Task]:
    """Run a Python file and return the tasks of a benchmark that it registers, or of a function: `tasks`, or after a colon."""
    file, function_name = split_file(name)
    if not Path(file).is_file():
        raise ConfigError(f"{file} does not exist.")
    if not file.endswith(".py"):
        raise ConfigError(f"{file} is neither a folder of pictures nor a Python file of tasks, which ends in .py.")
    benchmark = load_registered(name)
    if benchmark is not None:
        return load_benchmark(benchmark)
    function_name = function_name or "tasks"
    function = run_file(file).get(function_name)
    if not callable(function):
        raise ConfigError(
            f"{file} has no function {function_name}(); write one that returns a list of spacecl.Task{_list_registered(file)}."
        )
    return _call(function, f"{function_name}() in {file}", file)


def load_benchmark(benchmark: RegisteredBenchmark) -> list[Task]:
    """Return the tasks of a benchmark that a user has registered."""
    return _call(benchmark.tasks, f"The function of the benchmark {benchmark.name}", benchmark.name)


def _list_registered(file: str) -> str:
    names = list_registered(file)
    return (
        f", or name one of the benchmarks that it registers: {', '.join(f'{file}:{name}' for name in names)}" if names else ""
    )


def _call(function: Callable[[], Any], what: str, where: str) -> list[Task]:
    """Call a user's function of tasks and check what it returns; `what` and `where` name it in error messages."""
    with user_code_errors(f"{what} failed"):
        tasks = function()
    if not isinstance(tasks, (list, tuple)) or not tasks or not all(isinstance(task, Task) for task in tasks):
        raise ConfigError(f"{what} must return a list of spacecl.Task; it returned {_describe_type(tasks)}.")
    without_test = [task.name for task in tasks if task.test is None]
    if without_test:
        raise ConfigError(
            f"{where}: no test data for {', '.join(without_test)}. Runs report test accuracy; give the data with "
            "Task(..., test=...)."
        )
    names = [task.name for task in tasks]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"{where}: these task names are there twice: {', '.join(repeated)}.")
    return list(tasks)


def _describe_type(value: Any) -> str:
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"
