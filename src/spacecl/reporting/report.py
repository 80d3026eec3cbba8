"""Write a report: report.html, and beside it report/ with every figure and table as files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from .. import disk
from ..runs.run_folder import shorten_name
from .arms import Comparison
from .drawing import save_figure
from .figures import check_installed
from .html import render
from .page import Chapter, Page, Table, add_prefix
from .sections import compose
from .summary_sentence import summarize
from .text import to_csv, to_markdown


def write_report(folder: str | os.PathLike[str], comparisons: Sequence[Comparison], left_out: Sequence[str] = ()) -> Path:
    """Write report.html and report/ into a folder, remove files of an earlier report, and return the page's path.

    `left_out` lists runs that could not be read, for a note on the page.
    """
    check_installed()
    top = Path(folder)
    files = top / "report"
    disk.make_folder(files)
    page = make_page(comparisons, left_out)
    sections = [section for chapter in page.chapters for section in chapter.sections]
    current = {file for section in sections for figure in section.figures for file in save_figure(figure, files)}
    current |= {file for section in sections for table in section.tables for file in _save_table(table, files)}
    reported = (file for file in files.iterdir() if file.suffix in (".svg", ".png", ".csv", ".md"))
    disk.remove(*(file for file in reported if file not in current))
    disk.write_file(top / "report.html", render(page).encode())
    return top / "report.html"


def make_page(comparisons: Sequence[Comparison], left_out: Sequence[str] = ()) -> Page:
    """Describe the page: a chapter for each benchmark."""
    notes = [f"Left out: {', '.join(left_out)}."] if left_out else []
    if len(comparisons) == 1:
        (only,) = comparisons
        return Page(only.title, [Chapter("", only.title, compose(only), summarize(only))], notes)
    names = [re.sub(r"[^A-Za-z0-9.-]+", "-", shorten_name(comparison.benchmark)) for comparison in comparisons]
    chapters = []
    for number, (name, comparison) in enumerate(zip(names, comparisons), 1):
        prefix = f"{name}-" if names.count(name) == 1 else f"{name}-{number}-"
        sections = [add_prefix(section, prefix) for section in compose(comparison)]
        chapters.append(Chapter(f"{prefix}benchmark", comparison.title, sections, summarize(comparison)))
    return Page(f"Results on {len(comparisons)} benchmarks", chapters, notes)


def _save_table(table: Table, folder: Path) -> list[Path]:
    """Write a table as CSV and as Markdown, and return the two files."""
    exact = table.exact or table
    texts = {"csv": to_csv(exact.titles, exact.rows), "md": to_markdown(table.titles, table.rows, table.best)}
    for ending, text in texts.items():
        disk.write_file(folder / f"{table.name}.{ending}", text.encode())
    return [folder / f"{table.name}.{ending}" for ending in texts]
