"""Benchmarks as lists of tasks, and users' own data: a folder of class folders per task, or a Python file."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from ...errors import ConfigError, DataError, user_code_errors, warn_user
from ..cache import decoded
from ..catalogue import DATASETS
from ..images import Images, statistics, with_borders
from ..readers import PICTURES, Decoded, Split, decode_pictures, hidden, list_pictures, listed, require_pillow, set_aside
from ..sources import load
from ..task import Task
from ..task_data import Data as Batches
from .presets import BENCHMARKS, Benchmark

Data = str | os.PathLike[str] | None
Order = str | Sequence[int]


def load_stream(
    name: str,
    data: Data = None,
    *,
    tasks: int | None = None,
    limit: int | None = None,
    order: Order = "given",
    seed: int = 0,
    image_size: int = 32,
) -> list[Task]:
    """The tasks of a benchmark, or of a folder or Python file of one's own, each with test data.

    `order` is "given", "random" (drawn by `seed`) or the numbers of tasks from 1; of these the first `tasks` are taken.
    `limit` keeps so many images of each class.

    >>> [task.name for task in stream("permuted-digits", tasks=2)]
    ['digits-1', 'digits-2']
    """
    if name in BENCHMARKS:
        benchmark = BENCHMARKS[name]
        make = {"permuted": _permuted, "split": _split, "datasets": _dataset}[benchmark.kind]
        found = [make(benchmark, data, number) for number in choose_tasks(benchmark, tasks, order, seed)]
    else:
        own = from_folder(Path(name), image_size) if Path(name).is_dir() else from_file(name)
        found = [own[number] for number in _numbers(order, len(own), tasks, seed)]
    return found if limit is None else [_limited(task, limit, seed) for task in found]


def choose_tasks(benchmark: Benchmark, tasks: int | None = None, order: Order = "given", seed: int = 0) -> list[int]:
    """The numbers, from 0, of the tasks that a stream of a benchmark has. There are as many permutations as one likes."""
    count = max(tasks or 0, *order, benchmark.tasks) if not isinstance(order, str) else max(tasks or 0, benchmark.tasks)
    return _numbers(order, count if benchmark.kind == "permuted" else benchmark.tasks, tasks, seed)


def _numbers(order: Order, count: int, tasks: int | None, seed: int) -> list[int]:
    if order == "given":
        numbers = list(range(count))
    elif order == "random":
        numbers = np.random.default_rng(seed).permutation(count).tolist()
    else:
        numbers = [int(number) - 1 for number in order]
        if len(set(numbers)) < len(numbers) or not all(0 <= number < count for number in numbers):
            raise ConfigError(f"order = {list(order)} must name tasks from 1 to {count}, none twice")
    if tasks is not None and tasks > len(numbers):
        raise ConfigError(f"tasks = {tasks}, but there are {len(numbers)}")
    return numbers[:tasks]


# -- benchmarks ------------------------------------------------------------------------------------------------------


def _permuted(benchmark: Benchmark, data: Data, number: int) -> Task:
    """One dataset, its pixels in a fixed random order for each task, the same in every run."""
    name = benchmark.datasets[0] if benchmark.datasets else "digits"
    found = load(name, data) if benchmark.datasets else _digits()
    mean, std = found.spread or (None, None)
    size = found.train[0][0].size
    order = torch.from_numpy(np.random.default_rng([2020, number + 1]).permutation(size))
    train, test = (Images(*part, mean, std, order=order) for part in (found.train, found.test))
    return Task(f"{name}-{number + 1}", train, classes=found.classes, test=test)


def _digits() -> Decoded:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = 15 * images.reshape(-1, 1, 8, 8).astype(np.uint8)  # of 16 shades: as bright as pictures are
    train, test = ((pixels[rows], labels[rows]) for rows in set_aside(len(labels), 0.2))
    return Decoded(train, test, tuple(map(str, range(10))), spread=statistics(train[0]))


def _split(benchmark: Benchmark, data: Data, number: int) -> Task:
    """One dataset, so many classes for each task, in the order of their numbers."""
    name = benchmark.datasets[0]
    found = load(name, data)
    mean, std = found.spread or (None, None)
    count = len(found.classes) // benchmark.tasks
    train, test = (
        Images(pixels, labels % count, mean, std, rows=np.flatnonzero(labels // count == number))
        for pixels, labels in (found.train, found.test)
    )
    names = found.classes[number * count : (number + 1) * count]
    return Task(f"{name}-{number + 1}", train, classes=names, test=test)


def _dataset(benchmark: Benchmark, data: Data, number: int) -> Task:
    """One of several datasets, as 32 x 32 colour images; its counts are held against the paper's Table S1."""
    name = benchmark.datasets[number]
    found, dataset = load(name, data), DATASETS[name]
    counts = len(found.train[1]), len(found.test[1])
    if counts != dataset.counts:
        note = f" ({found.note})" if found.note else ""
        warn_user(
            f"{dataset.title} has {counts[0]:,} + {counts[1]:,} images{note}; "
            f"in Table S1 there are {dataset.counts[0]:,} + {dataset.counts[1]:,}."
        )
    mean, std = found.spread or statistics(found.train[0])
    mean, std = with_borders(mean, std, found.train[0][0, 0].size / 32**2)
    train, test = (Images(*part, mean, std, shape=(3, 32, 32)) for part in (found.train, found.test))
    return Task(name, train, classes=found.classes, test=test)


