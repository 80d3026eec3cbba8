"""What long work shows on a terminal: task, phase, epoch, loss, accuracy and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, SupportsFloat

from .errors import ConfigError

Tell = Callable[[str, SupportsFloat, float], None]  # after every step: the epoch, the loss, the latest accuracy
Tracker = Callable[[str, int, int], AbstractContextManager[Tell]]  # a phase's title, its steps, those done already
Progress = bool | Tracker | None  # shown, hidden, shown in a way of one's own, or shown on a terminal


@contextmanager
def track(title: str, steps: int, show: Progress = None, done: int = 0) -> Iterator[Tell]:
    """A progress bar over so many steps; silent when `show` is False, or is None and there is no terminal."""
    if callable(show):
        bar = show(title, steps, done)
        if not isinstance(bar, AbstractContextManager):
            raise ConfigError(f"progress={show!r} must return a context manager; it returned a {type(bar).__name__}.")
        with bar as tell:
            yield tell
        return
    if not is_shown(show) or steps < 1:
        yield lambda epoch, loss, accuracy: None
        return
    from rich.progress import TimeRemainingColumn

    with _bars(TimeRemainingColumn()) as progress:
        bar = progress.add_task(title, total=steps, completed=done, text="")
        yield lambda epoch, loss, accuracy: progress.update(bar, advance=1, text=_text(epoch, loss, accuracy))


def is_shown(show: bool | None) -> bool:
    return sys.stderr.isatty() if show is None else show


class Overview:
    """Bars for a run of many phases: the one that runs, and the whole with the time that is left for it.

    `plan` has the steps of every phase to come, by title. Seconds per step are those last seen of phases with
    the same last word, since retraining goes faster than training.
    """

    def __init__(self, plan: Mapping[str, int], pace: Mapping[str, float] | None = None):
        self.plan, self.pace = dict(plan), dict(pace or {})

    def left(self, title: str, remaining: int) -> float | None:
        """Seconds until all is done, or None before there is any pace to judge by."""
        if not self.pace:
            return None
        usual = max(self.pace.values())
        coming = {**self.plan, title: remaining}
        return sum(steps * self.pace.get(name.split()[-1], usual) for name, steps in coming.items())

    @contextmanager
    def __call__(self, title: str, steps: int, done: int) -> Iterator[Tell]:
        started, count = time.perf_counter(), 0
        kind = title.split()[-1]
        with _bars() as progress:
            bar = progress.add_task(title, total=steps, completed=done, text="")

            def tell(epoch: str, loss: SupportsFloat, accuracy: float) -> None:
                nonlocal count
                count += 1
                if count >= 10 or kind not in self.pace:  # the first steps are slow
                    self.pace[kind] = (time.perf_counter() - started) / count
                left = self.left(title, steps - done - count)
                text = f"{_text(epoch, loss, accuracy)}  run: {format_duration(left)} left"
                progress.update(bar, advance=1, text=text)

            yield tell
        self.plan.pop(title, None)


def format_widths(widths: Mapping[str, int]) -> str:
    """The widths of a network's layers, for people.

    >>> dashed({"conv1": 11, "conv2": 7})
    '11-7'
    """
    return "-".join(map(str, widths.values())) if len(widths) <= 8 else f"{len(widths)} layers"


def format_duration(seconds: float | None) -> str:
    """A duration for people.

    >>> clock(42), clock(754), clock(7300)
    ('42 s', '12 min 34 s', '2 h 1 min')
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _text(epoch: str, loss: SupportsFloat, accuracy: float) -> str:
    score = "" if accuracy != accuracy else f"  accuracy {accuracy:.1%}"  # none before the first epoch's end
    return f"{epoch}  loss {float(loss):.3f}{score}"


def _bars(*more: Any) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    text = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[text]"))
    columns = (next(text), BarColumn(bar_width=24), next(text), *more)
    return Bars(*columns, console=console, transient=console.is_terminal)


class _Download:
    """What pooch tells of a download, as a bar."""

    def __init__(self, bars: Any, title: str):
        self.bars, self.bar, self.total = bars, bars.add_task(title, total=None), 0

    def update(self, count: int) -> None:
        self.bars.update(self.bar, advance=count, total=self.total or None)

    def reset(self) -> None:
        self.bars.update(self.bar, completed=0)

    def close(self) -> None:
        pass


@contextmanager
def download_bar(title: str, show: bool | None = None) -> Iterator[Any]:
    """A bar for one download, in the form that pooch takes, or False for none."""
    if not is_shown(show):
        yield False
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Bars(*columns, console=Console(stderr=True)) as bars:
        yield _Download(bars, title)
