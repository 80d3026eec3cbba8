"""Figures as plain descriptions, drawn by matplotlib: panels for the page, whole figures as SVG and PNG."""

from __future__ import annotations

import io
import math
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import ConfigError

# Colours for light and for dark pages; in a page's SVG they are variables, so that one drawing serves both.
INK, GRID = ("#1f2328", "#e6edf3"), ("#d1d9e0", "#3d444d")
COLOURS = (
    ("#0969da", "#58a6ff"),
    ("#bc4c00", "#f0883e"),
    ("#1a7f37", "#3fb950"),
    ("#8250df", "#bc8cff"),
    ("#cf222e", "#ff7b72"),
    ("#9a6700", "#d29922"),
    ("#0e8a8a", "#39c5cf"),
    ("#bf3989", "#f778ba"),
    ("#57606a", "#8b949e"),
    ("#5c3d1e", "#d8b48f"),
)
VARIABLES = {"ink": INK, "grid": GRID, **{f"c{number}": pair for number, pair in enumerate(COLOURS)}}
MARKERS, DASHES = "osD^vP", ("-", "--", ":", "-.")
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class Series:
    """Points with a text for each, which is shown when it is pointed at."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    tips: Sequence[str]
    look: int = 0  # which colour, marker and dashes
    kind: str = "line"  # "line", "points" or "bar"
    dashed: bool = False
    base: Sequence[float] = ()  # where bars begin
    spread: Sequence[float] = ()  # the standard deviation of each point, drawn as a band


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    xlabel: str
    ylabel: str
    series: Sequence[Series]
    whole: bool = False  # ticks along x at 1, 2, ...
    levels: Sequence[tuple[float, str]] = ()  # horizontal lines with what they mean
    percent: bool = False
    floor: float | None = None  # what the vertical axis must show
    logarithmic: bool = False  # along x
    saturating: bool = False  # a curve that approaches 1: x logarithmic, and y by how much is missing


@dataclass(frozen=True)
class Figure:
    """Panels that belong together, under a name for files."""

    name: str
    title: str
    panels: Sequence[Panel]

    @property
    def legend(self) -> dict[str, Series]:
        """What the panels' series are called, each once."""
        found: dict[str, Series] = {}
        for panel in self.panels:
            for series in panel.series:
                found.setdefault(series.label, series)
        return found


