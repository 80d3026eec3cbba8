"""Accuracy as tasks are learned: the mean over all tasks so far, and that of the first task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...runs.result import Result
from ..arms import Arm
from ..figures import Figure, Panel, Series
from ..page import Section
from .values import make_value_tables


def make_accuracy_section(arms: Sequence[Arm], split: str) -> Section:
    figure = _draw_accuracies("accuracy", "Accuracy over incrementally learned tasks", arms, "all tasks", _average_so_far)
    note = f"{split} accuracy, mean over all tasks learned so far (the paper's Figure 4)."
    return Section("accuracy", "Accuracy as tasks are learned", [note], [figure], make_value_tables([figure]))


def make_forgetting_section(arms: Sequence[Arm], split: str) -> Section:
    title = "Accuracy of the first task as tasks are added"
    figure = _draw_accuracies("first-task", title, arms, "the first task", _get_first)
    note = f"{split} accuracy of the first task as more tasks are learned. A method that does not forget draws a level line."
    return Section("forgetting", "Forgetting of the first task", [note], [figure], make_value_tables([figure]))


def _draw_accuracies(
    name: str, title: str, arms: Sequence[Arm], subject: str, value: Callable[[Result, int], float | None]
) -> Figure:
    series = []
    for arm in arms:
        means, deviations = arm.mean_by_task(value), arm.deviation_by_task(value)
        endings = [f" ± {deviation:.2%}" for deviation in deviations] or [""] * len(means)
        tips = [
            f"{arm.label}, {subject} after {n}: {mean:.2%}{ending}" for n, (mean, ending) in enumerate(zip(means, endings), 1)
        ]
        series.append(Series(arm.label, range(1, len(means) + 1), means, tips, arm.look, spread=deviations))
    return Figure(name, title, [Panel("", "tasks learned", "accuracy", series, integer_ticks=True, percent=True)])


def _average_so_far(result: Result, task: int) -> float:
    accuracies = [value for value in result["accuracy_matrix"][task] if value is not None]
    return sum(accuracies) / len(accuracies)


def _get_first(result: Result, task: int) -> float | None:
    return result["accuracy_matrix"][task][0]
