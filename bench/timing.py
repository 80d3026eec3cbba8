"""Time things side by side, in turns: whatever else the machine does slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Work = Callable[[], Any]
round_limit: list[int] = []  # the fewer rounds that the user asked for, if any


@dataclass(frozen=True)
class Row:
    """One line of the table: what was compared with which baseline, the target, the result, and whether it is good enough."""

    what: str
    baseline: str
    target: str
    result: str
    passed: bool
    figures: Mapping[str, float] = field(default_factory=dict)


def measure_seconds(work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def time_in_turns(works: Mapping[str, Work], rounds: int = 7, calls: int = 1) -> dict[str, list[float]]:
    """Return the seconds per call of each work, for every round; in a round each work runs `calls` times in a row.

    Each work runs once before the first round, to warm up.
    """
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(min([rounds, *round_limit])):
        for name, work in works.items():
            seconds[name].append(measure_seconds(lambda work=work: [work() for _ in range(calls)]) / calls)  # type: ignore[misc]
    return seconds


def compute_ratio(times: list[float], baseline: list[float]) -> float:
    """Return how many times as long one work takes as the other: the median over rounds, so that outliers do not count."""
    return statistics.median(a / b for a, b in zip(times, baseline))
