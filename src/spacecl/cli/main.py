"""The command line. Commands load what they need when they run, so that --help answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import compare, data, demo, export, inspect, report, run, serve, tune, verify
from .terminal import keep_interrupts

COMMANDS = {
    "demo": demo,
    "run": run,
    "tune": tune,
    "compare": compare,
    "report": report,
    "data": data,
    "export": export,
    "serve": serve,
    "verify": verify,
    "inspect": inspect,
}


def parser() -> argparse.ArgumentParser:
    from .. import __version__

    top = argparse.ArgumentParser(
        prog="spacecl",
        description="Teach one fixed-size PyTorch network many tasks, one after another, without forgetting any.",
        epilog="Exit codes: 0 done, 1 failed with a message, 2 wrong usage, 130 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"spacecl {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS.values():
        command.add_command(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors made for users are shown as text, without a traceback."""
    try:
        with keep_interrupts():
            options = parser().parse_args(arguments)
            options.arguments = sys.argv[1:] if arguments is None else list(arguments)
            return COMMANDS[options.command].run_command(options)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        from ..errors import SpaceError

        if not isinstance(error, (SpaceError, OSError)):
            raise
        print(f"spacecl: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
