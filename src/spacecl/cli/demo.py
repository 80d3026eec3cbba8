"""`spacecl demo`: five small tasks with SPACE and with plain fine-tuning."""

from __future__ import annotations

import argparse
from typing import Any

from .terminal import positive


def add_command(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="five small tasks with SPACE and with plain fine-tuning, in about a minute",
        description="Learn five tasks in a row (handwritten digits, with another permutation of the pixels in each task), once "
        "with SPACE and once with plain fine-tuning. Print the accuracies of both, and save the learner that SPACE taught.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--out", default="spacecl-demo", metavar="DIR", help="folder to save the learner in")
    demo.add_argument("--tasks", type=positive, default=5, metavar="N", help="number of tasks")
    demo.add_argument("--epochs", type=positive, default=30, metavar="N", help="epochs of training per task")
    demo.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same bits")
    demo.add_argument("--quiet", action="store_true", help="no progress bars")


def run_command(options: argparse.Namespace) -> int:
    from ..runs import demo

    demo.run(options.out, options.tasks, options.epochs, options.seed, False if options.quiet else None)
    return 0
