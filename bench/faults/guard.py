"""Run cases in a process of their own, so that a crash, a hang or a full memory is counted and the next case runs."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from .outcome import Outcome

SECONDS = 10.0  # of processor time: a case that takes more hangs
PATIENCE = 6  # times as long may pass on a busy machine before a case hangs that uses no processor
MEMORY = 2 << 30  # bytes that a process may hold
Case = TypeVar("Case")


def run_guarded(
    part: str,
    cases: Sequence[Case],
    do: Callable[[Case], str],
    *,
    kind: Callable[[Case], str] = str,
    describe: Callable[[Case], str] = str,
    seconds: float = SECONDS,
    memory: int = MEMORY,
) -> Outcome:
    """Call `do` with every case and collect the verdicts.

    `do` returns a verdict in a word or two, such as "loaded" or "refused". An error that spacecl raises on purpose counts
    as "refused"; any other exception, a death of the process, a case that takes too long and a process that holds too much
    memory are failures. `do` raises AssertionError where an answer is wrong.
    """
    outcome = Outcome(part)
    todo = list(enumerate(cases))[::-1]
    context = multiprocessing.get_context("fork")
    while todo:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, cases, do), daemon=True)
        process.start()
        theirs.close()
        try:
            while todo:
                number, case = todo.pop()
                started = time.perf_counter()
                problem = _one(ours, number, seconds, process.pid or 0)
                outcome.longest = max(outcome.longest, time.perf_counter() - started)
                if isinstance(problem, str):  # the process is gone, or must go
                    outcome.add(kind(case), problem, f"{problem} ({describe(case)})")
                    break
                verdict, failure, peak = problem
                outcome.peak_memory = max(outcome.peak_memory, peak)
                if failure is None and peak > memory:
                    verdict, failure = "memory", f"the process holds {peak / 2**30:.1f} GB"
                outcome.add(kind(case), verdict, None if failure is None else f"{failure} ({describe(case)})")
                if verdict == "memory":
                    break
        finally:
            process.kill()
            process.join()
            ours.close()
    return outcome


def _one(connection: Connection, number: int, seconds: float, process: int) -> Any:
    try:
        connection.send(number)
        started, busy = time.perf_counter(), _processor_seconds(process)
        while not connection.poll(0.5):
            waited = time.perf_counter() - started
            if _processor_seconds(process) - busy > seconds or waited > PATIENCE * seconds:
                return "hang"
        return connection.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return "crash"


def _processor_seconds(process: int) -> float:
    """The processor time that a process has used so far."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _work(connection: Connection, cases: Sequence[Any], do: Callable[[Any], str]) -> None:
    import torch

    from spacecl.errors import SpaceError

    torch.set_num_threads(1)
    while True:
        try:
            number = connection.recv()
        except EOFError:
            return
        failure = None
        try:
            verdict = do(cases[number])
        except SpaceError:
            verdict = "refused"
        except AssertionError as error:
            verdict, failure = "wrong", f"wrong: {error}"
        except BaseException as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            verdict, failure = "traceback", f"{type(error).__name__}: {str(error)[:200]} at {frame.filename}:{frame.lineno}"
        connection.send((verdict, failure, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
