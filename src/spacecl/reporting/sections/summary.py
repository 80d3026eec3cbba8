"""The first section: the table that compares all arms, and the score against network size."""

from __future__ import annotations

from collections.abc import Sequence

from ...progress import SHARES, format_score
from ...runs.result import Result
from ..arms import Arm, Comparison
from ..figures import Figure, Panel, Series
from ..page import Section
from ..summary_table import explain_summary_table, make_summary_table
from ..text import capitalize


def make_summary_section(comparison: Comparison) -> Section:
    return Section(
        "table",
        "Comparison",
        [explain_summary_table(comparison)],
        [_draw_frontier(sorted(comparison.arms, key=lambda arm: arm.look), comparison.metric)],
        [make_summary_table(comparison)],
        tables_first=True,
    )


def _draw_frontier(arms: Sequence[Arm], metric: str) -> Figure:
    """The score against size: a point for each arm, a line through the arms of one family."""
    families: dict[str, list[tuple[float, float, str]]] = {}
    for arm in arms:
        size, score = arm.mean(_get_size) or 0.0, arm.mean(_get_score) or 0.0
        tip = f"{arm.label}: {format_score(score, metric)} with {size:.3f} of the network"
        families.setdefault(arm.family, []).append((size, score, tip))
    series = []
    for number, (family, points) in enumerate(families.items()):
        sizes, scores, tips = zip(*sorted(points, key=lambda point: point[0]))
        series.append(Series(family, sizes, scores, tips, number, "line" if len(points) > 1 else "points"))
    panel = Panel("", "network size", metric, series, percent=metric in SHARES, logarithmic=True)
    return Figure("frontier", f"{capitalize(metric)} against network size", [panel])


def _get_size(result: Result) -> float:
    return result["size"]


def _get_score(result: Result) -> float:
    return result["average_score"]
