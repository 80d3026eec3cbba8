"""A run: one method on one stream of tasks, in a folder of its own, from which it can go on after any interruption."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__, disk, store
from ..data.task import Task
from ..data.task_data import Data, check_all_data
from ..errors import ConfigError, StoreError
from ..learner import Learner
from ..learning.checkpoints import Epoch
from ..progress import Overview, format_duration, format_widths, is_shown
from ..seeds import use_seed
from .config import Config
from .costs import Cost, counted, measured, multiply_adds
from .metrics import average_accuracy, backward_transfer, forgetting
from .metrics_log import Board, Journal
from .result import SCHEMA, read_result
from .run_folder import alone, begin, compare, learner_in, tasks_of

TOGETHER = 64  # rows of one task whose task is found out for all at once
Row = dict[str, Any]
Say = Callable[[str], None]


def run(
    config: Config,
    out: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    tensorboard: bool = False,
    measure: bool = False,
    say: Say = print,
) -> dict[str, Any]:
    """Learn the tasks of a configuration one after another and return what result.json holds.

    A folder that holds the same run, stopped at any moment, is gone on with from its last finished epoch, and the
    result is the same to the bit; one that holds another run is left alone. `measure` adds what inference costs on
    this machine, which should then have nothing else to do.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file. Give a folder with --out.")
    disk.make_folder(folder)
    with alone(folder):
        compare(folder, config)
        board = Board(folder / "tensorboard") if tensorboard else None
        if (folder / "result.json").exists():
            if board is not None:
                Journal(folder / "metrics.jsonl", board)
            disk.remove(folder / "checkpoints")
            say(f"{folder} is finished already.")
            return read_result(folder / "result.json")  # type: ignore[return-value]
        with use_seed(config.seed):
            tasks, example = tasks_of(config, data)
            counts = [check_all_data(task, example) for task in tasks]
        _check_names(config, tasks)
        learner = _learner(config, folder, example, counts[0]["classes"])
        begin(folder, config, learner, tasks, counts)
        journal = Journal(folder / "metrics.jsonl", board)
        if learner.tasks:
            say(f"Going on after {len(learner.tasks)} of {len(tasks)} tasks.")
        if is_shown(progress):
            learner.progress = Overview(*_plan(config, learner, tasks, journal))
        for task in tasks[: len(learner.tasks)] if learner.method.needs_data else ():
            learner.remember(task)
        _mend(learner, tasks, journal)
        for number, task in enumerate(tasks, 1):
            if task.name not in learner.tasks:
                _learn(learner, task, number, config, folder, journal)
                _measure(learner, tasks, journal)
            say(_line(number, len(tasks), learner, task.name, journal))
        result = _result(config, learner, tasks, counts, example, journal)
        disk.write_file(folder / "result.json", json.dumps(result, indent=1).encode())
        disk.remove(folder / "checkpoints")
        if measure:
            _measure_costs(learner, result, example)
            disk.write_file(folder / "result.json", json.dumps(result, indent=1).encode())
        return result


def _learn(learner: Learner, task: Task, number: int, config: Config, folder: Path, journal: Journal) -> None:
    checkpoint = folder / "checkpoints" / str(number)
    others = (folder / "checkpoints").glob("*")  # of tasks that were saved just before a crash
    disk.remove(*(other for other in others if other != checkpoint))

    def note(row: Epoch) -> None:
        journal.add({"kind": "epoch", "task": task.name, **row})

    learner.learn(task, config.make_recipe(number), checkpoint=checkpoint, on_epoch=note)
    learner.save(folder / "model")
    disk.remove(checkpoint)


def _mend(learner: Learner, tasks: Sequence[Task], journal: Journal) -> None:
    """Tell again what a crash kept from being written down: epochs, and tests as far as they can still be made."""
    _check_tests(journal, [task.name for task in tasks])
    for name, record in learner.records.items():
        for row in record.history:
            journal.add({"kind": "epoch", "task": name, **row})
    lost = [after for after in range(1, len(learner.tasks)) if not journal.has("test", after)]
    if lost and learner.method.forgets:
        raise StoreError(
            f"{journal.file} has lost the tests after task {', '.join(map(str, lost))}; they cannot be made again."
        )
    for after in lost:
        _test(learner, tasks[:after], list(learner.records.values())[after - 1].size, journal)
    _measure(learner, tasks, journal)


