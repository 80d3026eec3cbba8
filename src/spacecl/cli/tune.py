"""`spacecl tune`: choose a method's settings on validation data."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from .options import HelpFormatter, add_output, add_settings, collect_settings
from .terminal import console

EPILOG = """\
examples:
  spacecl tune p-fashion --method ewc --over strength=0.1,1,10,100,1000 --limit 600
  spacecl tune permuted-digits --method hat --over compressibility=0.1,0.5 --over train.lr=0.001,0.003
  spacecl tune split-cifar10 --over 'variance=0.8,0.9,{conv1=0.95, "*"=0.85}'
  spacecl tune permuted-digits --method my_method.py:L2Anchor --over strength=0.1,1,10

Every combination of values is a run with its own folder below --out. A tenth of the training data is set aside to compare
them; test data are never read. tune.json in --out lists all combinations and the time spent. The same command resumes a
search that was stopped. spacecl run --help lists all settings.

Exit codes: 0 success, 1 failure with a message or all combinations diverged, 2 wrong usage, 130 interrupted."""


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "tune",
        help="choose a method's settings on validation data",
        description="Run a method with every combination of some values, compare them on validation data, and print the best "
        "combination and the time that the search took.",
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.declare = _declare


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", metavar="BENCHMARK", help="as for spacecl run")
    parser.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="KEY=V1,V2",
        help="values to try for an option of the method, or for train.NAME; may be given several times",
    )
    add_settings(parser)
    add_output(parser)


def run_command(options: argparse.Namespace) -> int:
    from ..runs import run_folder as folder
    from ..runs import tune
    from ..runs.config import to_toml
    from ..runs.methods import shorten_method

    settings, values = collect_settings(options), tune.parse_choices(options.over)
    method = shorten_method(str(settings.get("method", "space")))
    out = options.out or f"runs/tune-{folder.shorten_name(settings['benchmark'])}-{method}"
    show = False if options.quiet else None
    try:
        search = tune.tune(
            settings, values, out, data=options.data, progress=show, print_line=lambda text: print(text, flush=True)
        )
    except KeyboardInterrupt:
        print(f"\n{folder.format_interrupted(out)}", file=sys.stderr)
        return 130
    console().print(tune.make_tune_table(search))
    if search["best"] is None:
        print("spacecl: every combination diverged. Try a lower learning rate with --lr.", file=sys.stderr)
        return 1
    best = [part for key, value in search["best"].items() for part in ("--set", f"{key}={to_toml(value)}")]
    command = shlex.join(["spacecl", "run", *_remove_flags(options.arguments[1:], ("--over", "--out")), *best])
    print(f"All combinations are in {out}/tune.json. To run the best one: {command}")
    return 0


def _remove_flags(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command line without some flags and their values."""
    rest, is_value = [], False
    for argument in arguments:
        if not is_value and argument.partition("=")[0] not in flags:
            rest.append(argument)
        is_value = not is_value and argument in flags
    return rest
