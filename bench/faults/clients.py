"""Many clients at a time ask a server for a minute, each over a connection of its own; all answers must be right."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path

from .guard import MEMORY, SECONDS
from .outcome import Outcome
from .requests import Good, ask, make_questions, serving, small_run

FULL = 100  # clients, for
MINUTE = 60.0  # seconds; fewer clients ask for a shorter time


def run(count: int, seed: int, folder: Path | None = None) -> Outcome:
    outcome, good = Outcome("clients"), [Good() for _ in range(count)]
    seconds = MINUTE * min(1.0, count / FULL)
    with small_run(folder) as made, serving(made) as server:
        questions = make_questions(made, 200, random.Random(seed))

        async def load() -> None:
            ends = time.perf_counter() + seconds
            over = lambda: time.perf_counter() > ends  # noqa: E731
            order = [questions[n % len(questions) :] + questions[: n % len(questions)] for n in range(count)]
            await asyncio.gather(*(ask(server.port, order[n], over, good[n]) for n in range(count)))

        asyncio.run(load())
        outcome.peak_memory = server.peak_memory()
        log = server.errors.read_text(errors="replace")
    for each in good:
        outcome.add("client", "broken" if each.wrong else "answered", each.wrong[0] if each.wrong else None)
        outcome.longest = max(outcome.longest, *each.seconds, 0.0)
    if log:
        outcome.failures.append(f"the server wrote to its log: {log[-3000:]}")
    if outcome.longest > SECONDS:
        outcome.failures.append(f"a request waited {outcome.longest:.1f} s")
    if outcome.peak_memory > MEMORY:
        outcome.failures.append(f"the server held {outcome.peak_memory / 2**30:.1f} GB")
    times = sorted(time for each in good for time in each.seconds)
    outcome.notes.update(
        requests=len(times),
        requests_per_second=len(times) / seconds,
        median_ms=1e3 * statistics.median(times),
        p99_ms=1e3 * times[int(0.99 * len(times))],
        busy=sum(each.busy for each in good),
        largest_deviation=max(each.largest for each in good),
    )
    return outcome
