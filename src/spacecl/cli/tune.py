"""`spacecl tune`: choose a method's settings on validation data."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from .options import add_settings, add_single_run, given_settings
from .terminal import console, show_warnings_as_text

TUNE_MORE = """\
examples:
  spacecl tune p-fashion --method ewc --over strength=0.1,1,10,100,1000 --limit 600
  spacecl tune permuted-digits --method hat --over compressibility=0.1,0.5 --over train.lr=0.001,0.003
  spacecl tune split-cifar10 --over 'variance=0.8,0.9,{conv1=0.95, "*"=0.85}'

Every combination is a run of its own in the folder --out, with a tenth of the training data to judge by; test data are never
read. tune.json there lists all of them and what was spent. The same command goes on where it was stopped.

Exit codes: 0 done, 1 failed with a message or every combination diverged, 2 wrong usage, 130 interrupted."""


def add_command(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="choose a method's settings on validation data",
        description="Run a method with every combination of some values, compare them on validation data, and say which is "
        "best and what the search has cost.",
        epilog=TUNE_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tune.add_argument("benchmark", metavar="BENCHMARK", help="as for spacecl run")
    tune.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="KEY=V1,V2",
        help="values to try: of an option of the method, or of train.NAME; may be given many times",
    )
    add_single_run(tune)
    add_settings(tune)


def run_command(options: argparse.Namespace) -> int:
    from ..runs import run_folder as folder
    from ..runs import tune
    from ..runs.config import to_toml

    show_warnings_as_text()
    given, over = given_settings(options), tune.choices(options.over)
    out = options.out or f"runs/tune-{folder.short_name(given['benchmark'])}-{given.get('method', 'space')}"
    say = lambda text: print(text, flush=True)  # noqa: E731
    try:
        found = tune.tune(given, over, out, data=options.data, progress=False if options.quiet else None, say=say)
    except KeyboardInterrupt:
        print(f"\n{folder.interrupted(out)}", file=sys.stderr)
        return 130
    console().print(tune.table(found))
    if found["best"] is None:
        print("spacecl: every combination diverged. Try a lower learning rate: --lr ...", file=sys.stderr)
        return 1
    best = [part for key, value in found["best"].items() for part in ("--set", f"{key}={to_toml(value)}")]
    command = shlex.join(["spacecl", "run", *_without(options.arguments[1:], ("--over", "--out")), *best])
    print(f"{out}/tune.json has all of it. To use the best: {command}")
    return 0


def _without(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command line without some flags and their values."""
    found, skip = [], False
    for argument in arguments:
        if not skip and argument.partition("=")[0] not in flags:
            found.append(argument)
        skip = not skip and argument in flags
    return found
