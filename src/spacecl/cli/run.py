"""`spacecl run`: learn the tasks of a benchmark one after another and measure what comes of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..data.benchmarks.presets import BENCHMARKS
from .options import add_settings, add_single_run, add_trust, given_settings
from .terminal import console, show_warnings_as_text

RUN = """\
Learn the tasks of a benchmark one after another and measure what comes of it.

benchmarks:
{benchmarks}
  FOLDER            your own pictures: a folder for each task, in it one for each class
                    (or train/, test/ and perhaps valid/ with class folders in them)
  FILE.py           a Python file with a function tasks() that returns a list of spacecl.Task
"""
RUN_MORE = """\
examples:
  spacecl run split-cifar10 --data ~/data --out runs/c10
  spacecl run p-mnist --recipe paper --seed 1
  spacecl run permuted-digits --set options.variance=0.9 --set train.lr=0.001
  spacecl run my-pictures/ --model my_net.py:network --epochs 20
  spacecl run --resume --out runs/c10

Settings come from the benchmark's recipe, then from --config FILE, then from the command line. Any can be set with
--set KEY=VALUE: train.NAME is a value of spacecl.Recipe, options.NAME one of the method's, later=[{from=3, lr=0.001}] a
change from the third task on; values are written as in TOML. A run that was stopped, in whatever way, goes on with
the same command and ends with the same bits.

Exit codes: 0 done, 1 failed with a message, 2 wrong usage, 130 interrupted."""


def add_command(commands: Any) -> None:
    names = "\n".join(f"  {name:17} {benchmark.title}" for name, benchmark in BENCHMARKS.items())
    run = commands.add_parser(
        "run",
        help="an experiment of the paper, or the same on your own data",
        description=RUN.format(benchmarks=names),
        epilog=RUN_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="one of the above")
    run.add_argument("--resume", action="store_true", help="go on with the run in --out, with the settings that it has")
    add_trust(run)
    add_single_run(run)
    add_settings(run)
    run.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard, in the run's folder")
    run.add_argument(
        "--no-measure", action="store_true", help="do not measure latency and energy, which a busy machine would spoil"
    )


def run_command(options: argparse.Namespace) -> int:
    from ..errors import ConfigError
    from ..runs import run
    from ..runs import run_folder as folder
    from ..runs.config import Config
    from ..runs.resolve import resolve

    show_warnings_as_text()
    given = given_settings(options)
    if options.resume and not options.out:
        raise ConfigError("--resume goes on with the run in a folder; say which with --out DIR.")
    if "benchmark" not in given:
        raise ConfigError(f"Which benchmark? One of {', '.join(BENCHMARKS)}, a folder of pictures or a Python file.")
    if options.resume and not options.trust_code:
        named = {options.benchmark, options.model}  # by the user, who knows what they are
        code = Config.from_file(Path(options.out) / "config.json").find_user_code()
        folder.refuse_code(options.out, [name for name in code if name in map(str, given.values()) and name not in named])
    settings = resolve(given, options.data)
    out = options.out or folder.folder_for(settings)
    try:
        result = run.run(
            settings,
            out,
            data=options.data,
            progress=False if options.quiet else None,
            tensorboard=options.tensorboard,
            measure=not options.no_measure,
            say=lambda text: print(text, flush=True),
        )
    except KeyboardInterrupt:
        print(f"\n{folder.interrupted(out)}", file=sys.stderr)
        return 130
    console().print(run.table(result))
    print(f"{out}/result.json has all of it, {out}/model the network.")
    return 0
