"""A run: one method on one stream of tasks, in a folder of its own, from which it can be resumed after any interruption."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .. import disk, store
from ..data.prepare import DataCounts, check_all_data
from ..data.targets import Targets
from ..data.task import Task
from ..data.task_data import open_data
from ..errors import ConfigError, StoreError
from ..learner import Learner
from ..learning.checkpoints import Epoch
from ..learning.objective import Objective, check_recipe
from ..learning.recipe import Recipe
from ..progress import Overview, is_shown
from ..seeds import use_seed
from ..structure.calling import Inputs
from .build_result import build_result
from .config import Config
from .costs import multiply_adds
from .measure_run import add_measurements
from .metrics_log import Board, Journal, TestRow
from .processes import check_shared_folder, make_fabric
from .resources import choose_threads, keep_threads, return_memory
from .result import Result, read_result
from .run_folder import (
    check_same_data,
    check_same_settings,
    describe_tasks,
    find_threads,
    load_tasks,
    lock_run,
    record_start,
)
from .summary import format_task

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def run(
    config: Config,
    out: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    tensorboard: bool = False,
    measure: bool = False,
    print_line: Callable[[str], None] = print,
    on_task: Callable[[int, int], None] | None = None,
) -> Result:
    """Learn the tasks of a configuration one after another, and return what result.json holds.

    A folder with the same run, stopped at any moment, is resumed from the last finished epoch, and the result has the same
    bits. A folder with another run is refused.

    Parameters
    ----------
    config : all settings, as `resolve` returns them.
    out : the run's folder; it is created if it does not exist.
    data : a folder with datasets. Default: $SPACECL_DATA, or a cache folder.
    progress : whether to show progress bars. Default: on a terminal only.
    tensorboard : also log for TensorBoard, in the run's folder.
    measure : also measure latency and energy of inference. The machine should have nothing else to do.
    print_line : called with every line for the user.
    on_task : called with the number of tasks that are done and the number of all tasks, at the start and after every task.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file. Give a folder with --out.")
    disk.make_folder(folder)
    fabric = make_fabric(config)
    first = fabric.is_global_zero  # of several processes, the only one that writes and prints
    if not first:
        progress, tensorboard, on_task = False, False, None
        print_line = _print_nothing
    with lock_run(folder) if first else nullcontext(), keep_threads():
        check_shared_folder(fabric, folder)
        check_same_settings(folder, config)
        board = Board(folder / "tensorboard") if tensorboard else None
        if (folder / "result.json").exists():
            if board is not None:
                Journal(folder / "metrics.jsonl", board)
            if first:
                disk.remove(folder / "checkpoints")
            print_line(f"{folder} is finished already.")
            return read_result(folder / "result.json")
        with use_seed(config.seed), fabric.rank_zero_first(local=True):  # which fills the cache of datasets
            tasks, example = load_tasks(config, data)
            checked = [check_all_data(task, example) for task in tasks]
            tasks, counts = [task for task, _ in checked], [counts for _, counts in checked]
        _check_task_names(config, tasks)
        facts = describe_tasks(tasks, counts)
        check_same_data(folder, facts)
        learner = make_learner(config, folder, example, counts[0]["classes"], len(tasks), fabric)
        _check_targets(config, learner, tasks, counts)
        torch.set_num_threads(find_threads(folder, fabric.world_size) or _choose_threads(config, learner, tasks[0], counts[0]))
        journal = Journal(folder / "metrics.jsonl", board, write=first)
        fabric.barrier()  # nobody writes before all have read
        if first:
            record_start(folder, config, facts, learner)
        if learner.tasks:
            print_line(f"Resuming after {len(learner.tasks)} of {len(tasks)} tasks.")
        if is_shown(progress):
            plan, pace = _plan_phases(config, learner, tasks, counts, journal)
            metrics = {task.name: _get_objective(task, count).metric for task, count in zip(tasks, counts)}
            learner.progress = Overview(plan, pace, {title: metrics[title.rpartition(":")[0]] for title in plan})
        for task in tasks[: len(learner.tasks)] if learner.method.needs_data else ():
            learner.remember(task)
        _complete_journal(learner, tasks, journal)
        if on_task is not None:
            on_task(len(learner.tasks), len(tasks))
        for number, task in enumerate(tasks, 1):
            if task.name not in learner.tasks:
                _learn(learner, task, number, _make_recipe(config, learner, number, task, counts[number - 1]), folder, journal)
                _test_if_new(learner, tasks, journal)
                if on_task is not None:
                    on_task(number, len(tasks))
            print_line(format_task(number, len(tasks), learner.records[task.name], journal.get_tests()[number]))
        if not first:
            fabric.barrier()
            return read_result(folder / "result.json")
        result = build_result(config, learner, tasks, counts, example, journal)
        disk.write_file(folder / "result.json", json.dumps(result, indent=1).encode())
        disk.remove(folder / "checkpoints")
        if measure:
            add_measurements(learner, result, example)
            disk.write_file(folder / "result.json", json.dumps(result, indent=1).encode())
        fabric.barrier()
        return result


