"""Scores as tasks are learned: the mean over all tasks so far, and that of the first task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...learning.metrics import ACCURACY
from ...progress import SHARES, format_score
from ...runs.metrics import MIXED, name_metric
from ...runs.result import Result
from ..arms import Arm
from ..figures import Figure, Panel, Series
from ..page import Section, Table
from ..text import capitalize
from .values import make_value_tables


def make_accuracy_section(arms: Sequence[Arm], split: str, metric: str) -> Section:
    name, title = "accuracy" if metric == ACCURACY else "mean-score", f"{capitalize(metric)} over all tasks learned so far"
    first = name_metric(result["tasks"][0]["metric"] for arm in arms for result in arm.results)
    figures = [
        _draw_scores(name, title, arms, "all tasks", _average_so_far, metric),
        _draw_scores("first-task", f"{capitalize(first)} of the first task", arms, "the first task", _get_first, first),
    ]
    note = (
        f"{split} data. The first figure is the mean over all tasks learned so far (the paper's Figure 4). The second shows "
        "the first task alone as more tasks are learned: a method that does not forget draws a level line."
    )
    tables = [*make_value_tables(figures), *([_make_task_table(arms)] if metric == MIXED else [])]
    return Section("accuracy", f"{capitalize(metric)} as tasks are learned", [note], figures, tables)


def make_matrix_section(arms: Sequence[Arm], split: str, metric: str) -> Section:
    """A heat map for every arm: the score of each task after each task."""
    matrices = {arm.label: _average_matrix(arm) for arm in arms}
    values = [value for matrix in matrices.values() for row in matrix for value in row if value is not None]
    low, high = min(values), max(values)
    panels = []
    for label, matrix in matrices.items():
        cells = [(x, y, value) for y, row in enumerate(matrix, 1) for x, value in enumerate(row, 1) if value is not None]
        columns, rows, scores = zip(*cells)
        tips = [f"{label}, task {x} after task {y}: {format_score(value, metric)}" for x, y, value in cells]
        digits = [f"{100 * value:.0f}" if metric in SHARES else f"{value:.2f}" for value in scores]
        shades = [(value - low) / (high - low) if high > low else 1.0 for value in scores]
        series = Series(metric, columns, rows, tips, 0, "cell", shades=shades, texts=digits)
        panels.append(Panel(label, "task", "after task", [series], integer_ticks=True, downwards=True))
    note = (
        f"{split} {metric} of each task (columns) after each task was learned (rows), as a mean over seeds. Darker is better; "
        "the scale is the same for all methods. A column that fades from top to bottom is a task that is forgotten."
    )
    figure = Figure("matrix", f"{capitalize(metric)} of every task after every task", panels, folded=True)
    return Section("matrix", f"{capitalize(metric)} of every task", [note], [figure])


def _average_matrix(arm: Arm) -> list[list[float | None]]:
    def get(row: int, column: int) -> Callable[[Result], float | None]:
        return lambda result: result["score_matrix"][row][column]

    return [[arm.mean(get(row, column)) for column in range(len(arm.tasks))] for row in range(len(arm.tasks))]


def _draw_scores(
    name: str, title: str, arms: Sequence[Arm], subject: str, value: Callable[[Result, int], float | None], metric: str
) -> Figure:
    series = []
    for arm in arms:
        means, deviations = arm.mean_by_task(value), arm.deviation_by_task(value)
        endings = [f" ± {format_score(deviation, metric)}" for deviation in deviations] or [""] * len(means)
        tips = [
            f"{arm.label}, {subject} after {n}: {format_score(mean, metric)}{ending}"
            for n, (mean, ending) in enumerate(zip(means, endings), 1)
        ]
        series.append(Series(arm.label, range(1, len(means) + 1), means, tips, arm.look, spread=deviations))
    return Figure(name, title, [Panel("", "tasks learned", metric, series, integer_ticks=True, percent=metric in SHARES)])


def _make_task_table(arms: Sequence[Arm]) -> Table:
    """The score of every task at the end, by the metric of each: a mean over several says little."""
    titles = [f"{name}: {task['metric']}" for name, task in zip(arms[0].tasks, arms[0].results[0]["tasks"])]
    rows = [
        [arm.label, *(format_score(score, task["metric"]) for score, task in zip(scores, arm.results[0]["tasks"]))]
        for arm, scores in ((arm, arm.mean_by_task(lambda result, n: result["tasks"][n]["score"])) for arm in arms)
    ]
    return Table("scores", "scores by task", ["series", *titles], rows)


def _average_so_far(result: Result, task: int) -> float:
    scores = [value for value in result["score_matrix"][task] if value is not None]
    return sum(scores) / len(scores)


def _get_first(result: Result, task: int) -> float | None:
    return result["score_matrix"][task][0]
