"""What long work shows on a terminal: task, phase, epoch, loss, accuracy and time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Step = Callable[[str], None]  # called after every step with what to say of it


@contextmanager
def track(title: str, steps: int, show: bool | None = None) -> Iterator[Step]:
    """A progress bar over so many steps; silent when `show` is False, or is None and there is no terminal."""
    if show is None:
        show = sys.stderr.isatty()
    if not show or steps < 1:
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(title, total=steps, text="")
        yield lambda text: progress.update(bar, advance=1, text=text)
