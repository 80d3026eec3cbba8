"""`spacecl report`: a page, figures and tables from finished runs."""

from __future__ import annotations

import argparse
from typing import Any

from .terminal import console


def add_command(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="a page, figures and tables from finished runs",
        description="Read every result.json in a folder and below it, print the table, and write report.html, one page that "
        "needs nothing else, and report/ with every figure as SVG and PNG and every table as CSV and Markdown.",
        epilog="Exit codes: 0 done, 1 failed with a message, 2 wrong usage.",
    )
    report.add_argument("folder", metavar="DIR", help="folder of a comparison, of many runs, or of one")


def run_command(options: argparse.Namespace) -> int:
    show_report(options.folder)
    return 0


def show_report(folder: str) -> None:
    """Print the table and write the page."""
    from rich.markup import escape
    from rich.table import Table

    from ..reporting import arms as summary
    from ..reporting import sections as report

    arms, left = summary.read(folder)
    titles, rows = summary.table(arms)
    shown = Table(title=escape(summary.title(arms)), caption_justify="left", caption=escape(summary.remarks(arms)))
    for title in titles:
        shown.add_column(title, justify="left" if title == "method" else "right", overflow="fold")
    for row in rows:
        shown.add_row(*map(escape, row))
    console().print(shown)
    if left:
        print(f"Left out: {', '.join(left)}.")
    print(f"{report.write(folder, arms, left)} shows it all.")
