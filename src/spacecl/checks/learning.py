"""Checks of learning: a method commits what it trained, repeats itself to the bit, and forgets only if it says so."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ..data.task import Task
from ..learning.recipe import Recipe
from ..structure.memory_format import to_memory_format
from .models import FAMILIES, Family, make_tasks
from .subject import QUICK, CheckError, NotApplicableError, SimulatedCrash, Subject, require

_RANDOM = "Everything random must come from torch's generators, and nothing may depend on time or on what ran before."


def check_learning(subject: Subject, family: Family, folder: Path) -> None:
    """Learn three tasks, predict, save and load; the same seed gives the same bits."""
    learner, stream = subject.teach(family), make_tasks(family.example)
    x = stream[0][0]
    for task in learner.tasks:
        labels = learner.predict(x, task)
        require(
            labels.shape == (len(x),) and 0 <= int(labels.min()) <= int(labels.max()) < 3,
            f"the labels of task {task} have the shape {tuple(labels.shape)} and reach {int(labels.max())}; "
            f"a label from 0 to 2 is expected for each of {len(x)} inputs",
        )
    digests = learner.verify()
    learner.save(folder)
    loaded = subject.load(folder, family)
    for task in learner.tasks:
        same = torch.equal(loaded.logits(x, task), learner.logits(x, task))
        require(same, f"after saving and loading, task {task} has other outputs")
    for name in ("size", "storage", "method"):
        before, after = getattr(learner, name), getattr(loaded, name)
        require(before == after, f"learner.{name} was {before} and is {after} after saving and loading")
    again = subject.begin(family)
    for number, data in enumerate(stream):
        again.learn(Task(str(number), data), QUICK)
    require(again.verify() == digests, f"the same seed gave other bits. {_RANDOM}")
    require(again.storage == learner.storage, f"the same seed gave another storage: {learner.storage} and {again.storage}")


def check_resuming(subject: Subject, family: Family, folder: Path) -> None:
    """Crash in every epoch of the third task; a learner that is loaded from disk goes on to the same bits."""
    undisturbed, stream = subject.teach(family), make_tasks(family.example)
    before = subject.teach(family, 2)
    before.save(folder / "saved")
    epochs = sum(before.method.plan(QUICK, 2).values())
    third = Task("2", stream[2])
    for crash in range(1, epochs + 1):
        learner, finished = subject.load(folder / "saved", family, stream[:2]), 0

        def stop(_: object, crash: int = crash) -> None:
            nonlocal finished
            finished += 1
            if finished == crash:
                raise SimulatedCrash

        try:
            learner.learn(third, QUICK, checkpoint=folder / "kept", on_epoch=stop)
        except SimulatedCrash:
            require(learner.tasks == ("0", "1"), "an interrupted step changed the learner")
        else:
            raise CheckError(f"plan() promises {epochs} epochs of a third task, and {finished} were trained")
    learner = subject.load(folder / "saved", family, stream[:2])
    record = learner.learn(third, QUICK, checkpoint=folder / "kept")
    require(
        learner.verify() == undisturbed.verify(),
        "after crashes, the same task ended with other bits. What learn() does between two calls of fit() must follow from its "
        "arguments, the trained module and torch's generators; phases of one task need different names",
    )
    count = len(record.history)
    require(count == epochs, f"plan() promises {epochs} epochs of a third task, and its history has {count}")


def check_networks(subject: Subject, family: Family, folder: Path) -> None:
    """Teach a model two tasks; the small network of each has the learner's outputs, to the bit."""
    learner, stream = subject.begin(family), make_tasks(family.example, 2)
    for number, data in enumerate(stream):
        learner.learn(Task(str(number), data), Recipe(epochs=1, retrain_epochs=1))
    x = stream[0][0][:7]
    for task in learner.tasks:
        with torch.no_grad():
            outputs = learner.subnet(task)(to_memory_format(x, learner.channels_last))
        require(torch.equal(outputs, learner.logits(x, task)), f"the network of task {task} has other outputs than the learner")


