"""Figures as plain descriptions; `drawing` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from ..errors import ConfigError


@dataclass(frozen=True)
class Series:
    """Points of one colour, each with a text that the page shows when the pointer is near."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    tips: Sequence[str]
    look: int = 0  # number of its colour, marker and dashes
    kind: str = "line"  # "line", "points", "bar" or "cell"
    dashed: bool = False
    base: Sequence[float] = ()  # where bars begin
    spread: Sequence[float] = ()  # standard deviation of each point, drawn as a band around a line
    spread_x: Sequence[float] = ()  # the same along x; both are drawn as error bars then
    shades: Sequence[float] = ()  # how dark cells are, from 0 to 1
    texts: Sequence[str] = ()  # in cells


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    xlabel: str
    ylabel: str
    series: Sequence[Series]
    integer_ticks: bool = False  # ticks along x at 1, 2, ...
    levels: Sequence[tuple[float, str]] = ()  # horizontal lines with their texts
    percent: bool = False
    floor: float | None = None  # lowest value of the vertical axis
    logarithmic: bool = False  # along x
    downwards: bool = False  # whether the vertical axis has its lowest value at the top, and a tick at 1, 2, ...
    saturating: bool = False  # for curves that approach 1: x is logarithmic, and so is the distance of y from 1


@dataclass(frozen=True)
class Figure:
    """Panels with one legend, under a name for files."""

    name: str
    title: str
    panels: Sequence[Panel]
    folded: bool = False  # the page shows it when the reader opens it

    @property
    def legend(self) -> dict[str, Series]:
        """The first series of each label."""
        legend: dict[str, Series] = {}
        for panel in self.panels:
            for series in panel.series:
                legend.setdefault(series.label, series)
        return legend

    @property
    def spread_note(self) -> str:
        """What bands and error bars show; empty if there are none."""
        series = [series for panel in self.panels for series in panel.series]
        marks = ["Bars"] if any(any(entry.spread_x) or (entry.spread_x and any(entry.spread)) for entry in series) else []
        marks += ["Shaded bands"] if any(any(entry.spread) and not entry.spread_x for entry in series) else []
        return f"{' and '.join(marks)}: ± one standard deviation over seeds." if marks else ""


def check_installed() -> None:
    """Raise ConfigError unless the libraries that draw figures and render the page are installed."""
    missing = [name for name, module in (("matplotlib", "matplotlib"), ("Jinja2", "jinja2")) if find_spec(module) is None]
    if missing:
        raise ConfigError(f'The report needs {" and ".join(missing)}. Install with: pip install "spacecl[report]"')
