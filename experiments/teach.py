"""What the scripts with pretrained networks share: methods and recipes from the command line, and teaching a learner tasks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rows import Row

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


def teach(name: str, learner: Learner, tasks: Iterable[Task], recipe: Recipe | None, settings: dict[str, Any]) -> Row:
    """Teach a learner tasks one after another, and test each when it is learned. These methods do not forget."""
    accuracy, size, seconds = {}, [], []
    for task in tasks:
        started = time.perf_counter()
        learner.learn(task, recipe) if recipe is not None else learner.learn(task)
        assert task.test is not None
        accuracy[task.name] = learner.evaluate(task.test, task.name)
        size.append(learner.size)
        seconds.append(time.perf_counter() - started)
        line = f"{name}, seed {learner.seed}, {task.name}: {accuracy[task.name]:.2%}, size {size[-1]:.3f}, {seconds[-1]:.0f} s"
        print(line, file=sys.stderr, flush=True)
    return Row(name, learner.seed, accuracy, size, seconds, settings)