def check_forgetting(subject: Subject, folder: Path) -> None:
    """The outputs of an earlier task change if the method says that it forgets, and only then."""
    family = FAMILIES["convnet"]
    first, second, _ = make_tasks(family.example)
    learner = subject.teach(family, 1)
    before = learner.logits(first[0], "0")
    learner.learn(Task("1", second), QUICK)  # refuses a method that changes networks and does not say so
    changed, forgets = not torch.equal(learner.logits(first[0], "0"), before), subject.kind.forgets
    require(forgets or not changed, "a second task changed the outputs of the first, but forgets is False")
    require(
        changed or not forgets, "a second task did not change the outputs of the first, but forgets is True. Set it to False"
    )


def check_protection(subject: Subject, folder: Path, optimizer: Literal["sgd", "adamw"]) -> None:
    """Momentum, weight decay and running statistics do not touch earlier tasks either."""
    if subject.kind.forgets:
        raise NotApplicableError("the method says that it forgets")
    family = FAMILIES["resnet"]
    learner, stream = subject.begin(family), make_tasks(family.example)
    recipe = Recipe(epochs=2, retrain_epochs=1, optimizer=optimizer, lr=0.01, weight_decay=0.1, keep="last")
    outputs = {}
    for number, data in enumerate(stream):
        learner.learn(Task(str(number), data), recipe)
        outputs[str(number)] = learner.logits(stream[0][0], str(number))
        for task, logits in outputs.items():
            same = torch.equal(learner.logits(stream[0][0], task), logits)
            require(same, f"learning task {number} with {optimizer} changed the outputs of task {task}")


def check_commit(subject: Subject, folder: Path, tolerance: float = 0.02, **options: object) -> None:
    """The committed network is as accurate as the epoch that was chosen, though a coarse optimizer pulls at all weights."""
    family = FAMILIES["convnet"]
    learner = subject.begin(family, **options)
    recipe = Recipe(epochs=4, retrain_epochs=2, optimizer="sgd", lr=0.1, weight_decay=0.01)
    for number, (x, y) in enumerate(make_tasks(family.example, examples=1000)):
        record = learner.learn(Task(str(number), (x[:300], y[:300]), valid=(x[300:], y[300:])), recipe)
        if subject.kind.needs_data and number:
            continue  # its epoch is chosen on the data of all tasks
        require(bool(record.history), "learn() returned no history. Return what fit() returns")
        last = record.history[-1]["phase"]
        best = max(row["score"] for row in record.history if row["phase"] == last)
        require(
            abs(record.score - best) <= tolerance + 1e-9,
            f"task {number} reached {best:.1%} on validation data in training, and its committed network has "
            f"{record.score:.1%}. Commit the tensors of the module that was trained",
        )


def check_inputs(subject: Subject, folder: Path) -> None:
    """Models in double precision, frozen layers, and options that are numbers of NumPy; the user's model stays as it was."""
    family = FAMILIES["chain"]
    first, second, _ = make_tasks(family.example)
    double = family._replace(example=family.example.double())
    learner = subject.make_learner(family.make().double(), double)
    for number, (x, y) in enumerate((first, second)):
        learner.learn(Task(str(number), (x.double(), y)), QUICK)
    dtype = learner.logits(first[0].double(), "0").dtype
    require(dtype == torch.float64, f"a model in double precision has outputs of type {dtype}")
    model = family.make()
    layers = list(model.children())
    for parameter in [*layers[0].parameters(), *layers[2].parameters()]:
        parameter.requires_grad_(False)
    given = [p.detach().clone() for p in model.parameters()]
    options = {f.name: np.float32(f.default) for f in fields(subject.kind) if type(f.default) is float}
    learner = subject.make_learner(model, family, **options)
    learner.learn(Task("0", first), QUICK)
    learner.learn(Task("1", second), QUICK, checkpoint=folder / "kept")
    learner.save(folder / "saved")
    same = all(torch.equal(a, b) for a, b in zip(given, model.parameters()))
    require(same, "the user's own model was changed. Build modules with core.blueprint.build()")
    if learner.records["1"].widths == learner.widths:  # otherwise it is narrower
        weight = next(learner.subnet("1").parameters())
        require(torch.equal(weight, given[0]), "a layer that the user froze was trained")
