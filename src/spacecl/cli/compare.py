"""`spacecl compare`: several methods with several seeds, and a report of the results."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from ..data.benchmarks.presets import ABLATIONS
from .options import HelpFormatter, add_output, add_resume, add_settings, collect_settings
from .report import show_report
from .run import NO_BENCHMARK
from .terminal import positive

DESCRIPTION = """\
Run several methods, or the variants of a preset, each with several seeds, and print the paper's Table 1 for them: accuracy,
network size, energy, forgetting and training time. report.html in the output folder has tables and figures.

presets:
{presets}
"""
EPILOG = """\
examples:
  spacecl compare split-cifar10 --methods all --seeds 3 --out runs/cmp
  spacecl compare permuted-digits --methods space,ewc,stl --set ewc.strength=10
  spacecl compare permuted-digits --methods all,my_method.py:L2Anchor --set L2Anchor.strength=3
  spacecl compare p-fashion --preset frontier --limit 1000
  spacecl compare --resume --out runs/cmp

Every run has its own folder below --out and its own process: one that fails is reported and does not affect the others.
The same command, or --resume with --out, does the runs that are missing; a run that was stopped resumes after its last
finished epoch. Settings are those of spacecl run and apply to all runs; options of one method are written
--set METHOD.NAME=VALUE. After the last run, the latency of every network, and its energy where a meter can be read
(pip install "spacecl[energy]"), are measured one after another.

--engine ray uses the Ray cluster of `ray start` or $RAY_ADDRESS; all its nodes must see the output folder and the data.

Exit codes: 0 success, 1 some or all runs failed, 2 wrong usage, 130 interrupted."""


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="several methods with several seeds, and a report of the results",
        description=DESCRIPTION.format(presets="\n".join(f"  {name:12} {text}" for name, text in ABLATIONS.items())),
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.declare = _declare


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="as for spacecl run")
    grid = parser.add_argument_group("what to compare")
    what = grid.add_mutually_exclusive_group()
    what.add_argument(
        "--methods", metavar="NAMES", help="all (default), or names separated by commas; your own as file.py:Class"
    )
    what.add_argument("--preset", metavar="NAME", choices=tuple(ABLATIONS), help="one of the presets above instead of methods")
    grid.add_argument(
        "--seeds", default="1", metavar="N", help="number of seeds, from 0 on, or a list such as 0,5,7 (default: 1)"
    )
    grid.add_argument(
        "--jobs", type=positive, metavar="N", help="runs at the same time (default: one per core, as memory allows)"
    )
    grid.add_argument("--engine", choices=("local", "ray"), default="local", help="where to run (default: local)")
    add_settings(parser, one_run=False)
    add_resume(parser, "do what is missing in --out, with the settings that it has")
    add_output(parser)


def run_command(options: argparse.Namespace) -> int:
    from ..errors import ConfigError
    from ..reporting import figures
    from ..runs import run_folder as folder
    from ..runs import sweep_plan
    from ..runs.sweep import run_sweep

    figures.check_installed()  # before hours of training, not after
    out, settings = options.out, collect_settings(options)
    if options.resume and not out:
        raise ConfigError("--resume needs the folder of the runs: add --out DIR.")
    if options.resume and "benchmark" not in settings:
        if settings or options.methods or options.preset or options.seeds != "1":
            raise ConfigError("--resume takes all settings from the folder: leave out the others, or name the benchmark.")
        folders = sweep_plan.find_planned_runs(out)
    else:
        if "benchmark" not in settings:
            raise ConfigError(NO_BENCHMARK)
        out = out or sweep_plan.choose_sweep_folder(settings, options.preset or "compare")
        if options.preset:
            arms = sweep_plan.make_preset_arms(options.preset, settings)
        else:
            arms = sweep_plan.make_method_arms(options.methods or "all")
        folders = sweep_plan.plan_runs(settings, arms, sweep_plan.parse_seeds(options.seeds), Path(out), options.data)
    try:
        failures = run_sweep(
            out,
            folders,
            data=options.data,
            jobs=options.jobs,
            engine=options.engine,
            trust_code=options.trust_code or not options.resume or "benchmark" in settings,
            progress=False if options.quiet else None,
            print_line=lambda text: print(text, flush=True),
        )
    except KeyboardInterrupt:
        print(f"\n{folder.format_interrupted(out)}", file=sys.stderr)
        return 130
    for text in failures:
        print(f"spacecl: failed: {text}", file=sys.stderr)
    if failures:
        command = ["spacecl", "compare", "--resume", "--out", str(out)]
        command += ["--data", options.data] if options.data else []
        command += ["--trust-code"] if options.trust_code else []
        command += ["--engine", options.engine] if options.engine != "local" else []
        print(f"spacecl: to do the runs that are missing: {shlex.join(command)}", file=sys.stderr)
    if any((folder / "result.json").exists() for folder in folders):
        show_report(out)
    return int(bool(failures))
