"""Draw figures with matplotlib: single panels as SVG for the page, figures with their legend as SVG and PNG files."""

from __future__ import annotations

import io
import math
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import disk
from .figures import Figure, Panel, Series, check_installed
from .text import to_printable

# Colours on light and on dark pages. In the page's SVG they are CSS variables, so that one drawing serves both.
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
COLOUR_VARIABLES = {"ink": INK, "grid": GRID, **{f"c{number}": pair for number, pair in enumerate(COLOURS)}}
MARKERS, DASHES = "osD^vP", ("-", "--", ":", "-.")
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def draw_panel(panel: Panel, name: str = "", id_prefix: str = "") -> str:
    """Draw a panel as SVG for the page, as wide as the page allows, with the page's colours and a text at every point.

    `name` describes a panel without a title to screen readers; `id_prefix` keeps its ids apart from other drawings'.
    """
    with _use_style():
        from matplotlib.figure import Figure as Canvas

        canvas = Canvas(figsize=(4.4, 2.9), layout="constrained")
        tips = _draw(canvas.add_subplot(), panel)
        return _to_inline_svg(_to_svg(canvas, tips), panel.title or name, id_prefix)


def save_figure(figure: Figure, folder: Path) -> list[Path]:
    """Write a figure with its legend as SVG and as PNG, and return the two files."""
    with _use_style():
        from matplotlib.figure import Figure as Canvas

        count = len(figure.panels)
        columns = min(3, count)
        rows = math.ceil(count / columns)
        legend_columns = 3 if columns < 3 else 4
        legend_rows = math.ceil(len(figure.legend) / legend_columns)
        canvas = Canvas(figsize=(4.4 * columns, 2.9 * rows + 0.2 * legend_rows + 0.5), layout="constrained")
        axes = canvas.subplots(rows, columns, squeeze=False).flatten()
        tips: dict[str, Sequence[str]] = {}
        for number, panel in enumerate(figure.panels):
            tips |= _draw(axes[number], panel, f"p{number}-")
        for unused in axes[count:]:
            unused.set_visible(False)
        handles = {text: handle for ax in axes for handle, text in zip(*ax.get_legend_handles_labels())}
        if len(handles) > 1:
            canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=legend_columns, frameon=False)
        canvas.suptitle(to_printable(figure.title))
        files = [folder / f"{figure.name}.svg", folder / f"{figure.name}.png"]
        disk.write_file(files[0], ET.tostring(_to_svg(canvas, tips), encoding="unicode").encode())
        png = io.BytesIO()
        canvas.savefig(png, dpi=150, facecolor="white")
        disk.write_file(files[1], png.getvalue())
    return files


def _draw(ax: Any, panel: Panel, prefix: str = "") -> dict[str, Sequence[str]]:
    """Draw a panel on a pair of axes and return the texts of its points by the id of their group in the SVG."""
    tips: dict[str, Sequence[str]] = {}
    for number, series in enumerate(map(_cut_at_top, panel.series) if panel.saturating else panel.series):
        colour, label = _line_style(series)["color"], _to_legend_text(series.label)
        if series.kind == "bar":
            bars = ax.bar(series.x, series.y, 0.7, bottom=series.base or None, color=colour, label=label)
            for place, bar in enumerate(bars):
                bar.set_gid(f"{prefix}tip-{number}-{place}")
                tips[f"{prefix}tip-{number}-{place}"] = [series.tips[place]]
            continue
        if series.kind == "cell":
            for place, (x, y, shade) in enumerate(zip(series.x, series.y, series.shades)):
                cell = ax.add_patch(_make_cell(x, y, colour, shade))
                cell.set_gid(f"{prefix}tip-{number}-{place}")
                tips[f"{prefix}tip-{number}-{place}"] = [series.tips[place]]
                ax.annotate(series.texts[place], (x, y), ha="center", va="center", fontsize=7)
            continue
        thin_style: dict[str, Any] = {"markersize": 2.5, "linewidth": 1} if panel.saturating else {}
        (line,) = ax.plot(series.x, series.y, label=label, **_line_style(series), **thin_style)
        line.set_gid(f"{prefix}tip-{number}")
        tips[f"{prefix}tip-{number}"] = series.tips
        if series.spread_x:
            ax.errorbar(
                series.x,
                series.y,
                series.spread,
                series.spread_x,
                fmt="none",
                ecolor=colour,
                elinewidth=1,
                capsize=2,
            )
        elif any(series.spread):
            low, high = ([a + sign * b for a, b in zip(series.y, series.spread)] for sign in (-1, 1))
            ax.fill_between(series.x, low, high, color=colour, alpha=0.15, linewidth=0)
    levels = [(min(level, _TOP) if panel.saturating else level, text) for level, text in panel.levels]
    for level, _ in levels:
        ax.axhline(level, color=INK[0], linestyle=":", linewidth=1)
    for level, text in _join_near(levels, _NEAR * (ax.get_ylim()[1] - ax.get_ylim()[0])):
        x, align = (0.01, "left") if panel.saturating else (1, "right")
        ax.annotate(text, (x, level), xycoords=("axes fraction", "data"), ha=align, va="bottom", fontsize=8)
    if panel.floor is not None:
        ax.set_ylim(bottom=panel.floor)
    if panel.logarithmic:
        from matplotlib.ticker import LogLocator, NullFormatter

        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
    if panel.saturating:
        _set_saturating_scales(ax)
    if panel.downwards:
        rows = max(int(max(series.y)) for series in panel.series)
        ax.set_ylim(rows + 0.5, 0.5)
        ax.set_xlim(0.5, max(int(max(series.x)) for series in panel.series) + 0.5)
        ax.set_yticks(range(1, rows + 1, math.ceil(rows / 10)))
        ax.grid(visible=False)
    if panel.integer_ticks:
        most = max(len(set(series.x)) for series in panel.series)
        ax.set_xticks(range(1, most + 1, math.ceil(most / 10)))
    if panel.percent:
        ax.yaxis.set_major_formatter(lambda value, place: f"{100 * value:.4g} %")
    ax.set_title(to_printable(panel.title))
    ax.set_xlabel(panel.xlabel)
    ax.set_ylabel(panel.ylabel)
    return tips