def printable(text: str) -> str:
    """Text with a mark in the place of characters that no file of text can hold: control characters, halves of others."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def check_installed() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError('The report needs matplotlib. Install it with: pip install "spacecl[report]"') from error


def inline(panel: Panel, name: str = "", mark: str = "") -> str:
    """A panel as SVG for a page: colours are the page's, points carry their texts, and it is as wide as there is room.

    `mark` makes its ids its own.
    """
    with _style():
        from matplotlib.figure import Figure as Canvas

        canvas = Canvas(figsize=(4.4, 2.9), layout="constrained")
        tips = _draw(canvas.add_subplot(), panel)
        return _page_svg(_as_svg(canvas, tips), panel.title or name, mark)


def save(figure: Figure, folder: Path) -> list[Path]:
    """A whole figure, with its legend, as SVG and as PNG."""
    with _style():
        from matplotlib.figure import Figure as Canvas

        count = len(figure.panels)
        wide = min(3, count)
        high = math.ceil(count / wide)
        keys = 3 if wide < 3 else 4
        rows = math.ceil(len(figure.legend) / keys)
        canvas = Canvas(figsize=(4.4 * wide, 2.9 * high + 0.2 * rows + 0.5), layout="constrained")
        axes = canvas.subplots(high, wide, squeeze=False).flatten()
        tips: dict[str, Sequence[str]] = {}
        for number, panel in enumerate(figure.panels):
            tips |= _draw(axes[number], panel, f"p{number}-")
        for rest in axes[count:]:
            rest.set_visible(False)
        handles = {text: handle for ax in axes for handle, text in zip(*ax.get_legend_handles_labels())}
        if len(handles) > 1:
            canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=keys, frameon=False)
        canvas.suptitle(printable(figure.title))
        files = [folder / f"{figure.name}.svg", folder / f"{figure.name}.png"]
        disk.write_file(files[0], ET.tostring(_as_svg(canvas, tips), encoding="unicode").encode())
        picture = io.BytesIO()
        canvas.savefig(picture, dpi=150, facecolor="white")
        disk.write_file(files[1], picture.getvalue())
    return files


def _draw(ax: Any, panel: Panel, prefix: str = "") -> dict[str, Sequence[str]]:
    """Draw a panel; return the texts of the points by the name of the mark that has them."""
    tips: dict[str, Sequence[str]] = {}
    for number, series in enumerate(map(_below_top, panel.series) if panel.saturating else panel.series):
        colour = _line(series)["color"]
        if series.kind == "bar":
            bars = ax.bar(series.x, series.y, 0.7, bottom=series.base or None, color=colour, label=_shown(series.label))
            for place, bar in enumerate(bars):
                bar.set_gid(f"{prefix}tip-{number}-{place}")
                tips[f"{prefix}tip-{number}-{place}"] = [series.tips[place]]
            continue
        thin: dict[str, Any] = {"markersize": 2.5, "linewidth": 1} if panel.saturating else {}
        (line,) = ax.plot(series.x, series.y, label=_shown(series.label), **_line(series), **thin)
        line.set_gid(f"{prefix}tip-{number}")
        tips[f"{prefix}tip-{number}"] = series.tips
        if any(series.spread):
            low, high = ([a + sign * b for a, b in zip(series.y, series.spread)] for sign in (-1, 1))
            ax.fill_between(series.x, low, high, color=colour, alpha=0.15, linewidth=0)
    for level, text in panel.levels:
        level = min(level, _TOP) if panel.saturating else level
        ax.axhline(level, color=INK[0], linestyle=":", linewidth=1)
        side, across = (0.01, "left") if panel.saturating else (1, "right")
        ax.annotate(text, (side, level), xycoords=("axes fraction", "data"), ha=across, va="bottom", fontsize=8)
    if panel.floor is not None:
        ax.set_ylim(bottom=panel.floor)
    if panel.logarithmic:
        from matplotlib.ticker import LogLocator, NullFormatter

        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
    if panel.saturating:
        _saturate(ax)
    if panel.whole:
        most = max(len(series.x) for series in panel.series)
        ax.set_xticks(range(1, most + 1, math.ceil(most / 10)))
    if panel.percent:
        ax.yaxis.set_major_formatter(lambda value, place: f"{100 * value:.4g} %")
    ax.set_title(printable(panel.title))
    ax.set_xlabel(panel.xlabel)
    ax.set_ylabel(panel.ylabel)
    return tips


def _shown(label: str) -> str:
    """A name for a legend; matplotlib leaves out what begins with an underscore."""
    label = printable(label)
    return f"\u200b{label}" if label.startswith("_") else label


_TOP = 0.9995  # of axes that saturate


def _below_top(series: Series) -> Series:
    """A curve up to where it leaves the axes; marks outside of them would not be drawn."""
    count = next((place for place, value in enumerate(series.y) if value >= _TOP), len(series.y))
    return replace(series, x=series.x[:count], y=series.y[:count], tips=series.tips[:count])


def _saturate(ax: Any) -> None:
    """Axes on which 0.9, 0.99 and 0.999 are as far from one another as 1, 10 and 100."""
    import numpy as np
    from matplotlib.ticker import NullLocator

    least = 1e-4
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xlim(left=-0.2)
    ax.set_xticks([tick for tick in (0, 1, 3, 10, 30, 100, 300, 1000, 3000) if tick <= ax.get_xlim()[1]])
    ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_yscale("function", functions=(lambda y: -np.log10(np.clip(1 - y, least, None)), lambda z: 1 - 10.0**-z))
    ax.set_ylim(0, _TOP)
    ax.set_yticks([0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999])


@contextmanager
def _style() -> Iterator[None]:
    check_installed()
    import matplotlib

    ink = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK[0])
    values: Any = {
        **ink,
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": GRID[0],
        "grid.linewidth": 0.7,
        "lines.linewidth": 1.6,
        "lines.markersize": 4.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "spacecl",
        "text.parse_math": False,
    }
    with matplotlib.rc_context(values), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # users name tasks in all the world's scripts
        yield


def _as_svg(canvas: Any, tips: dict[str, Sequence[str]]) -> ET.Element:
    """A drawing as SVG in which every point of a series has its text, as the title of its mark."""
    stream = io.StringIO()
    canvas.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _LINK)
    root = ET.fromstring(stream.getvalue())
    for group in root.iter(f"{{{_SVG}}}g"):
        texts = tips.get(group.get("id", ""))
        if texts is None:
            continue
        marks = [mark for mark in group.iter() if mark.tag == f"{{{_SVG}}}use"] or list(group.iter(f"{{{_SVG}}}path"))
        for mark, text in zip(marks, texts, strict=True):
            mark.set("class", "point")
            ET.SubElement(mark, f"{{{_SVG}}}title").text = printable(text)
    return root


def _page_svg(root: ET.Element, title: str, mark: str) -> str:
    """An SVG to stand in a page: ids of its own and only where they are needed, colours by name, any size."""
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    for data in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(data)
    root.set("role", "img")
    root.set("aria-label", printable(title))
    for element in root.iter():
        if re.fullmatch(r"[a-z0-9A-Z.]+_\d+|tip-[\d-]+", element.get("id", "")):
            element.attrib.pop("id")
    text = ET.tostring(root, encoding="unicode")
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{mark}", text)
    for name, (light, _) in VARIABLES.items():
        text = text.replace(light, f"var(--{name})")
    return text


def key(series: Series, mark: str) -> str:
    """How a series looks, as a small SVG for a page's legend; `mark` makes its ids its own."""
    with _style():
        from matplotlib.figure import Figure as Canvas
        from matplotlib.lines import Line2D
        from matplotlib.patches import Rectangle

        canvas = Canvas(figsize=(0.32, 0.14))
        if series.kind == "bar":
            canvas.add_artist(Rectangle((0.1, 0.1), 0.8, 0.8, color=_line(series)["color"]))
        else:
            canvas.add_artist(Line2D([0, 0.5, 1], [0.5] * 3, markevery=[1], **_line(series)))
        return _page_svg(_as_svg(canvas, {}), series.label, mark)


def _line(series: Series) -> dict[str, Any]:
    """Colour, dashes and marker of a series."""
    colour = COLOURS[series.look % len(COLOURS)][0]
    dashes = "--" if series.dashed else DASHES[series.look // len(COLOURS) % len(DASHES)]
    return {
        "color": colour,
        "linestyle": dashes if series.kind == "line" else "none",
        "marker": MARKERS[series.look % len(MARKERS)],
        "markerfacecolor": "none" if series.dashed else colour,
    }
