"""What long work shows on a terminal: task, phase, epoch, loss, accuracy and time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import SupportsFloat

Tell = Callable[[str, SupportsFloat, float], None]  # after every step: the epoch, the loss, the latest accuracy


@contextmanager
def track(title: str, steps: int, show: bool | None = None) -> Iterator[Tell]:
    """A progress bar over so many steps; silent when `show` is False, or is None and there is no terminal."""
    if show is None:
        show = sys.stderr.isatty()
    if not show or steps < 1:
        yield lambda epoch, loss, accuracy: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=console.is_terminal) as progress:
        bar = progress.add_task(title, total=steps, text="")

        def tell(epoch: str, loss: SupportsFloat, accuracy: float) -> None:
            score = "" if accuracy != accuracy else f"  accuracy {accuracy:.1%}"  # none before the first epoch's end
            progress.update(bar, advance=1, text=f"{epoch}  loss {float(loss):.3f}{score}")

        yield tell
