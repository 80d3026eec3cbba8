"""The page as a plain description; `html` renders it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .figures import Figure


@dataclass(frozen=True)
class Table:
    """A table of texts. The first column names the rows."""

    name: str  # of its files
    caption: str  # shown while it is folded
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: bool = False  # the page shows it when the reader opens it
    best: frozenset[tuple[int, int]] = frozenset()  # rows and columns of cells that are printed in bold
    exact: Table | None = None  # the same for programs, with all digits: goes into the CSV file instead


@dataclass(frozen=True)
class Command:
    """A command line that makes a run again, and all settings of the run as JSON."""

    label: str  # of the runs
    seeds: str
    line: str
    settings: str


@dataclass(frozen=True)
class Section:
    """A part of a chapter: a heading, remarks, figures, tables and commands."""

    name: str  # of its anchor
    title: str
    notes: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    tables_first: bool = False
    commands: Sequence[Command] = ()


@dataclass(frozen=True)
class Chapter:
    """All sections on one benchmark."""

    name: str  # of its anchor
    title: str
    sections: Sequence[Section]
    lead: str = ""  # one sentence that says what came out


@dataclass(frozen=True)
class Page:
    """The page: one chapter, or one for each of several benchmarks."""

    title: str
    chapters: Sequence[Chapter]
    notes: Sequence[str] = ()


def add_prefix(section: Section, prefix: str) -> Section:
    """Begin the names in a section with a prefix, so that chapters do not overwrite each other's files."""
    figures = [replace(figure, name=prefix + figure.name) for figure in section.figures]
    tables = [replace(table, name=prefix + table.name) for table in section.tables]
    return replace(section, name=prefix + section.name, figures=figures, tables=tables)
