"""Draw the pictures of docs/how-it-works.md, each for light and for dark pages.

python docs/generate/pictures.py
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Polygon, Rectangle

FOLDER = Path(__file__).parents[1] / "pictures"


@dataclass(frozen=True)
class Colors:
    """What the pictures are drawn with on pages of one kind."""

    ink: str
    faint: str
    core: str  # what earlier tasks have committed
    new: str  # what this task keeps
    free: str  # what is left for later tasks


COLORS = {
    "light": Colors("#1f2430", "#8a93a3", "#3056a8", "#d9730d", "#d7dce4"),
    "dark": Colors("#e6e9f0", "#8f99ab", "#7ea2f0", "#f2a65a", "#454d5c"),
}


def draw_steps(colors: Colors) -> Figure:
    """The four steps of learning a task, as the filters of one layer."""
    figure, axes = make_axes(5.6, 5, (0, 11.2), (0, 10))
    steps = [
        ("1. train", "all free filters\nlearn the task", "tttttt"),
        ("2. measure", "what does the core\nnot explain?", "tttttt"),
        ("3. keep a few", "as many new filters\nas the task needs", "nnffff"),
        ("4. freeze", "the next task begins\nwith a larger core", "ccffff"),
    ]
    fills = {"t": colors.new, "n": colors.new, "f": colors.free, "c": colors.core}
    for number, (title, text, states) in enumerate(steps):
        left, top = 6.1 * (number % 2), 9.6 - 4.6 * (number // 2)
        axes.text(left + 2.5, top, title, color=colors.ink, ha="center", va="center", weight="bold", size=14)
        for filter_number, state in enumerate("cc" + states):
            alpha = 0.45 if state == "t" else 1
            x, y = left + 1.05 + 0.75 * (filter_number % 4), top - 1.3 - 0.9 * (filter_number // 4)
            axes.add_patch(Rectangle((x, y), 0.62, 0.75, facecolor=fills[state], alpha=alpha, edgecolor="none"))
        axes.text(left + 2.5, top - 2.45, text, color=colors.ink, ha="center", va="top", size=12, linespacing=1.3)
        if number % 2 == 0:
            draw_arrow(axes, (left + 4.8, top - 1.4), (left + 6.3, top - 1.4), colors.faint)
    for left, text, name in ((0.6, "earlier tasks", "core"), (4.5, "this task", "new"), (7.7, "later tasks", "free")):
        axes.add_patch(Rectangle((left, 0.15), 0.45, 0.45, facecolor=getattr(colors, name), edgecolor="none"))
        axes.text(left + 0.65, 0.36, text, color=colors.ink, va="center", size=12)
    return figure


def draw_projection(colors: Colors) -> Figure:
    """An activation of a free filter: the part that the core explains, and the residual."""
    figure, axes = make_axes(5.6, 3.5, (-0.4, 8.0), (-1.5, 3.75))
    plane = Polygon([(0, 0), (5.2, -0.75), (7.6, 0.75), (2.4, 1.5)], facecolor=colors.core, alpha=0.25, edgecolor="none")
    axes.add_patch(plane)
    start, foot, tip = (1.6, 0.35), (5.2, 0.4), (5.2, 3.4)
    draw_arrow(axes, start, tip, colors.ink, 2)
    draw_arrow(axes, start, foot, colors.core, 2.5)
    draw_arrow(axes, foot, tip, colors.new, 2.5)
    axes.plot([4.95, 4.95, 5.2], [0.4, 0.65, 0.65], color=colors.faint, lw=1)
    axes.text(2.6, 2.6, "activation of\na free filter", color=colors.ink, ha="right", va="center", size=12)
    axes.text(3.5, 0.18, "what the core explains", color=colors.core, ha="center", va="top", size=12)
    axes.text(5.4, 2.0, "residual:\nwhat is new", color=colors.new, va="center", size=12)
    axes.text(
        3.8, -1.15, "plane: all combinations of the core's activations", color=colors.ink, ha="center", va="center", size=11
    )
    return figure


def draw_weights(colors: Colors) -> Figure:
    """The weights between two layers, as they are frozen and free after two tasks."""
    figure, axes = make_axes(5.6, 5.6, (-3.4, 11), (-5.4, 9))
    owners = np.array([0, 0, 0, 1, 1, 2, 2, 2])  # of the channels of either layer: task 1, task 2, free
    fills = (colors.core, colors.new, colors.free)
    for row, row_owner in enumerate(owners):
        for column, column_owner in enumerate(owners):
            owner = max(row_owner, column_owner)
            axes.add_patch(Rectangle((column + 0.05, 7 - row + 0.05), 0.9, 0.9, facecolor=fills[owner], edgecolor="none"))
    for text, middle in (("task 1", 1.5), ("task 2", 4), ("free", 6.5)):
        axes.text(middle, -0.15, text, color=colors.ink, ha="center", va="top", size=12)
        axes.text(-0.25, 8 - middle, text, color=colors.ink, ha="right", va="center", size=12)
    axes.text(4, 8.25, "channels that are read", color=colors.ink, ha="center", va="bottom", size=12)
    axes.text(-2.9, 4, "filters", color=colors.ink, ha="center", va="center", rotation=90, size=12)
    texts = (
        ("frozen with task 1", "core", -1.9),
        ("frozen with task 2: its filters, and\nwhat task 1's filters read of them", "new", -3.2),
        ("free: may learn", "free", -4.6),
    )
    for text, name, y in texts:
        axes.add_patch(Rectangle((-2.0, y - 0.25), 0.5, 0.5, facecolor=getattr(colors, name), edgecolor="none"))
        axes.text(-1.2, y, text, color=colors.ink, va="center", size=12, linespacing=1.3)
    return figure


def draw_narrowing(colors: Colors) -> Figure:
    """A masked network with the channels of one task, and the plain small network that is made of it."""
    figure, axes = make_axes(5.6, 3.6, (-0.8, 13.2), (-2.3, 6.7))
    kept = ((0, 1, 2), (0, 2, 3, 5), (1, 2, 4), (0, 1))
    widths = (3, 6, 6, 2)
    for left, narrowed in ((0, False), (7.9, True)):
        layers = []
        for number, (width, channels) in enumerate(zip(widths, kept)):
            rows = range(len(channels) if narrowed else width)
            top = 3.3 + (len(rows) - 1) / 2
            layers.append([(left + 1.5 * number, top - row, narrowed or row in channels) for row in rows])
        for before, after in pairwise(layers):
            for x1, y1, is_kept in before:
                for x2, y2, is_next_kept in after:
                    if is_kept and is_next_kept:
                        axes.plot([x1, x2], [y1, y2], color=colors.faint, lw=0.8, zorder=1)
        for x, y, is_kept in (node for layer in layers for node in layer):
            axes.add_patch(Circle((x, y), 0.3, facecolor=colors.new if is_kept else colors.free, edgecolor="none", zorder=2))
    draw_arrow(axes, (5.1, 3.3), (7.3, 3.3), colors.ink, 2)
    axes.text(6.2, 3.6, "narrow", color=colors.ink, ha="center", va="bottom", size=12)
    axes.text(2.25, -0.2, "the full network, with\nthe channels of a task", color=colors.ink, ha="center", va="top", size=12)
    axes.text(10.15, -0.2, "a plain nn.Module\nwith smaller tensors", color=colors.ink, ha="center", va="top", size=12)
    return figure


def draw_growth(colors: Colors) -> Figure:
    """The network after each of three tasks: the core grows, by less and less."""
    figure, axes = make_axes(5.6, 2.8, (-0.4, 12), (-1.4, 4.8))
    for number, (before, added) in enumerate(((0, 5), (5, 3), (8, 2))):
        left = 4.2 * number
        for row in range(16):
            fill = colors.core if row < before else colors.new if row < before + added else colors.free
            x, y = left + 0.8 * (row % 4), 3.1 - 0.8 * (row // 4)
            axes.add_patch(Rectangle((x, y), 0.66, 0.66, facecolor=fill, edgecolor="none"))
        axes.text(left + 1.55, 4.4, f"task {number + 1}", color=colors.ink, ha="center", va="center", weight="bold", size=13)
        text = f"{added} new filters" + (f",\n{before} to use" if before else "")
        axes.text(left + 1.55, 0.3, text, color=colors.ink, ha="center", va="top", size=12, linespacing=1.3)
    return figure


PICTURES: dict[str, Callable[[Colors], Figure]] = {
    "steps": draw_steps,
    "projection": draw_projection,
    "weights": draw_weights,
    "narrowing": draw_narrowing,
    "growth": draw_growth,
}


def make_axes(width: float, height: float, x: tuple[float, float], y: tuple[float, float]) -> tuple[Figure, Axes]:
    """Return a transparent figure with axes that fill it and show nothing of themselves."""
    figure = Figure((width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    return figure, axes


def draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str, width: float = 1.5) -> None:
    arrow = FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, lw=width, color=color, shrinkA=0, shrinkB=0)
    axes.add_patch(arrow)


def make_pictures() -> dict[str, str]:
    """All pictures as SVG, by the names of their files."""
    pictures = {}
    for name, draw in PICTURES.items():
        for mode, colors in COLORS.items():
            stream = io.StringIO()
            with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path", "font.family": "DejaVu Sans"}):
                draw(colors).savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            pictures[f"{name}-{mode}.svg"] = stream.getvalue()
    return pictures


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in make_pictures().items():
        (FOLDER / name).write_text(text)
