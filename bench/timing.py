"""Times beside each other: whatever else the machine does, it does to all that are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Work = Callable[[], Any]
most_rounds: list[int] = []  # the fewer rounds that the user asked for, if any


@dataclass(frozen=True)
class Row:
    """One line of the table: what was compared, what is to be reached, what was measured and whether that is enough."""

    what: str
    against: str
    reach: str
    measured: str
    reached: bool
    figures: Mapping[str, float] = field(default_factory=dict)


def seconds(work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def together(works: Mapping[str, Work], rounds: int = 7, calls: int = 1) -> dict[str, list[float]]:
    """Seconds of each work in every round; in a round each runs once, `calls` times in a row, after one round to warm up."""
    for work in works.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(min([rounds, *most_rounds])):
        for name, work in works.items():
            found[name].append(seconds(lambda work=work: [work() for _ in range(calls)]) / calls)  # type: ignore[misc]
    return found


def ratio(one: list[float], other: list[float]) -> float:
    """How many times the other's time one takes: the median over rounds, so that a disturbed round decides nothing."""
    return statistics.median(a / b for a, b in zip(one, other))