def _check_tests(journal: Journal, names: Sequence[str]) -> None:
    """Every test must be of the run's own tasks, in their order."""
    for row in journal.rows:
        if row["kind"] == "test" and list(row["accuracy"]) != list(names[: row["after"]]):
            raise StoreError(
                f"{journal.file} is damaged: the test after task {row['after']} is of {', '.join(row['accuracy'])}, "
                f"but the first tasks are {', '.join(names[: row['after']])}. "
                "Restore the file from a copy. Without one, delete that line: tests that can be made again will be."
            )


def _measure(learner: Learner, tasks: Sequence[Task], journal: Journal) -> None:
    """Test every task learned so far, once, after each new one."""
    if learner.tasks and not journal.has("test", len(learner.tasks)):
        _test(learner, tasks[: len(learner.tasks)], learner.size, journal)


def _test(learner: Learner, tasks: Sequence[Task], size: float, journal: Journal) -> None:
    started = time.perf_counter()
    found = {task.name: learner.evaluate(task.test, task.name) for task in tasks}  # type: ignore[arg-type]
    seconds = time.perf_counter() - started
    journal.add({"kind": "test", "after": len(tasks), "accuracy": found, "size": size, "seconds": seconds})


def _result(
    config: Config, learner: Learner, tasks: Sequence[Task], counts: Sequence[Row], example: Tensor, journal: Journal
) -> dict[str, Any]:
    """All that is worth keeping of a run. Times stand under keys named `seconds`; all else is the same for the same seed."""
    tests = {row["after"]: row for row in journal.rows if row["kind"] == "test"}
    rows = [tests[after]["accuracy"] for after in range(1, len(tasks) + 1)]
    matrix = [[row.get(task.name) for task in tasks] for row in rows]
    dense = {classes: counted(learner.dense(classes), example) for classes in {count["classes"] for count in counts}}
    listed = []
    for number, (task, count) in enumerate(zip(tasks, counts)):
        record = learner.records[task.name]
        costs = {"network": counted(learner.subnet(task.name), example), "dense": dict(dense[count["classes"]])}
        listed.append(
            {
                "name": task.name,
                **count,
                "accuracy": matrix[-1][number],
                "accuracy_when_learned": matrix[number][number],
                "validation_accuracy": record.accuracy,
                "widths": dict(record.widths),
                "core_explained": dict(record.core_explained),
                "explained": dict(record.explained),
                "samples": dict(record.samples),
                "spectrum": dict(record.spectrum),
                "used": dict(record.used),
                "size_after": record.size,
                "full": list(record.full),
                "grown": record.grown,
                "parameters": record.parameters,
                "multiply_adds": costs["network"]["multiply_adds"],
                "costs": costs,
                "epochs": {phase: sum(row["phase"] == phase for row in record.history) for phase in _phases(record.history)},
                "digest": record.digest,
                "seconds": {**record.seconds, "test": tests[number + 1]["seconds"]},
            }
        )
    inferred = _inferred(learner, tasks)
    for entry in listed:
        entry["inferred"] = inferred.get(entry["name"])
    full = learner.full()
    phases = sorted({phase for entry in listed for phase in entry["seconds"]})
    seconds = {phase: sum(entry["seconds"].get(phase, 0.0) for entry in listed) for phase in phases}
    return {
        "schema": SCHEMA,
        "spacecl": __version__,
        "benchmark": config.benchmark,
        "method": config.method,
        "recipe": config.recipe,
        "seed": config.seed,
        "config": config.to_json(),
        "average_accuracy": average_accuracy(matrix),
        "backward_transfer": backward_transfer(matrix),
        "forgetting": forgetting(matrix),
        "accuracy_matrix": matrix,
        "inferred": _mean_inferred(list(inferred.values())),
        "size": learner.size,
        "storage": learner.storage,
        "network": {
            "widths": learner.widths,
            "parameters": sum(parameter.numel() for parameter in full.parameters()),
            "multiply_adds": multiply_adds(full, example),
        },
        "tasks": listed,
        "seconds": {**seconds, "total": sum(seconds.values())},
    }


