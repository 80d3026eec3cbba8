"""`spacecl check`: check that a method, a user's own or one of spacecl's, does what every method must."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from .options import HelpFormatter, describe_method

EPILOG = """\
examples:
  spacecl check my_method.py:L2Anchor
  spacecl check space

The checks train small networks on small tasks, on the CPU, for about a minute. docs/extending.md shows how to write a method.

Exit codes: 0 every check has passed or does not apply, 1 a check has failed, 2 wrong usage, 130 interrupted."""


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="check that a method of your own does what every method must",
        description="Check a method: that it repeats itself to the bit, resumes after a crash, forgets only if it says so, "
        "saves and loads, reports its sizes, and takes options as every method of spacecl does.",
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("method", metavar="METHOD", help="your own as file.py:Class, or one of spacecl's, such as space")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_command(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from ..checks.subject import Subject
    from ..checks.suite import run_checks
    from ..errors import ConfigError
    from ..options import suggest
    from ..progress import format_duration
    from ..runs.methods import METHOD_ORDER, shorten_method

    if ":" not in options.method and options.method not in METHOD_ORDER:
        hint = suggest(options.method, METHOD_ORDER) or f"; the methods are {', '.join(METHOD_ORDER)}"
        raise ConfigError(f"There is no method {options.method}{hint}. Name your own as file.py:Class.")
    subject, outcomes, start = Subject(options.method), [], time.perf_counter()
    if not options.json:
        print("\n".join([*describe_method(shorten_method(options.method), subject.kind), ""]), flush=True)
    for outcome in run_checks(subject):
        outcomes.append(outcome)
        if not options.json:
            state = outcome.state.upper() if outcome.state == "fail" else outcome.state
            print(f"{state}  {outcome.title}, {outcome.seconds:.1f} s", flush=True)
            if outcome.reason:
                print(f"      {outcome.reason}", flush=True)
    counts = {state: sum(outcome.state == state for outcome in outcomes) for state in ("pass", "fail", "skip")}
    if options.json:
        print(json.dumps({"method": options.method, "checks": [asdict(outcome) for outcome in outcomes]}, indent=1))
    else:
        time_text = format_duration(time.perf_counter() - start)
        print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped, in {time_text}.")
    return int(counts["fail"] > 0)