def _print_nothing(text: str) -> None:
    """What processes other than the first print."""


def make_learner(config: Config, folder: Path, example: Inputs, classes: int, tasks: int, fabric: Fabric) -> Learner:
    """The learner of a run of so many tasks: the one in its folder, or a new one if it has not learned a task yet.

    `example` and `classes` are those of the first task; the network is made for them.
    """
    with use_seed(config.seed):
        model = config.make_model(example, classes)
    double = [name for name, parameter in model.named_parameters() if parameter.dtype == torch.float64]
    if double and config.precision != "32-true":
        raise ConfigError(
            f"precision={config.precision!r} is for networks in single precision, but {double[0]} is in double precision. "
            "Leave it out, or make the network in single precision."
        )
    method = config.make_method(tasks)
    if (folder / "model" / store.MANIFEST).exists():
        if fabric.is_global_zero:
            store.remove_leftovers(folder / "model")
        fabric.barrier()
        return Learner.load(folder / "model", model, method=method, fabric=fabric, progress=False)
    return Learner(
        model,
        method,
        example_input=example,
        head=config.head,
        shared=config.shared,
        seed=config.seed,
        fabric=fabric,
        progress=False,
    )


def _check_task_names(config: Config, tasks: Sequence[Task]) -> None:
    """Refuse options by task name that name no task."""
    names = [task.name for task in tasks]
    unknown = [name for name in config.options.get("task_variance", {}) if name not in names]
    if unknown:
        raise ConfigError(f"options.task_variance names {', '.join(unknown)}, but the tasks are {', '.join(names)}.")


def _check_targets(config: Config, learner: Learner, tasks: Sequence[Task], counts: Sequence[DataCounts]) -> None:
    """Refuse tasks that the method cannot learn, and training values that do not fit a task, before the first is learned."""
    for number, (task, count) in enumerate(zip(tasks, counts), 1):
        targets = _get_objective(task, count).targets
        learner.method.check_target(task.name, targets.kind)
        check_recipe(task, targets, _make_recipe(config, learner, number, task, count))


def _get_objective(task: Task, count: DataCounts) -> Objective:
    targets = Targets(count.get("target_kind", "classes"), count["classes"])
    return Objective(targets, own_loss=task.loss, own_metric=task.metric)


def _make_recipe(config: Config, learner: Learner, number: int, task: Task, count: DataCounts) -> Recipe:
    pretrained, values = learner.core.blueprint.pretrained, open_data(task, "train").recipe_values
    return config.make_recipe(number, count["train"], count["valid"], pretrained, values)


def _choose_threads(config: Config, learner: Learner, task: Task, count: DataCounts) -> int:
    """The number of threads for the steps that a run begins with. Beside an accelerator, they only prepare its batches."""
    if learner.fabric.device.type != "cpu":
        return torch.get_num_threads()
    batch = _make_recipe(config, learner, 1, task, count).batch_size / learner.fabric.world_size
    return choose_threads(3 * batch * multiply_adds(learner.full(), learner.example))  # forward, and twice as much backward


