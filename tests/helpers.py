"""What tests of several packages share: folders, taught learners, and the command line in a process of its own."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from models import VECTOR, chain, tasks

from spacecl import SPACE, Learner, Recipe, Task, TaskRecord

ROOT = Path(__file__).parents[1]  # of the project
QUICK = Recipe(epochs=2, retrain_epochs=1)


def teach(model=None, method=None, *, example=VECTOR, count=2, recipe=QUICK, names="task {}", **options):
    """A learner that has been taught `count` small tasks, the same bits every time."""
    torch.manual_seed(0)
    learner = Learner(model or chain(), method or SPACE(variance=0.8), example_input=example, **options)
    for number, data in enumerate(tasks(example, count)):
        learner.learn(Task(names.format(number), data), recipe)
    return learner


def teach_random(model, example, shared=(), count=2, classes=3, share=0.5):
    """A learner whose tasks have random units and tensors, without any training; later tasks share some of the first."""
    learner = Learner(model, example_input=example, shared=shared)
    core, records, random = learner.core, {}, torch.Generator().manual_seed(0)
    for number in range(count):
        units = torch.rand(core.channels.units, generator=random) < share
        for group in core.channels.groups:
            units[group.units[:3]] = True
        initial = core.initial_tensors(classes)
        for name in core.channels.private:
            if initial[name].is_floating_point():
                initial[name] = initial[name] + torch.rand(initial[name].shape, generator=random)
        core = core.commit(core.channels.gather(initial, units), units)
        widths, name = core.channels.widths(units), f"task {number}"
        records[name] = TaskRecord(name, classes, None, 0.0, 0.0, core.digest(number), widths, 0, core.size())
    learner._state = replace(learner._state, core=core, records=records)
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
