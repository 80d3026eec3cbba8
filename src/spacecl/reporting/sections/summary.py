"""The first section: the table that compares all arms, and the score against network size and against multiply-adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...progress import SHARES, format_score
from ...runs.result import Result
from ..arms import REFERENCES, Arm, Comparison
from ..figures import Figure, Panel, Series
from ..labels import title_method
from ..page import Section
from ..summary_table import explain_summary_table, make_summary_table
from ..text import capitalize


def make_summary_section(comparison: Comparison) -> Section:
    metric = comparison.metric
    figures = [
        _draw_frontier("frontier", "network size", comparison.arms, metric, lambda result: result["size"]),
        _draw_frontier("multiply-adds", "multiply-adds of an inference", comparison.arms, metric, _relative_multiply_adds),
    ]
    note = explain_summary_table(comparison)
    return Section("table", "Comparison", [note], figures, [make_summary_table(comparison)], tables_first=True)


def _draw_frontier(name: str, what: str, arms: Sequence[Arm], metric: str, value: Callable[[Result], float]) -> Figure:
    """The score against a cost: a point for each arm, a line through the arms of one family, and a level for each reference."""
    shown = [arm for arm in arms if arm.method not in REFERENCES] or list(arms)
    references = [arm for arm in arms if arm not in shown]
    families: dict[str, list[Arm]] = {}
    for arm in shown:
        families.setdefault(arm.family, []).append(arm)
    series = []
    for number, (family, members) in enumerate(families.items()):
        members = sorted(members, key=lambda arm: arm.mean(value) or 0.0)
        costs, scores = ([arm.mean(of) or 0.0 for arm in members] for of in (value, _get_score))
        spreads = [[arm.deviation(of) or 0.0 for arm in members] for of in (_get_score, value)]
        tips = [
            f"{arm.label}: {format_score(score, metric)} with {cost:.3f} of the {what.replace('network size', 'network')}"
            for arm, cost, score in zip(members, costs, scores)
        ]
        look = members[0].look if len(families) == len(shown) else number
        kind = "line" if len(members) > 1 else "points"
        series.append(Series(family, costs, scores, tips, look, kind, spread=spreads[0], spread_x=spreads[1]))
    levels = [(arm.mean(_get_score) or 0.0, title_method(arm.method)) for arm in references]
    label = f"{what}, relative (logarithmic)"
    panel = Panel("", label, metric, series, levels=levels, percent=metric in SHARES, logarithmic=True)
    return Figure(name, f"{capitalize(metric)} against {what}", [panel])


def _relative_multiply_adds(result: Result) -> float:
    """The multiply-adds of a task's network over those of the full one, as a mean over tasks."""
    tasks = result["tasks"]
    return sum(task["multiply_adds"] for task in tasks) / len(tasks) / result["network"]["multiply_adds"]


def _get_score(result: Result) -> float:
    return result["average_score"]
