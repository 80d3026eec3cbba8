"""`spacecl report`: a page, figures and tables from finished runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .terminal import console

if TYPE_CHECKING:
    from ..reporting.arms import Comparison


def add_command(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="a page, figures and tables from finished runs",
        description="Read every result.json in a folder and below it, and print a table for each benchmark. Write to the same "
        "folder report.html, one page that needs no other file and no network, and report/ with all figures as SVG and PNG and "
        "all tables as CSV and Markdown.",
        epilog="Exit codes: 0 done, 1 failed with a message, 2 wrong usage.",
    )
    report.add_argument("folder", metavar="DIR", help="folder of a comparison, of many runs, or of one run")


def run_command(options: argparse.Namespace) -> int:
    show_report(options.folder)
    return 0


def show_report(folder: str) -> None:
    """Print the tables and write the page."""
    from ..reporting.arms import read_comparisons
    from ..reporting.report import write_report

    comparisons, left_out = read_comparisons(folder)
    for comparison in comparisons:
        _print_summary(comparison)
    if left_out:
        print(f"Left out: {', '.join(left_out)}.")
    print(f"The report is in {write_report(folder, comparisons, left_out)}.")


def _print_summary(comparison: Comparison) -> None:
    from rich.markup import escape
    from rich.table import Table

    from ..reporting.summary_table import explain_summary_table, make_summary_table

    summary = make_summary_table(comparison)
    caption = escape(explain_summary_table(comparison))
    table = Table(title=escape(comparison.title), caption_justify="left", caption=caption)
    for title in summary.titles:
        table.add_column(title, justify="left" if title == "method" else "right", overflow="fold")
    for row in summary.rows:
        table.add_row(*map(escape, row))
    console().print(table)
