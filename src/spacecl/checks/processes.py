"""Checks in other surroundings: a run that crashes, and two processes that learn together.

python -m spacecl.checks.processes FOLDER METHOD ... learns two tasks with each method in two processes; each writes what it
ended with into the folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from .. import disk
from ..data.task import Task
from ..data.task_data import Data
from ..documents import read_document
from ..errors import SpaceWarning
from ..learner import Learner
from ..learning.context import TaskContext
from ..learning.core import digest_tensors
from ..learning.recipe import Recipe
from ..learning.trainer import Trainer
from ..runs.methods import load_method
from ..runs.resolve import resolve
from ..runs.run import run
from ..seeds import use_seed
from ..structure.calling import list_tensors
from .models import FAMILIES, make_tasks
from .subject import QUICK, SimulatedCrash, Subject, require

SECONDS = 600  # for two processes to learn, at most


class Ending(TypedDict):
    """What one of two processes ended with."""

    digests: dict[str, str]
    memory: str  # digest
    unchanged: bool  # whether the second task left the outputs of the first as they were
    seen: float  # the sum over the examples that this process looked at


def check_run(subject: Subject, folder: Path) -> None:
    """`spacecl run` with the method: after a crash between two tasks it goes on to the same result."""
    settings = {"benchmark": "permuted-digits", "method": subject.name, "tasks": 2, "limit": 20, "device": "cpu"}
    config = resolve({**settings, "train": {"epochs": 1, "retrain_epochs": 1}})
    result = run(config, folder / "whole", progress=False, print_line=lambda text: None)

    def stop(text: str) -> None:
        raise SimulatedCrash

    try:
        run(config, folder / "stopped", progress=False, print_line=stop)  # when the first task is done
    except SimulatedCrash:
        again = run(config, folder / "stopped", progress=False, print_line=lambda text: None)
    digests, resumed = ([task["digest"] for task in outcome["tasks"]] for outcome in (result, again))
    require(digests == resumed, "a run that crashed between two tasks ended with other bits")
    require(again["accuracy_matrix"] == result["accuracy_matrix"], "a run that crashed between two tasks has other accuracies")
    epochs = sum(sum(task["epochs"].values()) for task in result["tasks"])
    require(
        epochs == 4,
        f"two tasks of 1 + 1 epochs took {epochs} epochs instead of 4. All methods get the same number: train for those of the "
        "recipe, or say in plan() how a task divides them into phases",
    )


def check_two_processes(subject: Subject, folder: Path) -> None:
    """Two processes that learn together end with the same bits."""
    first, second = learn_together([subject.name], folder)[subject.name]
    require(first["digests"] == second["digests"], "two processes that learned together ended with different networks")
    require(first["memory"] == second["memory"], "two processes that learned together have different memories (core.memory)")
    forgets = subject.kind.forgets
    require(first["unchanged"] is not forgets, f"in two processes, forgets = {forgets} is not true")


def learn_together(methods: Sequence[str], folder: Path) -> dict[str, tuple[Ending, Ending]]:
    """Learn two tasks with each method in two processes; returns what both ended with."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", __name__, str(folder), *methods]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
    require(done.returncode == 0, f"two processes could not learn together:\n{done.stderr[-2000:]}")
    first, second = (read_document(folder / f"rank{rank}.json", dict[str, Ending]) for rank in (0, 1))
    return {name: (first[name], second[name]) for name in methods}


def _learn_as_one_of_two(folder: Path, methods: Sequence[str]) -> None:
    from lightning_fabric import Fabric

    warnings.simplefilter("ignore", SpaceWarning)
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    family, endings = FAMILIES["convnet"], {}
    first, second = make_tasks(family.example, 2, examples=200)
    for name in methods:
        kind = load_method(name)
        with use_seed(0):
            learner = Learner(family.make(), kind(), example_input=family.example, fabric=fabric)
        learner.learn(Task("0", first), QUICK)
        before = learner.logits(first[0], "0")
        learner.learn(Task("1", second), QUICK)
        task = TaskContext("task", Data(first, "train"), Data(first, "valid"), 3, Trainer(fabric, Recipe(), 0))
        endings[name] = Ending(
            digests=learner.verify(),
            memory=digest_tensors(learner.core.memory),
            unchanged=torch.equal(learner.logits(first[0], "0"), before),
            seen=float(sum(list_tensors(x)[0].sum() for x in task.examples(50))),
        )
    disk.write_file(folder / f"rank{fabric.global_rank}.json", TypeAdapter(dict[str, Ending]).dump_json(endings))


if __name__ == "__main__":
    _learn_as_one_of_two(Path(sys.argv[1]), sys.argv[2:])