# -- one's own --------------------------------------------------------------------------------------------------------


def from_folder(root: Path, size: int = 32) -> list[Task]:
    """A task for each folder in `root`: class folders of pictures, or `train`, `test` and perhaps `valid` with such.

    Pictures become colour images of `size` x `size`. Without `test`, a tenth of the pictures is set aside for it.
    """
    require_pillow()
    folders = [folder for folder in sorted(root.iterdir(), key=_natural) if folder.is_dir() and not hidden(folder.name)]
    wrong = [] if folders else [f"{root} holds no folders; a task is a folder of class folders"]
    if {folder.name for folder in folders} & set(PARTS):
        wrong.append(
            f"{root} holds train, valid or test itself; put them into a folder for the task, such as {root}/task-1/train"
        )
    plans = []
    for folder in folders:
        inside = _folders(folder)
        parts = {part: _folders(folder / part) for part in PARTS if part in inside} or {"train": inside}
        names = list(parts.get("train", ()))
        if set(inside) & set(PARTS) and set(inside) - set(PARTS):
            wrong.append(
                f"{folder} has {', '.join(set(inside) - set(PARTS))} beside train, valid and test; nothing else has a meaning"
            )
        if len(names) < 2:
            wrong.append(f"{folder} needs at least two class folders{' in train' if 'train' in inside else ''}; it has {names}")
        for part, found in parts.items():
            if list(found) != names:
                wrong.append(f"{folder / part} has the classes {list(found)}, but train has {names}")
            wrong += [f"{path} holds no pictures ({', '.join(PICTURES)})" for path in found.values() if not list_pictures(path)]
        plans.append((folder.name, names, parts))
    if wrong:
        raise DataError("These folders cannot be used as tasks:\n" + "\n".join(f"  - {line}" for line in wrong))
    return [_own_task(root, name, names, parts, size) for name, names, parts in plans]


PARTS = ("train", "valid", "test")