def _learn(learner: Learner, task: Task, number: int, recipe: Recipe, folder: Path, journal: Journal) -> None:
    checkpoint, first = folder / "checkpoints" / str(number), learner.fabric.is_global_zero
    if first:
        others = (folder / "checkpoints").glob("*")  # of tasks that were saved just before a crash
        disk.remove(*(other for other in others if other != checkpoint))

    def finish_epoch(epoch: Epoch) -> None:
        journal.add_epoch(task.name, epoch)
        return_memory()

    learner.learn(task, recipe, checkpoint=checkpoint, on_epoch=finish_epoch)
    learner.save(folder / "model")
    return_memory()
    if first:
        disk.remove(checkpoint)


def _complete_journal(learner: Learner, tasks: Sequence[Task], journal: Journal) -> None:
    """Add what a crash kept from being written: epochs, and tests as far as they can be repeated."""
    _check_tests(journal, [task.name for task in tasks])
    for name, record in learner.records.items():
        for epoch in record.history:
            journal.add_epoch(name, epoch)
    missing = [after for after in range(1, len(learner.tasks)) if not journal.has_test(after)]
    if missing and learner.method.forgets:
        raise StoreError(
            f"{journal.file} has lost the tests after task {', '.join(map(str, missing))}. They cannot be repeated: the method "
            "changes the networks of earlier tasks. Restore the file from a copy, or start again in another folder."
        )
    for after in missing:
        _test(learner, tasks[:after], list(learner.records.values())[after - 1].size, journal)
    _test_if_new(learner, tasks, journal)


def _check_tests(journal: Journal, names: Sequence[str]) -> None:
    """Every test must be of the run's own tasks, in their order."""
    for after, row in journal.get_tests().items():
        if list(row["score"]) != list(names[:after]):
            raise StoreError(
                f"{journal.file} is damaged: the test after task {after} is of {', '.join(row['score'])}, "
                f"but the first tasks are {', '.join(names[:after])}. "
                "Restore the file from a copy. Without one, delete that line: tests that can be repeated will be."
            )


def _test_if_new(learner: Learner, tasks: Sequence[Task], journal: Journal) -> None:
    """Test all tasks learned so far unless that has been done since the last one was learned."""
    if learner.tasks and not journal.has_test(len(learner.tasks)):
        _test(learner, tasks[: len(learner.tasks)], learner.size, journal)


def _test(learner: Learner, tasks: Sequence[Task], size: float, journal: Journal) -> None:
    start = time.perf_counter()
    score = {
        task.name: learner.evaluate(task.test, task.name, metric=task.metric, keys=task.keys, collate=task.collate)  # type: ignore[arg-type]
        for task in tasks
    }
    records = {task.name: learner.records[task.name] for task in tasks}
    row: TestRow = {
        "kind": "test",
        "after": len(tasks),
        "score": score,
        "accuracy": {name: score[name] for name, record in records.items() if record.accuracy is not None},
        "metric": {name: record.metric for name, record in records.items()},
        "size": size,
        "seconds": time.perf_counter() - start,
    }
    journal.add(row)


def _plan_phases(
    config: Config, learner: Learner, tasks: Sequence[Task], counts: Sequence[DataCounts], journal: Journal
) -> tuple[dict[str, int], dict[str, float]]:
    """The steps of every phase to come, by title, and the latest seconds per step of every kind of phase."""
    plan: dict[str, int] = {}
    pace: dict[str, float] = {}
    before = 0
    for number, (task, count) in enumerate(zip(tasks, counts), 1):
        recipe, data = _make_recipe(config, learner, number, task, count), open_data(task, "train")
        steps = len(data.loader) if data.loader is not None else math.ceil(count["train"] / recipe.batch_size)
        if learner.method.needs_data:
            before = steps = before + steps
        for row in journal.get_epochs(task.name):
            pace[row["phase"]] = row["seconds"] / steps
        if task.name not in learner.tasks:
            epochs = learner.method.plan(recipe, number - 1)
            plan |= {f"{task.name}: {phase}": count * steps for phase, count in epochs.items()}
    return plan, pace
