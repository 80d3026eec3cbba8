"""`spacecl inspect`: tasks, widths, free channels, and how many more tasks will fit."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from .options import HelpFormatter, add_folder
from .terminal import console

if TYPE_CHECKING:
    from rich.table import Table

    from ..runs.audit import Inspection, TaskSummary

COLUMNS = ("parameters", "size so far", "widths")


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "inspect",
        help="show tasks, widths, free channels, and how many more tasks will fit",
        description="Show what a run has learned, how many channels of each layer are free, and how many more tasks will fit.",
        epilog="Exit codes: 0 success, 1 failure with a message, 2 wrong usage.",
        formatter_class=HelpFormatter,
    )
    add_folder(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_command(options: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from ..progress import format_score, format_widths
    from ..runs import audit
    from ..runs.open_run import open_run

    run = open_run(options.run, options.model, options.trust_code)
    code = run.untrusted_code
    summary = audit.inspect_without_code(run) if code else audit.inspect(run.learner())
    if options.json:
        print(json.dumps(summary, indent=1))
        return 0
    tasks, layers = Table(title=escape(f"{len(summary['tasks'])} tasks, {summary['method']}")), Table(title="Channels")
    usual = all(task["metric"] == "accuracy" for task in summary["tasks"])  # otherwise every row names what it shows
    for column in ("task", *(("classes", "validation accuracy") if usual else ("predicts", "validation score")), *COLUMNS):
        tasks.add_column(column, justify="left" if column in ("task", "widths") else "right", overflow="fold")
    for task in summary["tasks"]:
        score, predicts = format_score(task["score"], task["metric"]), str(task["classes"])
        if not usual:
            score, predicts = f"{task['metric']} {score}", f"{predicts} {task['target_kind']}"
        row = (task["task"], predicts, score, f"{task['parameters']:,}")
        tasks.add_row(*map(escape, row), f"{task['size']:.1%}", format_widths(task["widths"]))
    console().print(tasks)
    for column in ("layer", "total", "used", "free", "new in the last task"):
        layers.add_column(column, justify="left" if column == "layer" else "right")
    for layer, counts in (summary["layers"] or {}).items():
        layers.add_row(escape(layer), *(f"{counts[key]:,}" for key in ("of", "taken", "free", "last")))
    if summary["layers"]:
        console().print(layers)
    if any(task["target"] for task in summary["tasks"]):
        console().print(_make_target_table(summary))
    if summary["tasks"] and summary["tasks"][-1]["kept"]:
        console().print(_make_layer_table(summary["tasks"][-1]))
    if code:
        print(
            f"Free channels are not shown: to count them, {code[0]} must be executed, which the folder names as its network. "
            "If you trust it, add --trust-code."
        )
    else:
        print(describe_forecast(summary))
    return 0


def _make_target_table(summary: Inspection) -> Table:
    """What each task's network was to reach, what was predicted when its widths were chosen, and what it reached."""
    from rich.markup import escape
    from rich.table import Table

    from ..progress import format_score

    table = Table(title="Targets: what pruning lost, and what retraining won back")
    for column in ("task", "asked for", "full network", "pruned", "information lost", "retrained", "examples"):
        table.add_column(column, justify="left" if column in ("task", "asked for") else "right", overflow="fold")
    for task in summary["tasks"]:
        target = task["target"]
        if target is not None:
            predicted, reached = target["predicted"], target["reached"]
            table.add_row(
                escape(task["task"]),
                ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in target["asked"].items())
                or "variance by layer",
                format_score(predicted["full_score"], task["metric"]),
                format_score(predicted["score"], task["metric"]),
                f"{predicted['lost']:.2%}",
                format_score(reached["score"], task["metric"]),
                f"{target['examples']:,}",
            )
    return table


def _make_layer_table(task: TaskSummary) -> Table:
    """What was kept of every layer for a task, and what less would have cost."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"Layers of {escape(task['task'])}: channels kept, and the estimated cost of leaving out others")
    for column in ("layer", "core", "reused", "new", "cost of the rest", "cost without the new ones"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for layer, kept in task["kept"].items():
        costs = ("" if kept[key] is None else f"{kept[key]:.3g}" for key in ("cost", "cost_of_none"))  # type: ignore[literal-required]
        table.add_row(escape(layer), f"{kept['core']:,}", f"{kept['reused']:,}", f"{kept['new']:,}", *costs)
    return table


def describe_forecast(summary: Inspection) -> str:
    """How many more tasks like the last one fit, in words."""
    forecast, layers = summary["forecast"], summary["layers"]
    if not summary["tasks"]:
        return "No task has been learned yet."
    if not layers or forecast is None:
        return "Every task uses the full network: any number of tasks fits."
    full = f" No channel is free in {', '.join(forecast['full'])}." if forecast["full"] else ""
    if forecast["layer"] is None:
        return f"The last task added no channels: any number of tasks like it fits.{full}"
    counts, count = layers[forecast["layer"]], forecast["tasks"] or 0
    words = {0: "No more task like the last one fits", 1: "One more task like the last one fits"}
    text = words.get(count, f"{count} more tasks like the last one fit")
    return f"{text}: layer {forecast['layer']} has {counts['free']:,} free, and the last task took {counts['last']:,}.{full}"