def _natural(path: Path) -> list[tuple[int, str]]:
    """A key by which task-10 comes after task-9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _folders(path: Path) -> dict[str, Path]:
    return {folder.name: folder for folder in sorted(path.iterdir()) if folder.is_dir() and not hidden(folder.name)}


def _own_task(root: Path, name: str, names: list[str], parts: dict[str, dict[str, Path]], size: int) -> Task:
    """One of the user's tasks; what has no test folder gives a tenth of every class, and at least one picture, for it."""
    rows = {part: listed(list(classes.values())) for part, classes in parts.items()}
    for part, (_, _, note) in rows.items():
        if note:
            warn_user(f"{root / name}, {part}: {note}.")
    files, labels = {part: found[0] for part, found in rows.items()}, {part: found[1] for part, found in rows.items()}
    if "test" not in rows:
        few = [names[label] for label in range(len(names)) if int((labels["train"] == label).sum()) < 2]
        if few:
            raise DataError(f"{root / name}: one picture of {', '.join(few)} cannot be both trained on and tested. Add more.")
        chosen = [np.flatnonzero(labels["train"] == label) for label in range(len(names))]
        cut = np.concatenate([where[set_aside(len(where), max(0.1, 1 / len(where)))[1]] for where in chosen])
        stay = np.setdiff1d(np.arange(len(labels["train"])), cut)
        files["test"], labels["test"] = [files["train"][row] for row in cut], labels["train"][cut]
        files["train"], labels["train"] = [files["train"][row] for row in stay], labels["train"][stay]

    def kept(first: str, second: str) -> Decoded:
        def make() -> Decoded:
            train, test = ((decode_pictures(files[part], (3, size, size)), labels[part]) for part in (first, second))
            return Decoded(train, test, tuple(names))

        return decoded(f"own-{root.name}-{name}-{size}-{first}", [*files[first], *files[second]], make)

    found = kept("train", "test")
    mean, std = found.spread or (None, None)

    def images(split: Split) -> Images:
        return Images(*split, mean, std)

    valid = images(kept("valid", "test").train) if "valid" in files else None
    return Task(name, images(found.train), valid, tuple(names), images(found.test))


def from_file(name: str) -> list[Task]:
    """The list of tasks that a Python file's function `tasks`, or the one named after a colon, returns."""
    file, _, function = name.partition(".py:")
    file, function = (f"{file}.py", function) if function else (name, "tasks")
    if not Path(file).is_file():
        raise ConfigError(f"{file} does not exist.")
    if not file.endswith(".py"):
        raise ConfigError(f"{file} is neither a folder of pictures nor a Python file of tasks, which ends in .py.")
    sys.path.insert(0, str(Path(file).absolute().parent))  # for what it imports from beside it
    with user_code_errors(f"{file} cannot be loaded"):
        found = runpy.run_path(file).get(function)
    if not callable(found):
        raise ConfigError(f"{file} has no function {function}(); write one that returns a list of spacecl.Task.")
    with user_code_errors(f"{function}() in {file} failed"):
        given = found()
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(task, Task) for task in given):
        raise ConfigError(f"{function}() in {file} must return a list of spacecl.Task; it returned {_told(given)}.")
    bare = [task.name for task in given if task.test is None]
    if bare:
        raise ConfigError(
            f"{file}: no test data for {', '.join(bare)}. Give it with Task(..., test=...), so that a run can measure."
        )
    repeated = sorted({task.name for task in given if [other.name for other in given].count(task.name) > 1})
    if repeated:
        raise ConfigError(f"{file}: these names are there twice: {', '.join(repeated)}.")
    return list(given)


def _told(value: Any) -> str:
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


# -- smaller runs ------------------------------------------------------------------------------------------------------


def _limited(task: Task, limit: int, seed: int) -> Task:
    """The same task with at most so many examples of each class."""
    parts: dict[str, Any] = {part: _limit(getattr(task, part), limit, seed, task.name) for part in ("train", "valid", "test")}
    return replace(task, **parts)


def _limit(source: Any, limit: int, seed: int, name: str) -> Any:
    if source is None:
        return None
    if isinstance(source, Images):
        return source.subset(_some(source.targets.numpy(), limit, seed))
    if isinstance(source, TensorDataset):
        source = source.tensors
    if isinstance(source, (tuple, list)):
        tensors = Batches(source, f"Task {name!r}").tensors  # type: ignore[arg-type]
        assert tensors is not None
        x, y = tensors
        if y.dim() != 1 or len(x) != len(y):
            return source  # said when the data is checked
        rows = torch.from_numpy(_some(y.numpy(), limit, seed))
        return x[rows], y[rows]
    raise ConfigError(f"Task {name!r}: limit works with tensors and images; leave it out for a {type(source).__name__}.")


def _some(labels: np.ndarray, limit: int, seed: int) -> np.ndarray:
    """Rows with at most `limit` of each label, in order."""
    generator = np.random.default_rng(seed)
    found = [generator.permutation(np.flatnonzero(labels == label))[:limit] for label in np.unique(labels)]
    return np.sort(np.concatenate([*found, np.empty(0, np.int64)]))
