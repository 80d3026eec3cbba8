"""Measure how fast the library is, each thing beside what it is held against, and print one table.

    make bench
    python bench --only learning --out bench.json

Ratios are the medians of rounds in which both run, so that they hold on other machines, and on one that has other work to
do they vary less than times do. Still: on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

PARTS = {
    "starting": "imports, wrapping, saving and loading",
    "asking": "inference of one task and of many",
    "learning": "training steps and feeding",
    "analysis": "the analysis of all layers",
    "deploying": "exported files and the server",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told = "; ".join(f"{name}: {what}" for name, what in PARTS.items())
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=told)
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="file for the figures (default: bench.json)")
    parser.add_argument("--rounds", type=int, help="at most so many rounds of each comparison: for a quick look")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    args = parser.parse_args()

    import timing
    import torch
    from rich.console import Console
    from rich.table import Table

    from spacecl.runs.costs import describe_machine

    timing.most_rounds.extend([] if args.rounds is None else [max(1, args.rounds)])
    table = Table("what", "held against", "reach", "measured", "", title="Speed")
    found = []
    for part in args.only:
        print(f"{part}: {PARTS[part]} ...", file=sys.stderr, flush=True)
        for row in import_module(part).rows():
            found.append({"part": part, **asdict(row)})
            table.add_row(row.what, row.against, row.reach, row.measured, "yes" if row.reached else "[red]no[/red]")
    about = {**describe_machine(torch.device("cpu")), "torch": torch.__version__}
    args.out.write_text(json.dumps({"machine": about, "rows": found}, indent=1) + "\n")
    if args.markdown:
        print("| what | held against | reach | measured | reached |\n|---|---|---|---|---|")
        for row in found:
            print("| {what} | {against} | {reach} | {measured} | {0} |".format("yes" if row["reached"] else "**no**", **row))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table)
    print(f"{sum(row['reached'] for row in found)} of {len(found)} reached; the figures are in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
