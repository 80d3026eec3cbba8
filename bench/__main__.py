"""Measure how fast the library is, each part compared with a baseline, and print one table.

    make bench
    python bench --only training --out bench.json

Ratios are medians over rounds in which both sides run in turns. They carry over to other machines, and they vary less than
times do on a busy one. Still, use a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

PARTS = {
    "startup": "imports, wrapping, saving and loading",
    "inference": "inference of one task and of many",
    "training": "training steps and feeding",
    "analysis": "the analysis of all layers",
    "many_tasks": "learning, saving, loading and inferring among many tasks",
    "large_networks": "memory and steps of a ResNet-50 and a ViT-S",
    "deployment": "exported files and the server",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = "; ".join(f"{name}: {what}" for name, what in PARTS.items())
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=parts)
    parser.add_argument("--out", type=Path, default=Path("bench.json"), help="file for the figures (default: bench.json)")
    parser.add_argument("--rounds", type=int, help="at most this many rounds of each comparison, for a quick look")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    args = parser.parse_args()

    import timing
    import torch
    from rich.console import Console
    from rich.table import Table

    from spacecl.runs.costs import describe_machine

    timing.round_limit.extend([] if args.rounds is None else [max(1, args.rounds)])
    table = Table("what", "compared with", "target", "result", "", title="Speed")
    rows = []
    for part in args.only:
        print(f"{part}: {PARTS[part]} ...", file=sys.stderr, flush=True)
        for row in import_module(part).run():
            rows.append({"part": part, **asdict(row)})
            table.add_row(row.what, row.baseline, row.target, row.result, "yes" if row.passed else "[red]no[/red]")
    about = {**describe_machine(torch.device("cpu")), "torch": torch.__version__}
    args.out.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    if args.markdown:
        print("| what | compared with | target | result | reached |\n|---|---|---|---|---|")
        for row in rows:
            print("| {what} | {baseline} | {target} | {result} | {0} |".format("yes" if row["passed"] else "**no**", **row))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table)
    print(f"{sum(row['passed'] for row in rows)} of {len(rows)} targets reached; the figures are in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
