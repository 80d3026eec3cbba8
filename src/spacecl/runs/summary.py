"""The results of a run for a terminal: a line for every task, and a table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..learning.metrics import ACCURACY
from ..learning.record import TaskRecord
from ..progress import SHARES, format_duration, format_score, format_widths
from .methods import shorten_method
from .metrics import name_metric
from .metrics_log import TestRow
from .result import Result

if TYPE_CHECKING:
    from rich.table import Table


def format_task(number: int, count: int, record: TaskRecord, test: TestRow) -> str:
    """The line for a task, number `number` of `count`; `test` is the one right after it, of all tasks so far."""
    scores, metric = test["score"], name_metric(test.get("metric", {record.name: record.metric}).values())
    name = "" if record.metric == ACCURACY else f" {record.metric}"
    return (
        f"{number:>2}/{count}  {record.name:18} test{name} {format_score(scores[record.name], record.metric):>7}  "
        f"mean {format_score(sum(scores.values()) / number, metric):>7}  size {record.size:.3f}  "
        f"{format_widths(record.widths)}  {format_duration(sum(record.seconds.values()))}{_format_budget(record.spectrum)}"
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
    mixed = result["metric"] != ACCURACY  # then every row names its metric
    for column in ("task", *(["metric"] if mixed else []), "learned", "now", "parameters", "mult-adds", "widths"):
        is_text = column in ("task", "metric", "widths")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for task in result["tasks"]:
        table.add_row(
            escape(task["name"]),
            *([escape(task["metric"])] if mixed else []),
            format_score(task["score_when_learned"], task["metric"]),
            format_score(task["score"], task["metric"]),
            f"{task['parameters'] / full['parameters']:.1%}",
            f"{task['multiply_adds'] / full['multiply_adds']:.1%}",
            format_widths(task["widths"]),
        )
    table.add_section()
    mean = format_score(result["average_score"], result["metric"])
    table.add_row("mean", *([escape(result["metric"])] if mixed else []), "", mean, "", "", "")
    transfer = f"{result['backward_transfer']:+.2%}" if result["metric"] in SHARES else f"{result['backward_transfer']:+.4f}"
    storage = ", ".join(f"{name} {_format_bytes(count)}" for name, count in result.get("storage", {}).items() if count)
    table.caption = (
        f"All networks together: {result['size']:.1%} of the full one. Backward transfer {transfer}. "
        f"{format_duration(result['seconds']['total'])}.\nStored: {storage}."
    )
    inferred = result.get("inferred")
    if inferred:
        row, batch = inferred["row"], inferred["batch"]
        accuracies = [f"{rates['accuracy']:.2%} " if rates["accuracy"] is not None else "" for rates in (row, batch)]
        table.caption += (
            f"\nWith the task inferred: {accuracies[0]}row by row (the right task for {row['identified']:.1%}), "
            f"{accuracies[1]}in batches of {inferred['together']} ({batch['identified']:.1%})."
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
