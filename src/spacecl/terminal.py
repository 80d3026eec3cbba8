"""What all commands share of the terminal: where tables go, how warnings read, what a number may be."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def console() -> Any:
    """Standard output; in a file or a pipe, lines are as long as they need to be."""
    from rich.console import Console

    return Console(soft_wrap=True, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 200)


@contextmanager
def keep_interrupts() -> Iterator[None]:
    """Raise an interrupt again that came where Python can raise nothing, such as in the callback of a weak reference.

    There Python prints the KeyboardInterrupt and drops it: Ctrl-C would not stop the command.
    """
    import _thread
    import threading

    usual = sys.unraisablehook

    def raise_again(problem: Any) -> None:
        if problem.exc_type is KeyboardInterrupt:
            again = threading.Timer(0.01, _thread.interrupt_main)  # not here: this is such a place itself
            again.daemon = True
            again.start()
        else:
            usual(problem)

    sys.unraisablehook = raise_again
    try:
        yield
    finally:
        sys.unraisablehook = usual


def show_warnings_as_text() -> None:
    import warnings

    from .errors import SpaceWarning

    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, SpaceWarning):
            print(f"spacecl: warning: {message}", file=sys.stderr)
        else:
            usual(message, category, *rest)

    warnings.showwarning = show  # type: ignore[assignment]


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def above_zero(text: str) -> float:
    number = zero_or_more(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def zero_or_more(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return number
