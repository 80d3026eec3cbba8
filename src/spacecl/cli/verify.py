"""`spacecl verify`: check that every task's network is the one that was committed."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .options import HelpFormatter, add_data, add_folder
from .terminal import console, zero_or_more

EPILOG = """\
examples:
  spacecl verify runs/c10
  spacecl verify runs/c10 --data ~/data --json

Exit codes: 0 every task is as committed, 1 a task is not or cannot be read, 2 wrong usage."""


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "verify",
        help="check that every task's network is the one that was committed",
        description="Compare the bytes of every task's network with the digest (SHA-256) that was stored when it was learned "
        "and, with data, its accuracy, or another score, with the one that the run recorded.",
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    add_folder(parser)
    parser.add_argument("--accuracy", action="store_true", help="measure accuracy or another score, too; implied by --data")
    parser.add_argument(
        "--tolerance",
        type=zero_or_more,
        default=0.001,
        metavar="X",
        help="largest difference in accuracy or another score; rounding differs between machines (default: 0.001)",
    )
    add_data(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_command(options: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from ..errors import SpaceError
    from ..progress import format_score
    from ..runs import audit
    from ..runs.open_run import open_run

    measure = options.accuracy or options.data is not None
    try:
        run = open_run(options.run, options.model, options.trust_code)
        summary = audit.verify(run, measure, options.data, options.tolerance)
    except SpaceError as error:
        if options.json:
            print(json.dumps({"folder": options.run, "ok": False, "error": str(error)}, indent=1))
        raise
    if options.json:
        print(json.dumps(summary, indent=1))
        return int(not summary["ok"])
    table = Table()
    metrics = {task["metric"] for task in summary["tasks"] if "metric" in task}
    name = metrics.pop() if len(metrics) == 1 else "score"
    for column in ("task", "digest", "bytes", *((name, "recorded") if measure else ())):
        table.add_column(column, overflow="fold")
    for task in summary["tasks"]:
        state = "NOT as committed" if task["digest"] else "cannot be read"
        state = state if task["problem"] else "as committed"
        row = [task["task"], (task["digest"] or "")[:16], state]
        for key in ("score", "recorded") if measure else ():
            row.append(format_score(task[key], task["metric"]) if key in task else "")  # type: ignore[literal-required]
        table.add_row(*map(escape, row))
    console().print(table)
    for text in [f"{task['task']}: {task['problem']}" for task in summary["tasks"] if task["problem"]] + summary["lost"]:
        print(f"spacecl: {text}", file=sys.stderr)
    if summary["ok"]:
        print(f"All {len(summary['tasks'])} tasks are as committed.")
    return int(not summary["ok"])