def _inferred(learner: Learner, tasks: Sequence[Task]) -> dict[str, Row]:
    """What comes of each task's test data when its name is not given: how often the task is found, and the label right.

    By row, and by batches in which all rows are known to be of one task. `refused` is the share that `identify` would take
    for inputs of no task; the other shares count the likeliest task all the same.
    """
    found: dict[str, Row] = {}
    names = list(learner.tasks)
    if not all(map(learner.has_signature, names)):
        return found
    for number, task in enumerate(tasks):
        data, seen = Data(task.test, task.name), 0  # type: ignore[arg-type]
        counts = {how: {"identified": 0, "accuracy": 0, "refused": 0} for how in ("row", "batch")}
        for x, y in data.batches(TOGETHER):
            x = data.finish(x)
            like = learner.task_scores(x)
            known = torch.stack([learner.accepts(x, name) for name in names], 1).any(1)
            counts["row"]["refused"] += int((~known).sum())
            counts["batch"]["refused"] += 0 if 2 * int(known.sum()) >= len(x) else len(x)
            best = {"row": like.argmax(1), "batch": like.sum(0).argmax().expand(len(x))}
            for how, chosen in best.items():
                right = chosen == number
                labels = learner.predict(x, [names[one] for one in chosen.tolist()])
                counts[how]["identified"] += int(right.sum())
                counts[how]["accuracy"] += int((right & (labels.cpu() == y)).sum())
            seen += len(y)
        found[task.name] = {how: {key: count / seen for key, count in c.items()} for how, c in counts.items()}
    return found


def _mean_inferred(tasks: Sequence[Row]) -> Row | None:
    """Means over all tasks; nothing where there is nothing to know them by."""
    if not tasks:
        return None
    means = {
        how: {key: sum(task[how][key] for task in tasks) / len(tasks) for key in ("identified", "accuracy", "refused")}
        for how in ("row", "batch")
    }
    return {**means, "together": TOGETHER}


def measure(out: str | os.PathLike[str]) -> dict[str, Any]:
    """Add to a finished run's result.json what inference costs on this machine, if it is not there yet; no data is read.

    The code that the run names as its network is run: whether it may be is for the caller to know.
    """
    folder = Path(out)
    with alone(folder):
        result: dict[str, Any] = read_result(folder / "result.json")  # type: ignore[assignment]
        if not is_measured(result):
            learner = learner_in(folder / "model", Config.from_json(result["config"]))
            _measure_costs(learner, result, learner.example)
            disk.write_file(folder / "result.json", json.dumps(result, indent=1).encode())
    return result


def is_measured(result: Mapping[str, Any]) -> bool:
    """Whether nothing is left to measure; a result of an older version has no costs."""
    return all("measured" in cost for task in result["tasks"] for cost in task.get("costs", {}).values())


def _measure_costs(learner: Learner, result: dict[str, Any], example: Tensor) -> None:
    """Measure every task's network, and the full one with the task's head; networks of the same shapes only once."""
    known: dict[tuple[Any, ...], Cost] = {}
    for task in result["tasks"]:
        for kind, module in {"network": learner.subnet(task["name"]), "dense": learner.dense(task["classes"])}.items():
            shapes = tuple(tuple(tensor.shape) for tensor in module.state_dict().values())
            if shapes not in known:
                device, layout = learner.fabric.device, learner.channels_last
                known[shapes] = measured(module.to(device), example.to(device), layout)
            task["costs"][kind]["measured"] = known[shapes]


def _check_names(config: Config, tasks: Sequence[Task]) -> None:
    """Options by task name must name tasks."""
    names = [task.name for task in tasks]
    lost = [name for name in config.options.get("task_variance", {}) if name not in names]
    if lost:
        raise ConfigError(f"options.task_variance names {', '.join(lost)}, but the tasks are {', '.join(names)}.")


def _learner(config: Config, folder: Path, example: Tensor, classes: int) -> Learner:
    from lightning_fabric import Fabric

    if (folder / "model" / store.MANIFEST).exists():
        store.remove_leftovers(folder / "model")
        return learner_in(folder / "model", config)
    with use_seed(config.seed):
        model = config.make_model(tuple(example.shape[1:]), classes)
    fabric = Fabric(accelerator=config.device, devices=1)
    return Learner(
        model,
        config.make_method(),
        example_input=example,
        head=config.head,
        shared=config.shared,
        seed=config.seed,
        fabric=fabric,
        progress=False,
    )


