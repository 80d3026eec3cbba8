"""Run cases in a process of their own, so that crashes, hangs and full memory are counted and the next case runs."""

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

SECONDS = 10.0  # of processor time; a case that takes more counts as a hang
PATIENCE = 6  # times this, in wall time; the machine may be busy with other work
MEMORY = 2 << 30  # bytes that a process may use
Case = TypeVar("Case")


def run_guarded(
    part: str,
    cases: Sequence[Case],
    function: Callable[[Case], str],
    *,
    kind: Callable[[Case], str] = str,
    describe: Callable[[Case], str] = str,
    seconds: float = SECONDS,
    memory: int = MEMORY,
) -> Outcome:
    """Call a function with every case and collect the verdicts.

    The function returns a verdict in a word or two, such as "loaded" or "refused", and raises AssertionError if a result is
    wrong. An error that spacecl raises on purpose counts as "refused". Any other exception, a process that dies, a case that
    takes too long and a process that uses too much memory are failures.
    """
    outcome = Outcome(part)
    todo = list(enumerate(cases))[::-1]
    context = multiprocessing.get_context("fork")
    while todo:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, cases, function), daemon=True)
        process.start()
        theirs.close()
        try:
            while todo:
                number, case = todo.pop()
                started = time.perf_counter()
                result = _run_case(ours, number, seconds, process.pid or 0)
                outcome.longest = max(outcome.longest, time.perf_counter() - started)
                if isinstance(result, str):  # the process has ended, or must be ended
                    outcome.add(kind(case), result, f"{result} ({describe(case)})")
                    break
                verdict, failure, peak = result
                outcome.peak_memory = max(outcome.peak_memory, peak)
                if failure is None and peak > memory:
                    verdict, failure = "memory", f"the process uses {peak / 2**30:.1f} GB"
                outcome.add(kind(case), verdict, None if failure is None else f"{failure} ({describe(case)})")
                if verdict == "memory":
                    break
        finally:
            process.kill()
            process.join()
            ours.close()
    return outcome


def _run_case(connection: Connection, number: int, seconds: float, process: int) -> Any:
    try:
        connection.send(number)
        started, busy = time.perf_counter(), _read_processor_seconds(process)
        while not connection.poll(0.5):
            waited = time.perf_counter() - started
            if _read_processor_seconds(process) - busy > seconds or waited > PATIENCE * seconds:
                return "hang"
        return connection.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return "crash"


def _read_processor_seconds(process: int) -> float:
    """Return the processor time that a process has used so far."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _work(connection: Connection, cases: Sequence[Any], function: Callable[[Any], str]) -> None:
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
            verdict = function(cases[number])
        except SpaceError:
            verdict = "refused"
        except AssertionError as error:
            verdict, failure = "wrong", f"wrong: {error}"
        except BaseException as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            verdict, failure = "traceback", f"{type(error).__name__}: {str(error)[:200]} at {frame.filename}:{frame.lineno}"
        connection.send((verdict, failure, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
