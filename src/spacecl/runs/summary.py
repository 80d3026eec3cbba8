"""The results of a run for a terminal: a line for every task, and a table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..learning.record import TaskRecord
from ..progress import format_duration, format_widths
from .methods import shorten_method
from .result import Result

if TYPE_CHECKING:
    from rich.table import Table


def format_task(number: int, count: int, record: TaskRecord, accuracy: Mapping[str, float]) -> str:
    """The line for a task, number `number` of `count`; `accuracy` has the tests right after it, of all tasks so far."""
    return (
        f"{number:>2}/{count}  {record.name:18} test {accuracy[record.name]:7.2%}  "
        f"mean {sum(accuracy.values()) / number:7.2%}  size {record.size:.3f}  {format_widths(record.widths)}  "
        f"{format_duration(sum(record.seconds.values()))}{_format_budget(record.spectrum)}"
    )


def _format_budget(spectrum: Mapping[str, Mapping[str, Any]]) -> str:
    """What a budget cost a task in the layer that lost most; nothing where it did not limit the task."""
    layers = [layer for layer, analysis in spectrum.items() if analysis["new"] < analysis.get("wanted", 0)]
    if not layers:
        return ""
    layer = max(layers, key=lambda layer: spectrum[layer]["lost"])
    analysis = spectrum[layer]
    explained = f"{analysis['threshold'] - analysis['lost']:.3f} of {analysis['threshold']:.3f} explained"
    return f"  budget: {layer} {analysis['new']} of {analysis['wanted']} filters, {explained}"


def make_table(result: Result) -> Table:
    """A table with a row for every task, and the results of the whole run below it."""
    from rich.markup import escape
    from rich.table import Table

    full = result["network"]
    method = shorten_method(result["method"])
    title = f"{result['benchmark']}, {method}, recipe {result['recipe']}, seed {result['seed']}"
    table = Table(title=escape(title), caption_justify="left")
    for column in ("task", "learned", "now", "parameters", "mult-adds", "widths"):
        is_text = column in ("task", "widths")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for task in result["tasks"]:
        table.add_row(
            escape(task["name"]),
            f"{task['accuracy_when_learned']:.2%}",
            f"{task['accuracy']:.2%}",
            f"{task['parameters'] / full['parameters']:.1%}",
            f"{task['multiply_adds'] / full['multiply_adds']:.1%}",
            format_widths(task["widths"]),
        )
    table.add_section()
    table.add_row("mean", "", f"{result['average_accuracy']:.2%}", "", "", "")
    storage = ", ".join(f"{name} {_format_bytes(count)}" for name, count in result.get("storage", {}).items() if count)
    table.caption = (
        f"All networks together: {result['size']:.1%} of the full one. Backward transfer {result['backward_transfer']:+.2%}. "
        f"{format_duration(result['seconds']['total'])}.\nStored: {storage}."
    )
    inferred = result.get("inferred")
    if inferred:
        row, batch = inferred["row"], inferred["batch"]
        table.caption += (
            f"\nWith the task inferred: {row['accuracy']:.2%} row by row (the right task for {row['identified']:.1%}), "
            f"{batch['accuracy']:.2%} in batches of {inferred['together']} ({batch['identified']:.1%})."
        )
    return table


def _format_bytes(count: int) -> str:
    """A number of bytes for people.

    >>> _format_bytes(900), _format_bytes(71_800_000)
    ('900 B', '71.8 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
