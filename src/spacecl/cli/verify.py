"""`spacecl verify`: prove that every task is what was committed."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .options import add_data, add_folder
from .terminal import console, show_warnings_as_text, zero_or_more

VERIFY_MORE = """\
examples:
  spacecl verify runs/c10
  spacecl verify runs/c10 --data ~/data --json

Exit codes: 0 all is as it was committed, 1 something is not, or cannot be read, 2 wrong usage."""


def add_command(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        help="prove that every task is what was committed",
        description="Hold the bytes of every task's network against the digest of its commit and, with data, its accuracy "
        "against what the run wrote down.",
        epilog=VERIFY_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_folder(verify)
    verify.add_argument("--accuracy", action="store_true", help="measure accuracy, too; --data asks for the same")
    verify.add_argument(
        "--tolerance",
        type=zero_or_more,
        default=0.001,
        metavar="X",
        help="by how much accuracy may differ: other machines round otherwise (0.001)",
    )
    add_data(verify)
    verify.add_argument("--json", action="store_true", help="say it as JSON")


def run_command(options: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from ..errors import SpaceError
    from ..runs import audit
    from ..runs.open_run import open_run

    show_warnings_as_text()
    measure = options.accuracy or options.data is not None
    try:
        found = audit.verify(open_run(options.run, options.model, options.trust_code), measure, options.data, options.tolerance)
    except SpaceError as error:
        if options.json:
            print(json.dumps({"folder": options.run, "ok": False, "error": str(error)}, indent=1))
        raise
    if options.json:
        print(json.dumps(found, indent=1))
        return int(not found["ok"])
    table = Table()
    for column in ("task", "digest", "bytes", *(("accuracy", "recorded") if measure else ())):
        table.add_column(column, overflow="fold")
    for task in found["tasks"]:
        state = "NOT as committed" if task["digest"] else "cannot be read"
        state = state if task["problem"] else "as committed"
        row = [task["task"], (task["digest"] or "")[:16], state]
        row += [f"{task[key]:.2%}" if key in task else "" for key in ("accuracy", "recorded")] if measure else []
        table.add_row(*map(escape, row))
    console().print(table)
    for text in [f"{task['task']}: {task['problem']}" for task in found["tasks"] if task["problem"]] + found["lost"]:
        print(f"spacecl: {text}", file=sys.stderr)
    if found["ok"]:
        print(f"All {len(found['tasks'])} tasks are what was committed.")
    return int(not found["ok"])
