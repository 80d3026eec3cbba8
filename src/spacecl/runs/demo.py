"""The demo: permuted digits, SPACE beside plain fine-tuning. Data comes with scikit-learn; nothing is downloaded."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ..data.task import Task
from ..learner import Learner, Method
from ..learning.recipe import Recipe
from ..methods import SPACE, FineTune

Split = tuple[Tensor, Tensor]


def permuted_digits(tasks: int, seed: int) -> list[tuple[Task, Split]]:
    """Tasks on scikit-learn's 8 x 8 digits, each with an order of pixels of its own, and a test set for each."""
    from sklearn.datasets import load_digits

    generator = torch.Generator().manual_seed(seed)
    images, digits = load_digits(return_X_y=True)
    shuffle = torch.randperm(len(images), generator=generator)
    x, y = torch.tensor(images / 16, dtype=torch.float32)[shuffle], torch.tensor(digits)[shuffle]
    parts = {"train": slice(0, 1200), "valid": slice(1200, 1400), "test": slice(1400, None)}
    found = []
    for number in range(tasks):
        order = torch.randperm(64, generator=generator) if number else torch.arange(64)
        split = {name: (x[part][:, order], y[part]) for name, part in parts.items()}
        found.append((Task(f"digits-{number + 1}", split["train"], split["valid"]), split["test"]))
    return found


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


def run(
    out: str, tasks: int = 5, variance: float = 0.97, epochs: int = 30, seed: int = 0, progress: bool | None = None
) -> None:
    """Learn the tasks with both methods, print what came of it and save SPACE's learner."""
    console = Console(soft_wrap=True)
    started = time.perf_counter()
    stream, recipe = permuted_digits(tasks, seed), Recipe(epochs=epochs)
    console.print(
        f"{tasks} tasks: handwritten digits, each with its pixels in an order of its own; one network, 200 + 200 neurons."
    )
    space, space_then = _learn(SPACE(variance=variance), stream, recipe, seed, progress)
    plain, plain_then = _learn(FineTune(), stream, recipe, seed, progress)

    table = Table(title="Accuracy on test data, when a task was learned and now that all are")
    for column in ("task", "SPACE then", "now", "widths", "share of network", "fine-tuning then", "now"):
        table.add_column(column, justify="left" if column in ("task", "widths") else "right")
    full = sum(parameter.numel() for parameter in network().parameters())
    now: list[tuple[float, float]] = []
    for task, test in stream:
        now.append((space.evaluate(test, task.name), plain.evaluate(test, task.name)))
        record = space.records[task.name]
        table.add_row(
            task.name,
            f"{space_then[task.name]:.1%}",
            f"{now[-1][0]:.1%}",
            "-".join(map(str, record.widths.values())),
            f"{record.parameters / full:.1%}",
            f"{plain_then[task.name]:.1%}",
            f"{now[-1][1]:.1%}",
        )
    means = [sum(column) / len(stream) for column in (space_then.values(), *zip(*now), plain_then.values())]
    table.add_section()
    table.add_row("mean", f"{means[0]:.1%}", f"{means[1]:.1%}", "", "", f"{means[3]:.1%}", f"{means[2]:.1%}")
    console.print(table)
    space.verify()
    space.save(out)
    console.print(
        f"SPACE: all {tasks} networks together use {space.size:.1%} of the full one; each is still what was committed.\n"
        f"Saved in {Path(out).resolve()} (load with spacecl.Learner.load). {time.perf_counter() - started:.0f} s.\n"
        f"Look into it: spacecl inspect {out} --model spacecl.runs.demo:network"
    )


def _learn(
    method: Method, stream: list[tuple[Task, Split]], recipe: Recipe, seed: int, progress: bool | None
) -> tuple[Learner, dict[str, float]]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        learner = Learner(network(), method, example_input=torch.zeros(1, 64), seed=seed, progress=progress)
    then = {}
    for task, test in stream:
        learner.learn(task, recipe)
        then[task.name] = learner.evaluate(test, task.name)
    return learner, then
