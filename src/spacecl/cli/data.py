"""`spacecl data`: list, fetch or check datasets."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.benchmarks.presets import BENCHMARKS
from .terminal import console

STATES = {"published": "as published", "different": "readable", "damaged": "damaged", "missing": "missing"}


def add_command(commands: Any) -> None:
    data = commands.add_parser(
        "data",
        help="list, fetch or check datasets",
        description="List the available datasets (list), download them from their publishers (fetch), or read all their "
        "files and compare them with the published ones (check).",
        epilog="Exit codes: 0 success, 1 a dataset is damaged, or was named and is missing, 2 wrong usage.",
    )
    data.add_argument("action", choices=("list", "fetch", "check"))
    data.add_argument("names", nargs="*", metavar="NAME", help="datasets, or benchmarks for all their datasets (default: all)")
    data.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")
    data.add_argument("--force", action="store_true", help="download datasets that are already available")
    data.add_argument("--quiet", action="store_true", help="no progress bars")


def run_command(options: argparse.Namespace) -> int:
    from ..data.sources import DATASETS
    from ..errors import ConfigError

    names = list(
        dict.fromkeys(n for name in options.names for n in (BENCHMARKS[name].datasets if name in BENCHMARKS else (name,)))
    )
    unknown = [name for name in names if name not in DATASETS]
    if unknown:
        raise ConfigError(f"No such dataset: {', '.join(unknown)}. There are {', '.join(DATASETS)}.")
    if not options.names:
        names = list(DATASETS)
    if options.action == "fetch":
        return _fetch(names, options)
    return _list(names, options) if options.action == "list" else _check(names, options)


def _fetch(names: Sequence[str], options: argparse.Namespace) -> int:
    from ..data import sources
    from ..errors import SpaceError

    folders = sources.user_folders(options.data)
    into: Path = folders[0] if folders else sources.cache_folder() / "downloads"
    failed = False
    for name in names:
        result = None if options.force else sources.check(name, str(into) if into.is_dir() else None)
        if result is not None and result.state in ("published", "different"):
            hint = "" if result.state == "published" else "; --force downloads it again"
            print(f"{name}: already available in {result.folder}: {result.message}{hint}")
            continue
        try:
            print(f"{name}: fetched into {sources.fetch(name, into, False if options.quiet else None)}")
        except SpaceError as error:
            failed = True
            print(f"spacecl: {error}", file=sys.stderr)
    return int(failed)


def _list(names: Sequence[str], options: argparse.Namespace) -> int:
    from ..data import sources

    rows = []
    for name in names:
        dataset = sources.DATASETS[name]
        folder = dataset.find(sources.search_folders(options.data))
        message = dataset.title if folder else f"{dataset.title}. {dataset.instructions}"
        rows.append((name, "available" if folder else "missing", message, str(folder or "")))
    _print_table(rows)
    return 0


def _check(names: Sequence[str], options: argparse.Namespace) -> int:
    from ..data import sources

    results = {name: sources.check(name, options.data) for name in names}
    _print_table([(name, STATES[r.state], r.message, str(r.folder or "")) for name, r in results.items()])
    failures = ("damaged", "missing") if options.names else ("damaged",)
    return int(any(result.state in failures for result in results.values()))


def _print_table(rows: Sequence[tuple[str, str, str, str]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for column in ("dataset", "state", "details", "folder"):
        table.add_column(column)
    for row in rows:
        table.add_row(*map(escape, row))
    console().print(table)
