"""`spacecl data`: list, fetch or check datasets."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..data.benchmarks.presets import BENCHMARKS
from .terminal import console


def add_command(commands: Any) -> None:
    data = commands.add_parser(
        "data",
        help="list, fetch or check datasets",
        description="Say which datasets are there (list), download them from their publishers (fetch), or read them whole "
        "and compare them with what was published (check).",
        epilog="Exit codes: 0 done, 1 something is damaged, or missing though named, 2 wrong usage.",
    )
    data.add_argument("action", choices=("list", "fetch", "check"))
    data.add_argument("names", nargs="*", metavar="NAME", help="datasets, or benchmarks for all that they need (default: all)")
    data.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")
    data.add_argument("--force", action="store_true", help="fetch what is there already, too")
    data.add_argument("--quiet", action="store_true", help="no progress bars")


def run_command(options: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from ..data import sources
    from ..errors import ConfigError, SpaceError

    names = list(
        dict.fromkeys(n for name in options.names for n in (BENCHMARKS[name].datasets if name in BENCHMARKS else (name,)))
    )
    unknown = [name for name in names if name not in sources.DATASETS]
    if unknown:
        raise ConfigError(f"No such dataset: {', '.join(unknown)}. There are {', '.join(sources.DATASETS)}.")
    chosen = names if options.names else list(sources.DATASETS)
    failed = False
    if options.action == "fetch":
        roots = sources.named(options.data)
        into: Path = roots[0] if roots else sources.cache() / "downloads"
        for name in chosen:
            found = None if options.force else sources.check(name, str(into) if into.is_dir() else None)
            if found is not None and found.state in ("whole", "other"):
                print(
                    f"{name}: there already, in {found.folder}: {found.told}"
                    + ("" if found.state == "whole" else "; --force fetches it anew")
                )
                continue
            try:
                print(f"{name}: fetched into {sources.fetch(name, into, False if options.quiet else None)}")
            except SpaceError as error:
                failed = True
                print(f"spacecl: {error}", file=sys.stderr)
        return int(failed)
    table = Table()
    for column in ("dataset", "state", "what", "where"):
        table.add_column(column)
    for name in chosen:
        dataset = sources.DATASETS[name]
        if options.action == "list":
            folder = dataset.find(sources.search_folders(options.data))
            state, told = ("there", dataset.title) if folder else ("missing", f"{dataset.title}. {dataset.how()}")
        else:
            found = sources.check(name, options.data)
            folder, told = found.folder, found.told
            state = {"whole": "as published", "other": "readable", "damaged": "damaged", "missing": "missing"}[found.state]
            failed |= found.state == "damaged" or (found.state == "missing" and bool(names))
        table.add_row(name, state, *(escape(text) for text in (told, str(folder or ""))))
    console().print(table)
    return int(failed)
