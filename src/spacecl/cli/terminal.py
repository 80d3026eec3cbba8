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
    """Let an interrupt end the command as an interrupt, wherever it comes.

    Within the callback of a weak reference Python prints the KeyboardInterrupt and drops it: here it is raised again. While
    torch and NumPy are imported it becomes an error of theirs: here it is an interrupt again.
    """
    import _thread
    import signal
    import threading

    usual, came = sys.unraisablehook, False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def raise_again(problem: Any) -> None:
        if problem.exc_type is KeyboardInterrupt:
            again = threading.Timer(0.01, _thread.interrupt_main)  # not here: this is such a place itself
            again.daemon = True
            again.start()
        else:
            usual(problem)

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = raise_again
    try:
        yield
    except Exception as error:
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        sys.unraisablehook = usual
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def show_warnings_as_text() -> Iterator[None]:
    """Print spacecl's own warnings as one line of text while a command runs; all others look as usual."""
    import warnings

    from ..errors import SpaceWarning

    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, SpaceWarning):
            print(f"spacecl: warning: {message}", file=sys.stderr)
        else:
            usual(message, category, *rest)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = usual


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
