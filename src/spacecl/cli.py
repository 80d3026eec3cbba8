"""The command line. Commands load what they need when they run, so that --help answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def parser() -> argparse.ArgumentParser:
    from . import __version__

    top = argparse.ArgumentParser(
        prog="spacecl",
        description="Teach one fixed-size PyTorch network many tasks, one after another, without forgetting any.",
        epilog="Exit codes: 0 done, 1 failed with a message, 2 wrong usage, 130 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"spacecl {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="five small tasks, SPACE beside plain fine-tuning, in about a minute",
        description="Learn five tasks in a row (handwritten digits, the pixels of each task in an order of its own), once with "
        "SPACE and once with plain fine-tuning. Show what each still knows, and save the network that SPACE taught.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--out", default="spacecl-demo", metavar="DIR", help="where to save the model")
    demo.add_argument("--tasks", type=_positive, default=5, metavar="N", help="how many tasks to learn")
    demo.add_argument(
        "--variance", type=float, default=0.97, metavar="X", help="share of variance that new filters must explain"
    )
    demo.add_argument("--epochs", type=_positive, default=30, metavar="N", help="epochs of training per task")
    demo.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same bits")
    demo.add_argument("--quiet", action="store_true", help="no progress bars")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors made for users are shown as text, without a traceback."""
    options = parser().parse_args(arguments)
    try:
        from . import demo

        demo.run(options.out, options.tasks, options.variance, options.epochs, options.seed, False if options.quiet else None)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        from .errors import SpaceError

        if not isinstance(error, (SpaceError, OSError)):
            raise
        print(f"spacecl: {error}", file=sys.stderr)
        return 1
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


if __name__ == "__main__":
    sys.exit(main())
