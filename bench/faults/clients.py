"""Many clients at a time query a server for a minute, each over a connection of its own; all responses must be right."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path

from .guard import MEMORY, SECONDS
from .outcome import Outcome
from .queries import QueryLog, make_queries, send_queries
from .server_process import Server, provide_run, start_server

FULL = 100  # clients, for
MINUTE = 60.0  # seconds; fewer clients take a shorter time


def run(count: int, seed: int) -> Outcome:
    with provide_run(None) as folder, start_server(folder) as server:
        return run_clients(server, folder, count, seed)


def run_clients(server: Server, folder: Path, count: int, seed: int) -> Outcome:
    """Query a server of the run in `folder` with `count` clients."""
    outcome, logs = Outcome("clients"), [QueryLog() for _ in range(count)]
    seconds = MINUTE * min(1.0, count / FULL)
    queries = make_queries(folder, 200, random.Random(seed))

    async def load() -> None:
        end = time.perf_counter() + seconds
        order = [queries[n % len(queries) :] + queries[: n % len(queries)] for n in range(count)]
        is_over = lambda: time.perf_counter() > end  # noqa: E731
        await asyncio.gather(*(send_queries(server.port, order[n], is_over, logs[n]) for n in range(count)))

    asyncio.run(load())
    outcome.peak_memory = server.peak_memory()
    errors = server.errors.read_text(errors="replace")
    for log in logs:
        outcome.add("client", "broken" if log.problems else "answered", log.problems[0] if log.problems else None)
        outcome.longest = max(outcome.longest, *log.seconds, 0.0)
    if errors:
        outcome.failures.append(f"the server printed errors: {errors[-3000:]}")
    if outcome.longest > SECONDS:
        outcome.failures.append(f"a request waited {outcome.longest:.1f} s")
    if outcome.peak_memory > MEMORY:
        outcome.failures.append(f"the server used {outcome.peak_memory / 2**30:.1f} GB")
    times = sorted(time for log in logs for time in log.seconds)
    outcome.notes.update(
        requests=len(times),
        requests_per_second=len(times) / seconds,
        median_ms=1e3 * statistics.median(times),
        p99_ms=1e3 * times[int(0.99 * len(times))],
        busy=sum(log.busy for log in logs),
        largest_deviation=max(log.largest_deviation for log in logs),
    )
    return outcome