def _plan(config: Config, learner: Learner, tasks: Sequence[Task], journal: Journal) -> tuple[dict[str, int], dict[str, float]]:
    """The steps of every phase to come, and the seconds that a step took in each kind of phase when it was last seen."""
    plan: dict[str, int] = {}
    pace: dict[str, float] = {}
    before = 0
    for number, task in enumerate(tasks, 1):
        recipe, data = config.make_recipe(number), Data(task.train, task.name)
        share = 0.9 if task.valid is None else 1.0
        steps = data.steps(recipe.batch_size) if data.loader is not None else math.ceil(share * len(data) / recipe.batch_size)
        if learner.method.needs_data:
            before = steps = before + steps
        for row in journal.rows:
            if row["kind"] == "epoch" and row["task"] == task.name:
                pace[row["phase"]] = row["seconds"] / steps
        if task.name not in learner.tasks:
            epochs = learner.method.plan(recipe, number - 1)
            plan |= {f"{task.name}: {phase}": count * steps for phase, count in epochs.items()}
    return plan, pace


def _line(number: int, count: int, learner: Learner, task: str, journal: Journal) -> str:
    record = learner.records[task]
    rows = {row["after"]: row["accuracy"] for row in journal.rows if row["kind"] == "test"}
    return (
        f"{number:>2}/{count}  {task:18} test {rows[number][task]:7.2%}  mean {sum(rows[number].values()) / number:7.2%}  "
        f"size {record.size:.3f}  {format_widths(record.widths)}  {format_duration(sum(record.seconds.values()))}"
        f"{_held_back(record.spectrum)}"
    )


def _held_back(spectrum: Mapping[str, Mapping[str, Any]]) -> str:
    """What a budget has cost a task in the layer that loses most; nothing where it has not held the task back."""
    layers = [layer for layer, seen in spectrum.items() if seen["new"] < seen.get("wanted", 0)]
    if not layers:
        return ""
    layer = max(layers, key=lambda layer: spectrum[layer]["lost"])
    seen = spectrum[layer]
    reached = f"{seen['threshold'] - seen['lost']:.3f} of {seen['threshold']:.3f} explained"
    return f"  budget: {layer} {seen['new']} of {seen['wanted']} filters, {reached}"


def _phases(history: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["phase"] for row in history))


def table(result: Mapping[str, Any]) -> Any:
    """What a run came to, for a terminal."""
    from rich.markup import escape
    from rich.table import Table

    full = result["network"]
    title = escape(f"{result['benchmark']}, {result['method']}, recipe {result['recipe']}, seed {result['seed']}")
    found = Table(title=title, caption_justify="left")
    for column in ("task", "learned", "now", "parameters", "mult-adds", "widths"):
        left = column in ("task", "widths")
        found.add_column(column, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for task in result["tasks"]:
        found.add_row(
            escape(task["name"]),
            f"{task['accuracy_when_learned']:.2%}",
            f"{task['accuracy']:.2%}",
            f"{task['parameters'] / full['parameters']:.1%}",
            f"{task['multiply_adds'] / full['multiply_adds']:.1%}",
            format_widths(task["widths"]),
        )
    found.add_section()
    found.add_row("mean", "", f"{result['average_accuracy']:.2%}", "", "", "")
    kept = ", ".join(f"{name} {_bytes(count)}" for name, count in result.get("storage", {}).items() if count)
    found.caption = (
        f"All networks together: {result['size']:.1%} of the full one. Backward transfer {result['backward_transfer']:+.2%}. "
        f"{format_duration(result['seconds']['total'])}.\nKept: {kept}."
    )
    inferred = result.get("inferred")
    if inferred:
        row, batch = inferred["row"], inferred["batch"]
        found.caption += (
            f"\nTasks found out, not given: {row['accuracy']:.2%} row by row (the task is found for {row['identified']:.1%}), "
            f"{batch['accuracy']:.2%} by batches of {inferred['together']} ({batch['identified']:.1%})."
        )
    return found


def _bytes(count: int) -> str:
    """A number of bytes for people.

    >>> _bytes(900), _bytes(71_800_000)
    ('900 B', '71.8 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
