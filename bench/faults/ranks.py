"""Kill one of several processes that train together, end the others as torchrun would, resume them all, and compare.

Most runs go on with the number of processes that they began with, and must end with the bits of an undisturbed run. The
others change it at every attempt: their committed tasks must stay what they were, and every epoch must be there once.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .kills import METHODS, count_committed, read_content, run_forked, warm_up
from .outcome import Outcome

WORLDS = (2, 3)
CHANGING = 5  # one run in so many changes the number of processes
GRACE = 3.0  # seconds for processes to notice that another one is gone, before they are ended
ATTEMPT = 120.0  # seconds for an undisturbed run


@dataclass(frozen=True)
class Attempt:
    """How the processes of an attempt ended: their exit codes, the seconds, and what they printed to standard error."""

    codes: tuple[int, ...]
    seconds: float
    errors: str


def run(count: int, seed: int) -> Outcome:
    import torch

    outcome, draw = Outcome("ranks"), random.Random(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a process that is forked while threads compute could deadlock
    try:
        with tempfile.TemporaryDirectory(prefix="spacecl-ranks-") as place:
            warm_up(Path(place))
            references: dict[tuple[str, int], tuple[dict[str, Any], float]] = {}
            runs = 0
            while outcome.tried < count:
                method, world = METHODS[runs % len(METHODS)], draw.choice(WORLDS)
                if (method, world) not in references:
                    folder = Path(place) / f"undisturbed-{method}-{world}"
                    attempt = _run_together(folder, method, world)
                    assert not any(attempt.codes), attempt.errors
                    references[method, world] = read_content(folder), attempt.seconds
                changing = runs % CHANGING == CHANGING - 1
                _run_once(
                    Path(place) / f"run-{runs}", method, world, *references[method, world], changing, count, draw, outcome
                )
                runs += 1
            outcome.notes.update(runs=runs)
    finally:
        torch.set_num_threads(threads)
    return outcome


def _run_once(
    folder: Path,
    method: str,
    world: int,
    reference: dict[str, Any],
    seconds: float,
    changing: bool,
    count: int,
    draw: random.Random,
    outcome: Outcome,
) -> None:
    """Start a run, kill one of its processes and resume it until it is done, and compare its files with the reference."""
    kind, committed, kills = f"{method}, {world} processes" + ", then other numbers" * changing, 0, []
    while True:
        victim, moment = draw.randrange(world), draw.uniform(0, seconds)
        last = outcome.tried >= count
        attempt = _run_together(folder, method, world, None if last else (victim, moment))
        outcome.longest = max(outcome.longest, attempt.seconds)
        present = count_committed(folder)
        problem = f"{committed} tasks were saved before, {present} are intact afterwards" if present < committed else None
        if any(attempt.codes):
            kills.append(f"rank {victim} of {world} after {moment:.2f} s")
            problem = problem or (f"a traceback: {attempt.errors[-2000:]}" if "Traceback" in attempt.errors else None)
            problem = problem or (f"exit codes {attempt.codes}: {attempt.errors[-500:]}" if last else None)
            verdict = "killed" if problem is None else "broken"
            outcome.add(kind, verdict, problem and f"{problem} ({folder.name}; {', '.join(kills)})")
            if problem is not None:
                return
        else:
            break
        committed, world = present, draw.choice((1, *WORLDS)) if changing else world
    found = read_content(folder)  # which verifies all digests
    if changing:
        rows = [[(row["task"], row["phase"], row["epoch"]) for row in _list_epochs(some)] for some in (found, reference)]
        different = [] if rows[0] == rows[1] else ["the epochs in metrics.jsonl"]
    else:
        different = sorted(key for key in {*found, *reference} if found.get(key) != reference.get(key))
    if different:
        outcome.failures.append(f"{kind}: other than undisturbed: {', '.join(different)} ({folder.name}; {', '.join(kills)})")


def _list_epochs(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in content["metrics.jsonl"] if row["kind"] == "epoch"]


def _run_together(folder: Path, method: str, world: int, kill: tuple[int, float] | None = None) -> Attempt:
    """Run in so many forked processes, of which one is killed after some seconds, unless they have ended before."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started, pids = time.perf_counter(), {}
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            names = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "faults"}
            os.environ.update({key: str(value) for key, value in (names | address).items()})
            run_forked(folder, method, folder.with_name(f"errors-{rank}.txt"), None, 0, None)
        pids[pid] = rank
    codes: dict[int, int] = {}
    end = None  # when those that are left are ended
    while len(codes) < world:
        now = time.perf_counter() - started
        if kill is not None and now >= kill[1] and end is None:
            for pid, rank in pids.items():
                if rank == kill[0] and rank not in codes:
                    os.kill(pid, signal.SIGKILL)
        if (end is not None and now > end) or now > ATTEMPT:
            for pid, rank in pids.items():
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended:
            codes[pids[ended]] = os.waitstatus_to_exitcode(status)
            if codes[pids[ended]] != 0 and end is None:
                end = now + GRACE
        else:
            time.sleep(0.005)
    errors = "".join(folder.with_name(f"errors-{rank}.txt").read_text(errors="replace") for rank in range(world))
    return Attempt(tuple(codes[rank] for rank in range(world)), time.perf_counter() - started, errors)
