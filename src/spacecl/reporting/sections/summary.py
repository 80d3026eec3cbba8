"""The first section: the table that compares all arms, and accuracy against network size."""

from __future__ import annotations

from collections.abc import Sequence

from ...runs.result import Result
from ..arms import Arm, Comparison
from ..figures import Figure, Panel, Series
from ..page import Section
from ..summary_table import explain_summary_table, make_summary_table


def make_summary_section(comparison: Comparison) -> Section:
    return Section(
        "table",
        "Comparison",
        [explain_summary_table(comparison)],
        [_draw_frontier(sorted(comparison.arms, key=lambda arm: arm.look))],
        [make_summary_table(comparison.arms)],
        tables_first=True,
    )


def _draw_frontier(arms: Sequence[Arm]) -> Figure:
    """Accuracy against size: a point for each arm, a line through the arms of one family."""
    families: dict[str, list[tuple[float, float, str]]] = {}
    for arm in arms:
        size, accuracy = arm.mean(_get_size) or 0.0, arm.mean(_get_accuracy) or 0.0
        tip = f"{arm.label}: {accuracy:.2%} with {size:.3f} of the network"
        families.setdefault(arm.family, []).append((size, accuracy, tip))
    series = []
    for number, (family, points) in enumerate(families.items()):
        sizes, accuracies, tips = zip(*sorted(points, key=lambda point: point[0]))
        series.append(Series(family, sizes, accuracies, tips, number, "line" if len(points) > 1 else "points"))
    panel = Panel("", "network size", "accuracy", series, percent=True, logarithmic=True)
    return Figure("frontier", "Accuracy against network size", [panel])


def _get_size(result: Result) -> float:
    return result["size"]


def _get_accuracy(result: Result) -> float:
    return result["average_accuracy"]
