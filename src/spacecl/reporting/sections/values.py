"""Figures' values as tables, for readers who cannot point at marks, and for programs."""

from __future__ import annotations

from collections.abc import Sequence

from ..figures import Figure
from ..page import Table


def make_value_tables(figures: Sequence[Figure]) -> list[Table]:
    """A folded table for each figure: a row for each series, a column for each point."""
    return [_make_value_table(figure) for figure in figures]


def _make_value_table(figure: Figure) -> Table:
    count = max((len(series.x) for panel in figure.panels for series in panel.series), default=0)
    rows = []
    for panel in figure.panels:
        for series in panel.series:
            values = [f"{100 * y:.2f} %" if panel.percent else f"{y:.4g}" for y in series.y]
            rows.append([series.label, *([panel.title] if panel.title else []), *values, *[""] * (count - len(values))])
    titles = ["series", *(["layer"] if any(panel.title for panel in figure.panels) else [])]
    caption = figure.name.replace("-", " ")
    return Table(figure.name, caption, [*titles, *map(str, range(1, count + 1))], rows, folded=True)
