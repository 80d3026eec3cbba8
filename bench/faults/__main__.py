"""Inject thousands of faults and count failures.

    python -m bench.faults                      # everything in full, about an hour on two cores
    python -m bench.faults --only files --share 0.01 --seed 1

Every part stops by itself and draws its cases from the seed, so that failures can be reproduced. docs/reliability.md lists the
promises, what was tried, and the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path

PARTS = {  # module -> (cases in full, what they are)
    "kills": (1_000, "runs of all methods killed at a random moment and resumed"),
    "ranks": (200, "processes that train together, of which one is killed; all are resumed"),
    "files": (10_000, "damaged files of every kind that is read"),
    "power": (0, "power cuts after every prefix of every sequence of file operations (0: all of them)"),
    "writers": (300, "rounds of several processes that save to one folder while others read it"),
    "requests": (10_000, "hostile requests beside good ones"),
    "calls": (1_000, "odd calls of the public functions"),
    "clients": (100, "clients at a time, for 60 s"),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = "; ".join(f"{name}: {text}" for name, (_, text) in PARTS.items())
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=what)
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="share of the cases to try (default 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the cases (default 0)")
    parser.add_argument("--out", type=Path, default=Path("faults.json"), help="file for the counts (default: faults.json)")
    args = parser.parse_args()
    failures, rows = 0, []
    for name in args.only:
        count, text = PARTS[name]
        print(f"{name}: {text} ...", flush=True)
        started = time.perf_counter()
        outcome = import_module(f".{name}", __package__).run(max(1, round(args.share * count)) if count else 0, args.seed)
        seconds = time.perf_counter() - started
        failures += len(outcome.failures)
        kinds = len({kind for kind, _ in outcome.counts})
        print(
            f"  {outcome.tried:,} cases of {kinds} kinds in {seconds:,.0f} s: {len(outcome.failures)} failures; "
            f"slowest case {outcome.longest:.1f} s, peak memory {outcome.peak_memory / 2**30:.2f} GB"
        )
        for failure in outcome.failures[:20]:
            print(f"  {failure}")
        counts = [{"kind": kind, "verdict": verdict, "cases": n} for (kind, verdict), n in sorted(outcome.counts.items())]
        rows.append(
            {
                "part": name,
                "cases": outcome.tried,
                "failures": outcome.failures,
                "seconds": seconds,
                "slowest_case_seconds": outcome.longest,
                "peak_memory_bytes": outcome.peak_memory,
                "counts": counts,
                **outcome.notes,
            }
        )
        args.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{failures} failures; the counts are in {args.out}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
