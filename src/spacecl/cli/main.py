"""The command line. Each command loads what it needs when it runs, so that `spacecl --help` is fast."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import check, compare, data, demo, export, inspect, report, run, serve, show, tune, verify
from .options import CommandParser
from .terminal import keep_interrupts, show_warnings_as_text

COMMANDS = {
    "demo": demo,
    "run": run,
    "tune": tune,
    "compare": compare,
    "report": report,
    "show": show,
    "check": check,
    "data": data,
    "export": export,
    "serve": serve,
    "verify": verify,
    "inspect": inspect,
}


def build_parser() -> argparse.ArgumentParser:
    from .. import __version__

    parser = argparse.ArgumentParser(
        prog="spacecl",
        description="Teach one PyTorch network of fixed size many tasks, one after another, without forgetting any.",
        epilog="Help on a command: spacecl COMMAND --help. "
        "Exit codes: 0 success, 1 failure with a message, 2 wrong usage, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"spacecl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=CommandParser)
    for command in COMMANDS.values():
        command.add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors meant for users are printed without a traceback."""
    try:
        with keep_interrupts():
            options = build_parser().parse_args(arguments)
            options.arguments = sys.argv[1:] if arguments is None else list(arguments)
            with show_warnings_as_text():
                return COMMANDS[options.command].run_command(options)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        from ..errors import SpaceError
        from ..runs.ranks import has_rank

        if has_rank():
            from ..runs.processes import end_process

            code = end_process(error)
            if code is not None:
                return code
        if not isinstance(error, (SpaceError, OSError)):
            raise
        print(f"spacecl: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
