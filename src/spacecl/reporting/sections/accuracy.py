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
    title = f"{capitalize(metric)} over incrementally learned tasks"
    figure = _draw_scores("accuracy" if metric == ACCURACY else "mean-score", title, arms, "all tasks", _average_so_far, metric)
    note = f"{split} {metric}, mean over all tasks learned so far (the paper's Figure 4)."
    tables = [*make_value_tables([figure]), *([_make_task_table(arms)] if metric == MIXED else [])]
    return Section("accuracy", f"{capitalize(metric)} as tasks are learned", [note], [figure], tables)


def make_forgetting_section(arms: Sequence[Arm], split: str) -> Section:
    metric = name_metric(result["tasks"][0]["metric"] for arm in arms for result in arm.results)
    title = f"{capitalize(metric)} of the first task as tasks are added"
    figure = _draw_scores("first-task", title, arms, "the first task", _get_first, metric)
    note = f"{split} {metric} of the first task as more tasks are learned. A method that does not forget draws a level line."
    return Section("forgetting", "Forgetting of the first task", [note], [figure], make_value_tables([figure]))


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
