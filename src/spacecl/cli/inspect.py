"""`spacecl inspect`: tasks, widths, free channels, and how many more tasks will fit."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .options import add_folder
from .terminal import console


def add_command(commands: Any) -> None:
    inspect = commands.add_parser(
        "inspect",
        help="tasks, widths, free channels, and how many more tasks will fit",
        description="Show what a run has learned, and what room it has left.",
        epilog="Exit codes: 0 done, 1 failed with a message, 2 wrong usage.",
    )
    add_folder(inspect)
    inspect.add_argument("--json", action="store_true", help="say it as JSON")


def run_command(options: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from ..progress import format_widths
    from ..runs import audit
    from ..runs.open_run import open_run

    run = open_run(options.run, options.model, options.trust_code)
    code = run.untrusted_code
    found = audit.inspect_without_code(run) if code else audit.inspect(run.learner())
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    tasks, layers = Table(title=f"{len(found['tasks'])} tasks, {found['method']}"), Table(title="Room")
    for column in ("task", "classes", "validated", "parameters", "all so far", "widths"):
        tasks.add_column(column, justify="left" if column in ("task", "widths") else "right", overflow="fold")
    for task in found["tasks"]:
        row = (task["task"], str(task["classes"]), f"{task['accuracy']:.2%}", f"{task['parameters']:,}")
        tasks.add_row(*map(escape, row), f"{task['size']:.1%}", format_widths(task["widths"]))
    console().print(tasks)
    for column in ("layer", "has", "taken", "free", "taken by the last task"):
        layers.add_column(column, justify="left" if column == "layer" else "right")
    for layer, counts in (found["layers"] or {}).items():
        layers.add_row(escape(layer), *(f"{counts[key]:,}" for key in ("of", "taken", "free", "last")))
    if found["layers"]:
        console().print(layers)
    if code:
        print(
            f"What is free is not shown: that takes running {code[0]}, which the folder names as its network. "
            "If you trust it, say so with --trust-code."
        )
    else:
        print(_forecast(found))
    return 0


def _forecast(found: dict[str, Any]) -> str:
    forecast, layers = found["forecast"], found["layers"]
    if not found["tasks"]:
        return "No task has been learned yet."
    if not layers:
        return "Every task has the whole network: any number of tasks fits."
    full = f" Nothing is free in {', '.join(forecast['full'])}." if forecast["full"] else ""
    if forecast["layer"] is None:
        return f"The last task took nothing new: any number of tasks like it fits.{full}"
    counts, count = layers[forecast["layer"]], forecast["tasks"]
    fit = {0: "No task more like the last fits", 1: "One task more like the last fits"}
    said = fit.get(count, f"{count} tasks more like the last fit")
    return f"{said}: layer {forecast['layer']} has {counts['free']:,} free, and the last task took {counts['last']:,}.{full}"
