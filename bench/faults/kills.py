"""Kill runs of all methods at random moments and at file operations, resume them, and compare with an undisturbed run.

Every attempt is a process forked from this one, which has imported all that a run needs; otherwise starting would take
longer than running. One kill in forty hits a `spacecl run` that starts from scratch, to include the time of imports.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .outcome import Outcome

METHODS = ("space", "stl", "finetune", "lwf", "ewc", "hat", "packnet", "wsn", "ucb", "joint")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
OPTIONS = (
    *("--tasks", "3", "--limit", "20", "--epochs", "3", "--retrain-epochs", "2", "--model", "mlp-small"),
    *("--no-measure", "--quiet", "--device", "cpu"),
)
SECONDS = 10.0  # for a process to end after its signal
ATTEMPT = 120.0  # seconds for an undisturbed run; far more than it needs
EVENTS = ("open", "os.rename", "os.mkdir", "os.truncate")  # of Python's audit hooks
Wait = Callable[[int], None]


@dataclass(frozen=True)
class Reference:
    """The files of an undisturbed run, its time, and its number of file operations."""

    content: dict[str, Any]
    seconds: float
    operations: int


@dataclass(frozen=True)
class End:
    """How an attempt ended: its exit code (a negative one is a signal), its seconds, and its standard error."""

    code: int
    seconds: float
    errors: str


def run(count: int, seed: int) -> Outcome:
    import torch

    outcome, draw = Outcome("kills"), random.Random(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a process that is forked while threads compute could deadlock
    # Processes that a shell runs in the background ignore interrupts, and so do their children.
    interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="spacecl-kills-") as place:
            warm_up(Path(place))
            references: dict[str, Reference] = {}
            runs = 0
            while outcome.tried < count:
                method = METHODS[runs % len(METHODS)]
                if method not in references:
                    references[method] = _make_reference(Path(place), method)
                _run_once(Path(place) / f"run-{runs}", method, references[method], count, draw, outcome)
                runs += 1
            outcome.notes.update(runs=runs, methods=len(references))
    finally:
        torch.set_num_threads(threads)
        signal.signal(signal.SIGINT, interrupts)
    return outcome


def _run_once(folder: Path, method: str, reference: Reference, count: int, draw: random.Random, outcome: Outcome) -> None:
    """Start a run, kill and resume it until it is done, and compare its files with the reference."""
    committed = 0
    problem: str | None = None
    kills = []
    while True:
        sent = draw.choice(SIGNALS)
        how = draw.choices(("moment", "operation", "start"), (20, 19, 1))[0]
        if outcome.tried >= count:
            how, end = "undisturbed", _fork(folder, method, lambda pid: None)
        elif how == "moment":
            end = _fork(folder, method, _signal_after(draw.uniform(0, reference.seconds), sent))
        elif how == "operation":
            end = _fork(folder, method, lambda pid: None, sent, draw.randint(1, reference.operations))
        else:
            end = _start(folder, method, draw.uniform(0, 6.0), sent)
        outcome.longest = max(outcome.longest, end.seconds)
        problem = _find_problem(end, sent)
        present = count_committed(folder)
        if problem is None and present < committed:
            problem = f"{committed} tasks were saved before, {present} are intact afterwards"
        committed = present
        if how != "undisturbed" and (end.code != 0 or problem is not None):
            kills.append(f"{sent.name} at {how}")
            detail = None if problem is None else f"{problem} ({folder.name}, kills: {', '.join(kills)})"
            outcome.add(f"{method}, {sent.name} at {how}", "killed" if problem is None else "broken", detail)
        elif problem is not None:
            outcome.add(f"{method}, resumed", "broken", f"{problem} ({folder.name}, kills: {', '.join(kills)})")
        if problem is not None:
            return
        if end.code == 0:
            break
    content = read_content(folder)
    different = sorted(key for key in {*content, *reference.content} if content.get(key) != reference.content.get(key))
    if different:
        more = sorted({*content["names of files"]} ^ {*reference.content["names of files"]})
        what = ", ".join(different) + (f"; files that only one of the two has: {', '.join(more)}" if more else "")
        outcome.failures.append(f"{method}: differs from an undisturbed run: {what} ({folder.name}, kills: {', '.join(kills)})")


def _find_problem(end: End, sent: signal.Signals) -> str | None:
    """Return the problem with the way an attempt ended, or None."""
    in_main = re.search(
        r'cli/main\.py", line \d+, in main', end.errors
    )  # an earlier interrupt, while Python starts, is not ours
    starting = sent == signal.SIGINT and "KeyboardInterrupt" in end.errors and not in_main
    if ("Traceback" in end.errors or "Exception ignored" in end.errors) and not starting:
        return f"a traceback: {end.errors[-2000:]}"
    expected = (130, -signal.SIGINT) if sent == signal.SIGINT else (-sent,)
    if end.code not in (0, *expected):
        return f"exit code {end.code}: {end.errors[-500:]}"
    return None


def make_arguments(folder: Path, method: str) -> list[str]:
    return ["run", "permuted-digits", "--method", method, *OPTIONS, "--out", str(folder)]


def warm_up(place: Path) -> None:
    """Import all that a run needs into this process, by one run."""
    from spacecl.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(make_arguments(place / "warm", "space")) == 0


def _make_reference(place: Path, method: str) -> Reference:
    """Run without disturbance, in a forked process like those that will be killed."""
    folder, count_file = place / f"undisturbed-{method}", place / f"operations-{method}"
    end = _fork(folder, method, lambda pid: None, report=count_file)
    assert end.code == 0, end.errors
    return Reference(read_content(folder), end.seconds, int(count_file.read_text()))


def _signal_after(seconds: float, sent: signal.Signals) -> Wait:
    def wait(pid: int) -> None:
        time.sleep(seconds)
        os.kill(pid, sent)

    return wait


def _fork(
    folder: Path, method: str, wait: Wait, sent: signal.Signals | None = None, step: int = 0, report: Path | None = None
) -> End:
    """Run in a forked process, disturbed from here by `wait`, or by its own signal at its step-th file operation."""
    errors = folder.with_name("errors.txt")
    started = time.perf_counter()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the process runs the command
    pid = os.fork()
    if pid == 0:
        run_forked(folder, method, errors, sent, step, report)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    wait(pid)
    disturbed = time.perf_counter()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)  # a process that has ended stays a zombie until now: its number is safe
        now = time.perf_counter()
        if ended:
            break
        if now - disturbed > ATTEMPT:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return End(1, now - started, f"a hang: the process did not end within {ATTEMPT:g} s")
        time.sleep(0.002)
    return End(os.waitstatus_to_exitcode(status), now - started, errors.read_text(errors="replace"))


def run_forked(folder: Path, method: str, errors: Path, sent: signal.Signals | None, step: int, report: Path | None) -> None:
    """Run the command in the forked process; never return."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        output = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        done = _watch_operations(folder, sent, step)
        from spacecl.cli.main import main

        warnings.simplefilter("ignore")
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            code = main(make_arguments(folder, method))
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        except KeyboardInterrupt:  # before main's first line or after its last
            code = 130
        if report is not None:
            report.write_text(str(done()))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _watch_operations(folder: Path, sent: signal.Signals | None, step: int) -> Callable[[], int]:
    """Count file operations in the folder, and send this process a signal just before the step-th; return the counter."""
    count, within = 0, str(folder)

    def tick() -> None:
        nonlocal count
        count += 1
        if count == step and sent is not None:
            os.kill(os.getpid(), sent)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        removal = event in ("os.remove", "os.rmdir")  # rmtree names files without their folder
        if removal or (event in EVENTS and arguments and str(arguments[0]).startswith(within)):
            tick()

    usual = os.fsync

    def fsync(file: Any) -> None:
        tick()  # the bytes are written, but not yet safe
        usual(file)
        tick()

    sys.addaudithook(hook)  # cannot be removed, and ends with the process
    os.fsync = fsync
    return lambda: count


