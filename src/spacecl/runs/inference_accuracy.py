"""How well a learner recognises tasks that are not named, on the test data of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..data.task import Task
from ..data.task_data import open_data
from ..learner import Learner
from ..structure.calling import select_rows
from .result import InferenceRates, TaskInference

BATCH_ROWS = 64  # rows of one task that are recognised together
MEASURES = ("identified", "accuracy", "refused")


def evaluate_inference(learner: Learner, tasks: Sequence[Task]) -> dict[str, dict[str, InferenceRates]]:
    """For every task, how often its test data are recognised as its own, and labelled correctly, when it is not named.

    Rows are recognised one by one (`row`), and in batches whose rows are known to be of one task (`batch`). `refused` is the
    share that `identify` would take for inputs of no task; the other shares use the likeliest task in any case. The result is
    empty for a learner with tasks that have no signature. Tasks that do not predict classes have no accuracy here.
    """
    names = list(learner.tasks)
    if not all(map(learner.has_signature, names)):
        return {}
    return {task.name: _evaluate_task(learner, task, number, names) for number, task in enumerate(tasks)}


def _evaluate_task(learner: Learner, task: Task, number: int, names: Sequence[str]) -> dict[str, InferenceRates]:
    data, total = open_data(task, "test"), 0
    is_accuracy = learner.records[task.name].accuracy is not None
    counts = {how: dict.fromkeys(MEASURES, 0) for how in ("row", "batch")}
    for x, y in data.batches(BATCH_ROWS):
        x = data.finish(x)
        scores = learner.task_scores(x)
        accepted = torch.stack([learner.accepts(x, name) for name in names], 1).any(1)
        counts["row"]["refused"] += int((~accepted).sum())
        counts["batch"]["refused"] += 0 if 2 * int(accepted.sum()) >= len(y) else len(y)
        choices = {"row": scores.argmax(1), "batch": scores.sum(0).argmax().expand(len(y))}
        for how, chosen in choices.items():
            is_own = chosen == number
            counts[how]["identified"] += int(is_own.sum())
            if is_accuracy and bool(is_own.any()):
                labels = learner.predict(select_rows(x, is_own), task.name)
                counts[how]["accuracy"] += int((labels.cpu() == y[is_own]).sum())
        total += len(y)
    rates: dict[str, Any] = {how: {name: count / total for name, count in row.items()} for how, row in counts.items()}
    for row in rates.values() if not is_accuracy else ():
        row["accuracy"] = None
    return rates


def average_accuracies(tasks: Sequence[dict[str, InferenceRates]]) -> TaskInference | None:
    """The means over all tasks; None where nothing was evaluated."""
    if not tasks:
        return None

    def average(how: str) -> InferenceRates:
        means: Any = {}
        for name in MEASURES:
            known = [value for task in tasks if (value := task[how][name]) is not None]  # type: ignore[literal-required]
            means[name] = sum(known) / len(known) if known else None
        return means

    return {"row": average("row"), "batch": average("batch"), "together": BATCH_ROWS}
