"""Execute the runs of a comparison, each in a process of its own, on this machine or on a Ray cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import ConfigError
from .cluster import connect
from .events import Failed, read_events

LOG = "log.txt"


@dataclass(frozen=True)
class Job:
    """A run to execute."""

    name: str  # for people: its folder below that of the comparison
    folder: str
    data: str | None  # folder with datasets
    threads: int
    trust_code: bool  # whether code that the folder names may be run
    variables: Mapping[str, str]  # of the environment, which a worker on another machine does not have


@dataclass(frozen=True)
class Outcome:
    """How the process of a run has ended."""

    problem: str | None  # why the run is not finished, for people
    host: str


class Processes:
    """The processes of a comparison. When it stops, they are ended, and no more can start."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def run(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> int | None:
        """Run a command to its end and return its exit code, or None if the comparison has stopped before it started."""
        with log.open("ab") as stream:
            with self._lock:
                if self._stopped:
                    return None
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=dict(environment)
                )
                self._running.add(process)
            try:
                return process.wait()
            finally:
                with self._lock:
                    self._running.discard(process)

    def stop(self) -> None:
        """End all processes, and let no more start."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


def execute(job: Job, processes: Processes) -> Outcome:
    """Execute one run in a process of its own, so that nothing that happens to it can affect another."""
    folder = Path(job.folder)
    disk.make_folder(folder)
    command = [sys.executable, "-m", "spacecl.runs.worker", job.folder]
    command += ["--data", job.data] if job.data is not None else []
    command += ["--trust-code"] if job.trust_code else []
    environment = {**os.environ, **job.variables, "OMP_NUM_THREADS": str(job.threads), "PYTHONUNBUFFERED": "1"}
    code = processes.run(command, folder / LOG, environment)
    return Outcome(describe_problem(code, folder), socket.gethostname())


def describe_problem(code: int | None, folder: Path) -> str | None:
    """Say why a run's process with this exit code has not finished the run, from its last event; None if it has."""
    log = folder / LOG
    if code is None:
        return "it was not started"
    if code == 0:
        return None
    if code < 0:
        name = signal.Signals(-code).name
        return f"its process was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}; see {log}"
    events = read_events(folder)
    if events and isinstance(events[-1], Failed):
        return f"{events[-1].message} (full output: {log})"
    return f"its process ended with exit code {code} and did not say why; see {log}"


def run_locally(jobs: Sequence[Job], parallel: int) -> Iterator[tuple[Job, Outcome]]:
    """Execute runs on this machine, `parallel` at a time, and yield each when it ends."""
    processes = Processes()
    with _interrupt_on_sigterm(), ThreadPoolExecutor(parallel) as threads:  # threads only wait for the processes
        futures = {threads.submit(execute, job, processes): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            processes.stop()
            threads.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the comparison as Ctrl-C does, so that the processes of its runs are ended, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_on_ray(jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
    """Execute runs on the Ray cluster of `ray start` or $RAY_ADDRESS, else of this machine, and yield each when it ends."""
    if not jobs:
        return
    with connect() as ray:
        largest = max(int(node["Resources"].get("CPU", 1)) for node in ray.nodes() if node["Alive"])
        if jobs[0].threads > largest:
            raise ConfigError(f"A run needs {jobs[0].threads} processors, but the largest node has {largest}. Raise --jobs.")
        gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
        needs: Any = {"num_cpus": jobs[0].threads, "num_gpus": gpus, "max_retries": 0, "scheduling_strategy": "SPREAD"}
        remote = ray.remote(_execute_on_ray).options(**needs)
        waiting = {remote.remote(job): job for job in jobs}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for future in ready:
                job = waiting.pop(future)
                try:
                    yield job, ray.get(future)
                except ray.exceptions.RayError as error:
                    yield job, Outcome(f"Ray lost it: {str(error).splitlines()[0]}", "the cluster")


def _execute_on_ray(job: Job) -> Outcome:
    import ray

    outcome = execute(job, Processes())
    return replace(outcome, host=f"{outcome.host}, node {ray.get_runtime_context().get_node_id()[:8]}")
