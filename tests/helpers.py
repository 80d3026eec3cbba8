"""What tests of several packages share: folders, taught learners, and the command line in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from models import VECTOR, chain, tasks

from spacecl import SPACE, Learner, Recipe, Task

ROOT = Path(__file__).parents[1]  # of the project
QUICK = Recipe(epochs=2, retrain_epochs=1)


def teach(model=None, method=None, *, example=VECTOR, count=2, recipe=QUICK, names="task {}", **options):
    """A learner that has been taught `count` small tasks, the same bits every time."""
    torch.manual_seed(0)
    learner = Learner(model or chain(), method or SPACE(variance=0.8), example_input=example, **options)
    for number, data in enumerate(tasks(example, count)):
        learner.learn(Task(names.format(number), data), recipe)
    return learner


def with_tests_on_path():
    """The environment for a script that imports what tests share."""
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def run_spacecl(*arguments, timeout=1800, cwd=None, **environment):
    """Run a command in a process of its own, to its end; most tests call `spacecl.cli.main.main` in this one instead."""
    return subprocess.run(
        [sys.executable, "-m", "spacecl", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
    )
