"""What the scripts with pretrained networks share: methods and recipes from the command line, and teaching a learner tasks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import Row
from torch import nn

from spacecl import SPACE, STL, Learner, PackNet, Recipe, Task
from spacecl.learner import Method
from spacecl.runs.resolve import parse_assignments

METHODS: Mapping[str, type[Method]] = {"space": SPACE, "packnet": PackNet, "stl": STL}


def parse_options(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse options of methods, written as METHOD.KEY=VALUE or, for those of SPACE, as KEY=VALUE.

    >>> parse_options(["variance=0.9", "packnet.prune=0.8"])
    {'space': {'variance': 0.9}, 'packnet': {'prune': 0.8}, 'stl': {}}
    """
    options: dict[str, dict[str, Any]] = {name: {} for name in METHODS}
    for name, value in parse_assignments(texts).items():
        if name in options:
            options[name] |= value
        else:
            options["space"][name] = value
    return options


def name_method(method: Method, options: Mapping[str, Any]) -> str:
    """Name a method for a table, with the options that were given."""
    return ", ".join([type(method).__name__, *(f"{key}={value}" for key, value in options.items())])


def make_recipe(text: str, method: Method, **values: Any) -> Recipe | None:
    """Make a recipe of "A+B" epochs of training and retraining. A method that does not retrain trains for both.

    "auto" gives None, with which a learner uses its own recipe.
    """
    if text == "auto":
        return None
    train, retrain = map(int, text.split("+"))
    recipe = Recipe(epochs=train, retrain_epochs=retrain, **values)
    return recipe if "retrain" in method.plan(recipe, 0) else Recipe(epochs=train + retrain, **values)


def resume(folder: Path, network: nn.Module, method: Method, **values: Any) -> Learner:
    """Load the learner in a folder, or make a new one."""
    return Learner.load(folder, network) if folder.exists() else Learner(network, method, **values)


def teach(
    name: str, learner: Learner, tasks: Iterable[Task], recipe: Recipe | None, settings: dict[str, Any], folder: Path
) -> Row:
    """Teach a learner tasks one after another, and test each: these methods do not forget.

    It is saved in `folder` after every task, with checkpoints beside it, from which the same call resumes.
    """
    accuracy, size, seconds = {}, [], []
    checkpoint = folder.with_name(f"{folder.name}-checkpoint")
    for task in tasks:
        if task.name not in learner.tasks:
            learner.learn(task, recipe, checkpoint=checkpoint)
            learner.save(folder)
            shutil.rmtree(checkpoint)
        assert task.test is not None
        record = learner.records[task.name]
        accuracy[task.name] = learner.evaluate(task.test, task.name)
        size.append(record.size)
        seconds.append(sum(record.seconds.values()))
        line = f"{name}, seed {learner.seed}, {task.name}: {accuracy[task.name]:.2%}, size {size[-1]:.3f}, {seconds[-1]:.0f} s"
        print(line, file=sys.stderr, flush=True)
    return Row(name, learner.seed, accuracy, size, seconds, settings)
