"""Checks of what tasks predict: a method learns every kind of targets that it says it learns, and keeps its promises there."""

from __future__ import annotations

from pathlib import Path

import torch

from ..data.targets import TARGET_KINDS, TargetKind
from ..data.task import Task
from ..learning.recipe import Recipe
from .models import FAMILIES, make_targets
from .subject import NotApplicableError, SimulatedCrash, Subject, require

RECIPE = Recipe(epochs=12, retrain_epochs=6, lr=0.01)
LEAST = {"labels": 0.7, "values": 0.2}  # mean average precision, of which guessing has 0.5, and R², of which the mean has 0


def check_targets(subject: Subject, folder: Path, kind: TargetKind) -> None:
    """Learn two tasks of a kind: better than by guessing, to the same bits after a crash, and as `forgets` says."""
    claimed = subject.kind.target_kinds
    unknown = [name for name in claimed if name not in TARGET_KINDS]
    require(not unknown, f"target_kinds has {', '.join(map(repr, unknown))}; there are {', '.join(TARGET_KINDS)}")
    if kind not in claimed:
        raise NotApplicableError(f"target_kinds does not have {kind}")
    family = FAMILIES["chain"]
    first, second = make_targets(family.example, kind)
    x, learner = first[0], subject.begin(family)
    record = learner.learn(Task("0", first), RECIPE)
    score = learner.evaluate(first, "0")
    require(
        score >= LEAST[kind],
        f"after {RECIPE.epochs} epochs, the {record.metric} of a task of {kind} is {score:.2f} on its own training data, and "
        f"{LEAST[kind]} is easy to reach. Use the task's own loss, task.loss(module, x, y), and no other, or take {kind} out "
        "of target_kinds",
    )
    learner.save(folder / "saved")
    before = learner.logits(x, "0")
    learner.learn(Task("1", second), RECIPE)
    forgets = subject.kind.forgets
    same = torch.equal(learner.logits(x, "0"), before)
    require(same or forgets, f"a second task of {kind} changed the outputs of the first, but forgets is False")
    for task in learner.tasks:
        with torch.no_grad():
            outputs = learner.subnet(task)(x)
        require(
            torch.equal(outputs, learner.logits(x, task)), f"the network of a task of {kind} has other outputs than the learner"
        )

    def stop(_: object) -> None:
        raise SimulatedCrash

    try:
        subject.load(folder / "saved", family, [first]).learn(
            Task("1", second), RECIPE, checkpoint=folder / "kept", on_epoch=stop
        )
    except SimulatedCrash:
        again = subject.load(folder / "saved", family, [first])
        again.learn(Task("1", second), RECIPE, checkpoint=folder / "kept")
        require(again.verify() == learner.verify(), f"after a crash, a second task of {kind} ended with other bits")
