"""A `spacecl serve` process for tests and fault injection. All traffic stays on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Server:
    """A server in a process of its own; `errors` is the file with its standard error."""

    port: int
    process: subprocess.Popen[str]
    errors: Path
    timeout: float  # seconds that the server waits for a client

    def peak_memory(self) -> int:
        """Return the most memory that the process has used so far, in bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]


@contextmanager
def start_server(
    folder: Path, *options: str, timeout: float = 10.0, stop: signal.Signals | None = signal.SIGINT
) -> Iterator[Server]:
    """Start a server for a run and stop it by a signal at the end; it must still live then, and exit with code 0.

    With `stop=None` the caller stops it.
    """
    with tempfile.TemporaryDirectory() as place:
        errors = Path(place) / "errors.txt"
        command = [sys.executable, "-m", "spacecl", "serve", str(folder), "--port", "0", "--timeout", str(timeout), *options]
        with errors.open("w") as stream:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # a single row then has the same bits here and there
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True, env=environment)
        try:
            line = process.stdout.readline()  # type: ignore[union-attr]
            address = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            assert address, f"the server did not start: {line}{errors.read_text()}"
            yield Server(int(address[1]), process, errors, timeout)
            if stop is None:
                return
            assert process.poll() is None, f"the server ended with exit code {process.returncode}: {errors.read_text()}"
            process.send_signal(stop)
            output = process.communicate(timeout=30)[0]
            assert (process.returncode, output.splitlines()[-1]) == (0, "Stopped."), output
        finally:
            process.kill()
            process.communicate()


@contextmanager
def provide_run(folder: Path | None) -> Iterator[Path]:
    """Give a folder with a run of two tasks of permuted digits: the one passed in, or a new one."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        options = "--tasks 2 --epochs 3 --retrain-epochs 2 --no-measure --quiet --device cpu --out"
        command = [sys.executable, "-m", "spacecl", "run", "permuted-digits", *options.split(), f"{place}/run"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield Path(place) / "run"
