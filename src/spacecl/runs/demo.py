"""The demo: SPACE and plain fine-tuning on the benchmark permuted-digits, side by side. Nothing is downloaded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from ..data.benchmarks.streams import load_stream
from ..data.task import Task
from ..learner import Learner, Method
from ..learning.recipe import Recipe
from ..methods.finetune import FineTune
from ..methods.space import SPACE
from .resources import keep_threads

COLUMNS = ("task", "SPACE then", "now", "widths", "share of network", "fine-tuning then", "now")


@dataclass(frozen=True)
class Trained:
    """A learner after all tasks: the test accuracy of each task right after it was learned, and at the end."""

    learner: Learner
    then: dict[str, float]
    now: dict[str, float]


def network() -> nn.Module:
    """Make the demo's network: two hidden layers of 200 neurons, for flat images of 8 x 8 pixels."""
    return nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


def run(out: str, tasks: int = 5, epochs: int = 30, seed: int = 0, progress: bool | None = None) -> None:
    """Learn the tasks with both methods, print the accuracies, and save SPACE's learner in the folder `out`."""
    with keep_threads():
        torch.set_num_threads(1)  # so small a network would wait for more, for minutes if the machine has other work
        console = Console(soft_wrap=True)
        started = time.perf_counter()
        stream, recipe = load_stream("permuted-digits", tasks=tasks), Recipe(epochs=epochs)
        console.print(
            f"{tasks} tasks: handwritten digits, with another permutation of the pixels in each task. "
            "One network with 200 + 200 neurons."
        )
        space = _train(SPACE(), stream, recipe, seed, progress)
        plain = _train(FineTune(), stream, recipe, seed, progress)
        console.print(_make_table(space, plain))
        space.learner.verify()
        space.learner.save(out)
        console.print(
            f"SPACE: all {tasks} networks together use {space.learner.size:.1%} of the full one; each is still as committed.\n"
            f"Saved in {Path(out).resolve()} (load with spacecl.Learner.load). {time.perf_counter() - started:.0f} s.\n"
            f"Look into it: spacecl inspect {out} --model spacecl.runs.demo:network"
        )


def _train(method: Method, stream: list[Task], recipe: Recipe, seed: int, progress: bool | None) -> Trained:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        learner = Learner(network(), method, example_input=torch.zeros(1, 64), seed=seed, progress=progress)
    then = {}
    for task in stream:
        learner.learn(task, recipe)
        then[task.name] = _test(learner, task)
    return Trained(learner, then, {task.name: _test(learner, task) for task in stream})


def _test(learner: Learner, task: Task) -> float:
    assert task.test is not None  # every task of a benchmark has test data
    return learner.evaluate(task.test, task.name)


def _make_table(space: Trained, plain: Trained) -> Table:
    table = Table(title="Accuracy on test data, right after a task was learned and after all tasks")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("task", "widths") else "right")
    full = sum(parameter.numel() for parameter in network().parameters())
    for name, record in space.learner.records.items():
        table.add_row(
            name,
            f"{space.then[name]:.1%}",
            f"{space.now[name]:.1%}",
            "-".join(map(str, record.widths.values())),
            f"{record.parameters / full:.1%}",
            f"{plain.then[name]:.1%}",
            f"{plain.now[name]:.1%}",
        )
    accuracies = (space.then, space.now, plain.then, plain.now)
    means = [f"{sum(values.values()) / len(values):.1%}" for values in accuracies]
    table.add_section()
    table.add_row("mean", *means[:2], "", "", *means[2:])
    return table
