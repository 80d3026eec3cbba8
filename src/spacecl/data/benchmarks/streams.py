"""Benchmarks as lists of tasks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import ConfigError, warn_user
from ...structure.calling import list_tensors
from ..arrays import DecodedDataset, Split, split_rows
from ..catalogue import DATASETS
from ..images import Images, compute_statistics, pad_statistics
from ..registry import find_registered
from ..sources import load
from ..task import Source, Task
from ..task_data import open_data
from ..user_tasks import load_benchmark, load_file, load_folder
from .presets import BENCHMARKS, Benchmark

DataFolder = str | os.PathLike[str] | None
Order = str | Sequence[int]


def load_stream(
    name: str,
    data: DataFolder = None,
    *,
    tasks: int | None = None,
    limit: int | None = None,
    order: Order = "given",
    seed: int = 0,
    image_size: int = 32,
) -> list[Task]:
    """Load the tasks of a benchmark, or of a user's own folder or Python file, each with test data.

    Parameters
    ----------
    name : a benchmark of spacecl or one that was registered, a folder of pictures or a Python file.
    data : folders with the benchmark's datasets (see `sources.load`).
    tasks : the number of tasks. Default: all.
    limit : the most images of each class, or in all where there are none. Default: all.
    order : "given", "random" (drawn with `seed`), or the numbers of the tasks, from 1.
    seed : for a random order, and for the images that `limit` selects.
    image_size : height and width of pictures from a folder, in pixels.

    >>> [task.name for task in load_stream("permuted-digits", tasks=2)]
    ['digits-1', 'digits-2']
    """
    if name in BENCHMARKS:
        benchmark = BENCHMARKS[name]
        load_task = {"permuted": _load_permuted, "split": _load_split, "datasets": _load_padded}[benchmark.kind]
        stream = [load_task(benchmark, data, number) for number in choose_tasks(benchmark, tasks, order, seed)]
    else:
        user_tasks = _load_user_tasks(name, image_size)
        stream = [user_tasks[number] for number in _choose_numbers(order, len(user_tasks), tasks, seed)]
    return stream if limit is None else [_limit_task(task, limit, seed) for task in stream]


def _load_user_tasks(name: str, image_size: int) -> list[Task]:
    registered = find_registered(name)
    if registered is not None:
        return load_benchmark(registered)
    return load_folder(Path(name), image_size) if Path(name).is_dir() else load_file(name)


def choose_tasks(benchmark: Benchmark, tasks: int | None = None, order: Order = "given", seed: int = 0) -> list[int]:
    """Return the numbers, from 0, of the tasks in a stream. Permuted benchmarks can have any number of tasks."""
    count = max(tasks or 0, *order, benchmark.tasks) if not isinstance(order, str) else max(tasks or 0, benchmark.tasks)
    return _choose_numbers(order, count if benchmark.kind == "permuted" else benchmark.tasks, tasks, seed)


def _choose_numbers(order: Order, count: int, tasks: int | None, seed: int) -> list[int]:
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


def _load_permuted(benchmark: Benchmark, data: DataFolder, number: int) -> Task:
    """Load a dataset with its pixels in a random order, which is the same in every run."""
    name = benchmark.datasets[0] if benchmark.datasets else "digits"
    dataset = load(name, data) if benchmark.datasets else _load_digits()
    mean, std = dataset.statistics or (None, None)
    size = dataset.train.pixels[0].size
    order = torch.from_numpy(np.random.default_rng([2020, number + 1]).permutation(size))
    train, test = (Images(*split, mean, std, order=order) for split in (dataset.train, dataset.test))
    return Task(f"{name}-{number + 1}", train, classes=dataset.classes, test=test)


def _load_digits() -> DecodedDataset:
    """Load scikit-learn's digits, which come with the library; a fifth is test data."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = 15 * images.reshape(-1, 1, 8, 8).astype(np.uint8)  # values from 0 to 16, scaled to the range of bytes
    train, test = (Split(pixels[rows], labels[rows]) for rows in split_rows(len(labels), 0.2))
    return DecodedDataset(train, test, tuple(map(str, range(10))), statistics=compute_statistics(train.pixels))


def _load_split(benchmark: Benchmark, data: DataFolder, number: int) -> Task:
    """Load some classes of a dataset: every task has the next ones, and as many as the others."""
    name = benchmark.datasets[0]
    dataset = load(name, data)
    mean, std = dataset.statistics or (None, None)
    count = len(dataset.classes) // benchmark.tasks
    train, test = (
        Images(pixels, labels % count, mean, std, rows=np.flatnonzero(labels // count == number))
        for pixels, labels in (dataset.train, dataset.test)
    )
    names = dataset.classes[number * count : (number + 1) * count]
    return Task(f"{name}-{number + 1}", train, classes=names, test=test)


def _load_padded(benchmark: Benchmark, data: DataFolder, number: int) -> Task:
    """Load one of several datasets as 32 x 32 colour images, and compare its size with the paper's Table S1."""
    name = benchmark.datasets[number]
    dataset, description = load(name, data), DATASETS[name]
    counts, published = (len(dataset.train.labels), len(dataset.test.labels)), description.counts
    if counts != published:
        note = f" ({dataset.note})" if dataset.note else ""
        warn_user(
            f"{description.title} has {counts[0]:,} + {counts[1]:,} images{note}; "
            f"in Table S1 there are {published[0]:,} + {published[1]:,}."
        )
    statistics = dataset.statistics or compute_statistics(dataset.train.pixels)
    mean, std = pad_statistics(statistics, dataset.train.pixels[0, 0].size / 32**2)
    train, test = (Images(*split, mean, std, shape=(3, 32, 32)) for split in (dataset.train, dataset.test))
    return Task(name, train, classes=dataset.classes, test=test)


def _limit_task(task: Task, limit: int, seed: int) -> Task:
    """Return the same task with at most `limit` examples of each class; without classes, with as many in all."""
    train, valid, test = (
        None if getattr(task, part) is None else _limit(task, part, limit, seed) for part in ("train", "valid", "test")
    )
    assert train is not None
    return replace(task, train=train, valid=valid, test=test)


def _limit(task: Task, part: str, limit: int, seed: int) -> Source:
    source, data = getattr(task, part), open_data(task, part)

    def choose_rows(targets: Tensor) -> np.ndarray:
        has_classes = targets.dim() == 1 and not targets.is_floating_point() and task.target in (None, "classes")
        return _limit_rows(targets.numpy() if has_classes else np.zeros(len(targets)), limit, seed)

    if data.images is not None:
        return data.images.subset(choose_rows(data.images.targets))
    if data.tensors is not None:
        x, y = data.tensors
        if not y.dim() or any(not tensor.dim() or len(tensor) != len(y) for tensor in list_tensors(x)):
            return source  # an error when the data is checked
        return data.rows(torch.from_numpy(choose_rows(y)))
    raise ConfigError(f"Task {task.name!r}: limit works with tensors and images; leave it out for a {type(source).__name__}.")


def _limit_rows(labels: np.ndarray, limit: int, seed: int) -> np.ndarray:
    """Draw at most `limit` rows of each label, and return them in order."""
    generator = np.random.default_rng(seed)
    rows = [generator.permutation(np.flatnonzero(labels == label))[:limit] for label in np.unique(labels)]
    return np.sort(np.concatenate([*rows, np.empty(0, np.int64)]))
