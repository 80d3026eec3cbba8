"""`spacecl compare`: several methods with several seeds, and a page that shows what came of it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from ..data.benchmarks.presets import ABLATIONS, BENCHMARKS
from .options import add_settings, add_trust, given_settings
from .report import show_report
from .terminal import positive, show_warnings_as_text

COMPARE = """\
Run several methods, or the arms of a preset, each with several seeds, and print the paper's Table 1 for them: accuracy,
network size, energy, forgetting, training time. report.html in the folder shows it all.

presets:
{presets}
"""
COMPARE_MORE = """\
examples:
  spacecl compare split-cifar10 --methods all --seeds 3 --out runs/cmp
  spacecl compare permuted-digits --methods space,ewc,stl --set ewc.strength=10
  spacecl compare p-fashion --preset frontier --limit 1000
  spacecl compare --resume --out runs/cmp

Every run has a folder of its own below --out and a process of its own: one that fails is told of and does not touch the others.
The same command, or --resume with --out, does what is missing; a run that was stopped goes on from its last finished epoch.
Settings are those of spacecl run and hold for all; a method's own are written --set METHOD.NAME=VALUE. When all runs are done,
the latency of every network, and its energy where a meter can be read (pip install "spacecl[energy]"), are measured one by one.
--engine ray runs the same on the Ray cluster of `ray start` or $RAY_ADDRESS, whose nodes must all see the folder and the data.

Exit codes: 0 done, 1 some or all runs failed, 2 wrong usage, 130 interrupted."""


def add_command(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="several methods with several seeds, and a page that shows what came of it",
        description=COMPARE.format(presets="\n".join(f"  {name:12} {text}" for name, text in ABLATIONS.items())),
        epilog=COMPARE_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="as for spacecl run")
    what = compare.add_mutually_exclusive_group()
    what.add_argument("--methods", metavar="NAMES", help="all (default), or names with commas between them")
    what.add_argument("--preset", metavar="NAME", choices=tuple(ABLATIONS), help="one of the above in place of methods")
    compare.add_argument("--seeds", default="1", metavar="N", help="how many, from 0 on, or a list such as 0,5,7 (default 1)")
    compare.add_argument("--jobs", type=positive, metavar="N", help="runs at a time (default: one a core, as memory allows)")
    compare.add_argument("--engine", choices=("local", "ray"), default="local", help="where to run (default: local)")
    compare.add_argument("--resume", action="store_true", help="do what is missing in --out, with the settings that it has")
    add_trust(compare)
    add_settings(compare)


def run_command(options: argparse.Namespace) -> int:
    from ..errors import ConfigError
    from ..reporting import figures
    from ..runs import run_folder as folder
    from ..runs import sweep as compare

    show_warnings_as_text()
    figures.check_installed()  # before hours of training, not after
    say = lambda text: print(text, flush=True)  # noqa: E731
    out, given = options.out, given_settings(options)
    if options.resume and not out:
        raise ConfigError("--resume goes on with the runs in a folder; say which with --out DIR.")
    if options.resume and "benchmark" not in given:
        if given or options.methods or options.preset or options.seeds != "1":
            raise ConfigError("--resume takes all settings from the folder: leave out the others, or name the benchmark.")
        folders = compare.planned(out)
    else:
        if "benchmark" not in given:
            raise ConfigError(f"Which benchmark? One of {', '.join(BENCHMARKS)}, a folder of pictures or a Python file.")
        out = out or compare.default_folder(given, options.preset or "compare")
        arms = compare.preset_arms(options.preset, given) if options.preset else compare.methods_arms(options.methods or "all")
        folders = compare.plan(given, arms, compare.seeds_of(options.seeds), Path(out), options.data)
    try:
        failed = compare.compare(
            out,
            folders,
            data=options.data,
            jobs=options.jobs,
            engine=options.engine,
            trust_code=options.trust_code or not options.resume or "benchmark" in given,
            progress=False if options.quiet else None,
            say=say,
        )
    except KeyboardInterrupt:
        print(f"\n{folder.interrupted(out)}", file=sys.stderr)
        return 130
    for text in failed:
        print(f"spacecl: failed: {text}", file=sys.stderr)
    if failed:
        again = ["spacecl", "compare", "--resume", "--out", str(out)]
        again += ["--data", options.data] if options.data else []
        again += ["--trust-code"] if options.trust_code else []
        again += ["--engine", options.engine] if options.engine != "local" else []
        print(f"spacecl: to do what is missing: {shlex.join(again)}", file=sys.stderr)
    if any((folder / "result.json").exists() for folder in folders):
        show_report(out)
    return int(bool(failed))
