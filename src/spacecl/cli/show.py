"""`spacecl show`: one page about one run."""

from __future__ import annotations

import argparse
from typing import Any

from .options import add_data, add_folder


def add_command(commands: Any) -> None:
    show = commands.add_parser(
        "show",
        help="a page about one run: its network with the filters of every task",
        description="Write one page about a run that needs no other file and no network: every layer with the filters of each "
        "task in its color, what later tasks reused, size and latency, and for tasks of pictures the first layer's filters "
        "and test examples right and wrong.",
        epilog="Exit codes: 0 done, 1 failed with a message, 2 wrong usage.",
    )
    add_folder(show)
    add_data(show)
    show.add_argument("--out", metavar="FILE", help="the page (default: RUN/show.html)")


def run_command(options: argparse.Namespace) -> int:
    from ..reporting.show import write_show
    from ..runs.open_run import open_run

    file, notes = write_show(open_run(options.run, options.model, options.trust_code), options.data, options.out)
    for note in notes:
        print(note)
    print(f"The page is {file}.")
    return 0
