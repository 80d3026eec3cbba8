"""Progress bars for long work: task, phase, epoch, loss, score and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, SupportsFloat

from .errors import ConfigError

StepCallback = Callable[[str, SupportsFloat, float], None]  # called after every step: the epoch, the loss, the latest score
BarFactory = Callable[[str, int, int], AbstractContextManager[StepCallback]]  # a phase's title, its steps, those done already
Progress = bool | BarFactory | None  # show, hide, show in the user's own way; None: show if there is a terminal


@contextmanager
def track(title: str, steps: int, show: Progress = None, done: int = 0, metric: str = "") -> Iterator[StepCallback]:
    """Show a progress bar for a phase, and give the function to call after every step.

    Parameters
    ----------
    title : the phase, such as "cats: train".
    steps : how many steps the phase has.
    show : whether to show it, or a function of the user's own that does; None shows it if there is a terminal.
    done : how many steps were done before, in a run that is resumed.
    metric : the name of the score.
    """
    if callable(show):
        bar = show(title, steps, done)
        if not isinstance(bar, AbstractContextManager):
            raise ConfigError(f"progress={show!r} must return a context manager; it returned a {type(bar).__name__}.")
        with bar as on_step:
            yield on_step
        return
    if not is_shown(show) or steps < 1:
        yield lambda epoch, loss, score: None
        return
    from rich.progress import TimeRemainingColumn

    with _make_bars(TimeRemainingColumn()) as progress:
        bar = progress.add_task(title, total=steps, completed=done, text="")
        yield lambda epoch, loss, score: progress.update(bar, advance=1, text=_format_step(epoch, loss, score, metric))


def is_shown(show: bool | None) -> bool:
    """Return whether to show progress; None shows it if standard error is a terminal."""
    return sys.stderr.isatty() if show is None else show


class Overview:
    """Progress of a run of many phases: the current phase, and the time left for the run.

    Parameters
    ----------
    plan : the number of steps of every coming phase, by title.
    pace : seconds per step, by the last word of a phase's title, because retraining is faster than training.
    metrics : the names of the scores of phases, by title.
    """

    def __init__(
        self, plan: Mapping[str, int], pace: Mapping[str, float] | None = None, metrics: Mapping[str, str] | None = None
    ):
        self.plan, self.pace, self.metrics = dict(plan), dict(pace or {}), metrics or {}

    def estimate_seconds(self, title: str, remaining: int) -> float | None:
        """Return the seconds until all is done, or None before any step was timed."""
        if not self.pace:
            return None
        slowest = max(self.pace.values())
        coming = {**self.plan, title: remaining}
        return sum(steps * self.pace.get(name.split()[-1], slowest) for name, steps in coming.items())

    @contextmanager
    def __call__(self, title: str, steps: int, done: int) -> Iterator[StepCallback]:
        started, count = time.perf_counter(), 0
        kind = title.split()[-1]
        with _make_bars() as progress:
            bar = progress.add_task(title, total=steps, completed=done, text="")

            def on_step(epoch: str, loss: SupportsFloat, score: float) -> None:
                nonlocal count
                count += 1
                if count >= 10 or kind not in self.pace:  # the first steps are slow
                    self.pace[kind] = (time.perf_counter() - started) / count
                seconds = self.estimate_seconds(title, steps - done - count)
                text = f"{_format_step(epoch, loss, score, self.metrics.get(title, ''))}  run: {format_duration(seconds)} left"
                progress.update(bar, advance=1, text=text)

            yield on_step
        self.plan.pop(title, None)


def format_widths(widths: Mapping[str, int]) -> str:
    """Format the widths of a network's layers.

    >>> format_widths({"conv1": 11, "conv2": 7})
    '11-7'
    """
    return "-".join(map(str, widths.values())) if len(widths) <= 8 else f"{len(widths)} layers"


def format_duration(seconds: float | None) -> str:
    """Format a duration.

    >>> format_duration(42), format_duration(754), format_duration(7300)
    ('42 s', '12 min 34 s', '2 h 1 min')
    """
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


SHARES = ("accuracy", "mean average precision")  # metrics whose scores are from 0 to 1, and written in percent


def format_score(score: float, metric: str, digits: int = 2) -> str:
    """A score for people: in percent if the metric is a share.

    >>> format_score(0.913, "accuracy"), format_score(-0.25, "R²"), format_score(0.913, "accuracy", digits=0)
    ('91.30%', '-0.2500', '91%')
    """
    return f"{score:.{digits}%}" if metric in SHARES else f"{score:.{digits + 2}f}"


def _format_step(epoch: str, loss: SupportsFloat, score: float, metric: str) -> str:
    name = metric or "accuracy"
    text = "" if score != score else f"  {name} {format_score(score, name, 1)}"  # NaN before the end of the first epoch
    return f"{epoch}  loss {float(loss):.3f}{text}"


def _make_bars(*more: Any) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    text = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[text]"))
    columns = (next(text), BarColumn(bar_width=24), next(text), *more)
    return Bars(*columns, console=console, transient=console.is_terminal)


class _Download:
    """A bar with the interface that pooch expects of a progress bar."""

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
    """Give a bar for one download, for pooch's `progressbar` option, or False to show none."""
    if not is_shown(show):
        yield False
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Bars(*columns, console=Console(stderr=True)) as bars:
        yield _Download(bars, title)