def _start(folder: Path, method: str, seconds: float, sent: signal.Signals) -> End:
    """Run the command as a user does, which begins with imports."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "spacecl", *make_arguments(folder, method)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(sent)
        text = process.communicate(timeout=SECONDS)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return End(1, time.perf_counter() - started, f"a hang: no end within {SECONDS:g} s of {sent.name}")
    return End(process.returncode, time.perf_counter() - started, text)


def count_committed(folder: Path) -> int:
    """Return how many tasks the saved learner has; 0 if a file of its manifest is missing or damaged."""
    manifest = folder / "model" / "spacecl.json"
    if not manifest.exists():
        return 0
    files = json.loads(manifest.read_text())["content"]["files"]
    for entry in files.values():
        file = folder / "model" / entry["file"]
        if not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != entry["sha256"]:
            return 0
    return sum(name.startswith("task ") for name in files)


def read_content(folder: Path) -> dict[str, Any]:
    """Return all files of a run, without what may depend on when it was killed."""
    from spacecl.runs.open_run import open_run

    learner = open_run(folder).learner()
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock")
    constant = (".safetensors", "config.json", "tasks.json")
    return {
        "names of files": names,
        **{name: (folder / name).read_bytes() for name in names if name.endswith(constant)},
        "result.json": _remove_times(json.loads((folder / "result.json").read_text())),
        "metrics.jsonl": [_remove_times(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()],
        "digests": learner.verify(),
    }


def _remove_times(value: Any) -> Any:
    """Return a value without times, which differ between runs."""
    if isinstance(value, dict):
        return {key: _remove_times(inner) for key, inner in value.items() if key != "seconds"}
    return [_remove_times(inner) for inner in value] if isinstance(value, list) else value