def _make_cell(x: float, y: float, colour: str, shade: float) -> Any:
    """A cell of a heat map, around a point."""
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, alpha=0.06 + 0.5 * shade, linewidth=0)


def _join_near(levels: Sequence[tuple[float, str]], distance: float) -> list[tuple[float, str]]:
    """Horizontal lines with their texts, of which those of lines that are near each other stand together above the highest.

    >>> _join_near([(0.98, "a"), (0.5, "b"), (0.97, "c")], 0.02)
    [(0.5, 'b'), (0.98, 'a, c')]
    """
    joined: list[tuple[float, str]] = []
    for level, text in sorted(levels):
        if joined and level - joined[-1][0] < distance:
            joined[-1] = (level, f"{text}, {joined[-1][1]}")
        else:
            joined.append((level, text))
    return joined


def _to_legend_text(label: str) -> str:
    """Keep a label from beginning with an underscore: matplotlib leaves such labels out of legends."""
    label = to_printable(label)
    return f"\u200b{label}" if label.startswith("_") else label


_NEAR = 0.06  # of the height: texts of lines that are nearer than this would overlap
_TOP = 0.9995  # of saturating axes


def _cut_at_top(series: Series) -> Series:
    """Cut a curve where it leaves the axes: matplotlib would not draw the marks outside, and their texts would not fit."""
    count = next((place for place, value in enumerate(series.y) if value >= _TOP), len(series.y))
    return replace(series, x=series.x[:count], y=series.y[:count], tips=series.tips[:count])


def _set_saturating_scales(ax: Any) -> None:
    """Scale axes so that 0.9, 0.99 and 0.999 are as far apart as 1, 10 and 100."""
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
def _use_style() -> Iterator[None]:
    """Draw in the page's style, whatever style the caller has set."""
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
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # names of tasks may be in any script
        yield


def _to_svg(canvas: Any, tips: dict[str, Sequence[str]]) -> ET.Element:
    """Convert a drawing to SVG and give the mark of every point its text as a title."""
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
            ET.SubElement(mark, f"{{{_SVG}}}title").text = to_printable(text)
    return root


def _to_inline_svg(root: ET.Element, title: str, id_prefix: str) -> str:
    """Format an SVG for the page: of any size, with CSS variables as colours and with only the ids that it needs."""
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    for data in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(data)
    root.set("role", "img")
    root.set("aria-label", to_printable(title))
    for element in root.iter():
        if re.fullmatch(r"[a-z0-9A-Z.]+_\d+|tip-[\d-]+", element.get("id", "")):
            element.attrib.pop("id")
    text = ET.tostring(root, encoding="unicode")
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{id_prefix}", text)
    for name, (light, _) in COLOUR_VARIABLES.items():
        text = text.replace(light, f"var(--{name})")
    return text


def draw_legend_key(series: Series, id_prefix: str) -> str:
    """Draw the line or bar of a series as a small SVG for the page's legend; see `draw_panel` for `id_prefix`."""
    with _use_style():
        from matplotlib.figure import Figure as Canvas
        from matplotlib.lines import Line2D
        from matplotlib.patches import Rectangle

        canvas = Canvas(figsize=(0.32, 0.14))
        if series.kind in ("bar", "cell"):
            canvas.add_artist(Rectangle((0.1, 0.1), 0.8, 0.8, color=_line_style(series)["color"]))
        else:
            canvas.add_artist(Line2D([0, 0.5, 1], [0.5] * 3, markevery=[1], **_line_style(series)))
        return _to_inline_svg(_to_svg(canvas, {}), series.label, id_prefix)


def _line_style(series: Series) -> dict[str, Any]:
    """Return colour, dashes and marker of a series as matplotlib's options."""
    colour = COLOURS[series.look % len(COLOURS)][0]
    dashes = "--" if series.dashed else DASHES[series.look // len(COLOURS) % len(DASHES)]
    return {
        "color": colour,
        "linestyle": dashes if series.kind == "line" else "none",
        "marker": MARKERS[series.look % len(MARKERS)],
        "markerfacecolor": "none" if series.dashed else colour,
    }
