"""Do a comparison: execute the runs that are planned and not finished, follow them, and measure their networks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .. import disk
from ..progress import format_duration, format_score, is_shown
from .config import Config
from .events import EVENTS, TasksDone, read_events
from .executors import Job, Outcome, run_locally, run_on_ray
from .measure_run import has_measurements, measure_run
from .resources import count_cores
from .result import read_result
from .run_folder import lock_run, make_data_absolute, refuse_code

RUN_MEMORY = 3 << 30  # bytes that a run may need, with what is read of the data


def run_sweep(
    out: str | os.PathLike[str],
    folders: Sequence[Path],
    *,
    data: str | None = None,
    jobs: int | None = None,
    engine: str = "local",
    trust_code: bool = False,
    progress: bool | None = None,
    print_line: Callable[[str], None] = print,
) -> list[str]:
    """Execute the planned runs that are not finished; then measure what inference costs, one network at a time.

    Returns the problems of the runs that failed, which do not affect the others.

    Parameters
    ----------
    out : the folder of the comparison.
    folders : those of its runs, as `plan_runs` returns them.
    data : a folder with datasets. Default: $SPACECL_DATA, or a cache folder.
    jobs : runs at a time. Default: one per core, as memory allows.
    engine : "local" or "ray".
    trust_code : run the code that the folders name as their tasks or networks. Without it, folders that name any are refused.
    progress : whether to show a progress bar. Default: on a terminal only.
    print_line : called with every line for the user.
    """
    top = Path(out)
    if not trust_code:
        refuse_code(top, sorted({name for f in folders for name in Config.from_file(f / "config.json").find_user_code()}))
    with lock_run(top):
        missing = [folder for folder in folders if not (folder / "result.json").exists()]
        if len(missing) < len(folders):
            print_line(f"{len(folders) - len(missing)} of {len(folders)} runs are finished already.")
        parallel, threads = share_cores(jobs, len(missing), engine)
        if missing:
            where = "on a Ray cluster" if engine == "ray" else f"{parallel} at a time"
            plural = ("s" * (len(missing) > 1), "s" * (threads > 1))
            print_line(f"{len(missing)} run{plural[0]} to do, {where}, {threads} thread{plural[1]} each.")
        variables = {name: value for name, value in os.environ.items() if name.startswith("SPACECL_")}
        planned = [
            Job(str(f.relative_to(top)), str(f.absolute()), make_data_absolute(data), threads, trust_code, variables)
            for f in missing
        ]
        disk.remove(*(folder / EVENTS for folder in missing))  # of earlier attempts
        problems, unfinished = [], set(missing)
        outcomes = run_on_ray(planned) if engine == "ray" else run_locally(planned, parallel)
        with _show_progress(top, folders, unfinished, is_shown(progress)):
            for number, (job, outcome) in enumerate(outcomes, 1):
                unfinished.discard(top / job.name)
                problem = outcome.problem or _find_missing_result(job, outcome)
                if problem is not None:
                    problems.append(f"{job.name}: {problem}")
                text = f"failed: {problem}" if problem is not None else _summarize(job, outcome, engine)
                print_line(f"{number:>3}/{len(planned)}  {job.name}: {text}")
        return problems + _measure_runs(top, folders, print_line)


def _find_missing_result(job: Job, outcome: Outcome) -> str | None:
    """Why there is no result of a run whose process has succeeded: another machine wrote it elsewhere. None if there is one."""
    result = Path(job.folder) / "result.json"
    if result.exists():
        return None
    return f"it ended on {outcome.host}, but there is no {result} here. All nodes must see the same folder."


def _summarize(job: Job, outcome: Outcome, engine: str) -> str:
    result = read_result(Path(job.folder) / "result.json")
    place = f", on {outcome.host}" if engine == "ray" else ""
    time = format_duration(result["seconds"]["total"])
    return f"{format_score(result['average_score'], result['metric'])}, size {result['size']:.3f} ({time}){place}"


def _measure_runs(top: Path, folders: Sequence[Path], print_line: Callable[[str], None]) -> list[str]:
    """Measure the networks of all finished runs that have not been measured, and return what went wrong."""
    results = [folder / "result.json" for folder in folders]
    finished = [file.parent for file in results if file.exists() and not has_measurements(read_result(file))]
    problems = []
    for number, folder in enumerate(finished, 1):
        name = folder.relative_to(top)
        print_line(f"Measuring inference, {number}/{len(finished)}: {name}")
        try:
            measure_run(folder)
        except Exception as error:  # a network that cannot be loaded must not cost the user the whole table
            problems.append(f"{name}: inference could not be measured: {error}")
    return problems


def share_cores(jobs: int | None, runs: int, engine: str) -> tuple[int, int]:
    """How many runs to execute at a time, and with how many threads each.

    Default: one run per core, as memory allows, and a single one where they would share a GPU. $OMP_NUM_THREADS is the most
    that a run may have.
    """
    import torch

    cores = count_cores()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    most = int(limit) if limit.isdigit() else cores
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else RUN_MEMORY
    default = 1 if torch.cuda.is_available() else max(1, min(cores, memory // RUN_MEMORY))
    if engine == "ray":  # nodes may be smaller than this machine
        return runs, max(1, min(most, cores // jobs if jobs else 1))
    count = max(1, min(jobs or default, runs or 1))
    return count, max(1, min(most, cores // count))


@contextmanager
def _show_progress(top: Path, folders: Sequence[Path], unfinished: Collection[Path], show: bool) -> Iterator[None]:
    """Show a bar over the tasks of all runs, read from their events; `unfinished` are the runs whose end is awaited."""
    if not show:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    planned = {folder: Config.from_file(folder / "config.json").tasks or 1 for folder in folders}
    description, text = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[text]}", markup=False)
    columns = description, BarColumn(bar_width=24), text, TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()
    is_over = threading.Event()
    is_terminal = sys.stdout.isatty()  # otherwise lines go to a file, past the bar
    with Bars(*columns, console=Console(stderr=True), transient=True, redirect_stdout=is_terminal) as bars:
        bar = bars.add_task("tasks", total=sum(planned.values()), text="")

        def update() -> None:
            while not is_over.wait(1.0):
                progress = {folder: read_progress(folder, tasks) for folder, tasks in planned.items()}
                running = [f for f in folders if f in unfinished and read_events(f)]
                names = [f"{f.relative_to(top)} {progress[f].done}/{progress[f].tasks}" for f in running]
                done, tasks = (sum(getattr(p, name) for p in progress.values()) for name in ("done", "tasks"))
                bars.update(bar, completed=done, total=tasks, text=f"{done}/{tasks}  {', '.join(names)}")

        thread = threading.Thread(target=update, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def read_progress(folder: Path, planned: int) -> TasksDone:
    """The progress of a run by its latest event; `planned` is its number of tasks where no event says it."""
    events = [event for event in read_events(folder) if isinstance(event, TasksDone)]
    latest = events[-1] if events else TasksDone(0, planned)
    return TasksDone(latest.tasks, latest.tasks) if (folder / "result.json").exists() else latest
