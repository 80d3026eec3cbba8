"""Many runs with one command: methods, or the arms of a preset, with several seeds, several at a time."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import disk
from ..data.benchmarks.presets import ABLATIONS, PUBLISHED
from ..errors import ConfigError
from ..progress import format_duration, is_shown
from .config import METHOD_ORDER, Config, build_model, find_benchmark, find_differences, get_methods
from .resolve import get_preset_variance, merge_settings, resolve
from .result import read_result
from .run import is_measured, measure
from .run_folder import alone, is_run, refuse_code, short_name

_GIGABYTES = 3  # that a run of ours may take, with what is read of the data
Say = Callable[[str], None]
Outcome = dict[str, Any]  # a "problem" in words, or None; and "where" it ran
Arms = dict[str, dict[str, Any]]  # settings on top of those that all have, by a name for the folder


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    name: str
    folder: str
    data: str | None
    threads: int
    trusted: bool  # whether code that the folder names may be run
    variables: Mapping[str, str]  # of the environment, which a worker elsewhere does not have


def methods_arms(names: str) -> Arms:
    """An arm for every method named, with commas between them, or for all."""
    known = tuple(get_methods())
    chosen = [name.strip().lower() for name in names.split(",")]
    if chosen == ["all"]:
        chosen = [name for name in METHOD_ORDER if name in known]
    wrong = [name for name in chosen if name not in known]
    if wrong:
        raise ConfigError(f"No such method: {', '.join(wrong)}. There are all, {', '.join(known)}.")
    return {name: {"method": name} for name in dict.fromkeys(chosen)}


# In place of the paper's choices.
OURS = {"activations": "post", "selection": "pivoted", "freeze": "subnet", "compensate": True}


def preset_arms(preset: str, given: Mapping[str, Any]) -> Arms:
    """The arms of a preset."""
    benchmark = str(given.get("benchmark"))
    model = str(given.get("model", find_benchmark(benchmark).model))

    def space(**options: Any) -> dict[str, Any]:
        return {"method": "space", "options": options}

    if preset == "projection":
        return {"space": space(projection=True), "space-without-projection": space(projection=False)}
    if preset == "threshold":
        return {
            "space-uniform": space(**PUBLISHED, variance=0.99),
            "space-first-higher": space(**PUBLISHED, variance={_first_layer(model): 0.999, "*": 0.99}),
        }
    if preset == "choices":
        # What comes after the nonlinearity has fewer dimensions to explain, and has thresholds of its own.
        pre, post = (get_preset_variance(benchmark, recipe, model) for recipe in ("paper", "fast"))
        arms = {"paper": space(**PUBLISHED, variance=pre)}
        for name, value in OURS.items():
            arms[f"paper-{name}"] = space(**{**PUBLISHED, name: value}, variance=post if name == "activations" else pre)
        return {**arms, "all": space(**PUBLISHED | OURS, variance=post)}
    if preset == "frontier":
        arms = {f"space-{v}": space(**OURS, variance=v) for v in (0.7, 0.8, 0.9, 0.95, 0.98)}
        arms |= {f"paper-{v}": space(**PUBLISHED, variance=v) for v in (0.9, 0.95, 0.98, 0.99, 0.995)}
        arms |= {f"packnet-{v}": {"method": "packnet", "options": {"prune": v}} for v in (0.98, 0.95, 0.9, 0.8, 0.6)}
        arms |= {f"hat-{v}": {"method": "hat", "options": {"compressibility": v}} for v in (4.0, 2.0, 1.0, 0.5, 0.1)}
        return arms
    raise ConfigError(f"No such preset: {preset}. There are {', '.join(ABLATIONS)}.")


def _first_layer(model: str) -> str:
    """The first layer of a network that could be narrowed, as the network lists them."""
    from torch import nn

    from ..data.benchmarks.networks import NETWORKS

    if model in NETWORKS:
        return "hidden1" if model.startswith("mlp") else "conv1"
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return next((name for name, layer in build_model(model).named_modules() if isinstance(layer, layers)), "*")


def seeds_of(text: str) -> list[int]:
    """Seeds: how many, from 0 on, or which, with commas between them.

    >>> seeds_of("3"), seeds_of("4,7"), seeds_of("5,")
    ([0, 1, 2], [4, 7], [5])
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or (numbers == [0] and "," not in text):
        raise ConfigError(f"--seeds {text} is neither a number of seeds, such as 3, nor a list of them, such as 0,1,5.")
    return numbers if "," in text else list(range(numbers[0]))


def plan(given: Mapping[str, Any], arms: Arms, seeds: Sequence[int], out: Path, data: str | None) -> list[Path]:
    """Check the settings of every run, then write them down, each in a folder of its own; return these."""
    names = tuple(get_methods())
    if "options" in given:
        raise ConfigError(
            "Options belong to one method: say of which, such as --set space.variance=0.9 or --set ewc.strength=10, "
            "instead of options.NAME."
        )
    common = {key: value for key, value in given.items() if key not in names}
    used = {arm["method"] for arm in arms.values()}
    idle = [name for name in given if name in names and name not in used]
    if idle:
        raise ConfigError(f"There are settings for {', '.join(idle)}, but the methods are {', '.join(sorted(used))}.")
    configs: dict[Path, Config] = {}
    wrong: dict[str, list[str]] = {}
    for seed in seeds:
        for name, arm in arms.items():
            own = {"options": given[arm["method"]]} if arm["method"] in given else {}
            try:
                configs[out / name / f"seed{seed}"] = resolve(merge_settings(common, own, arm, {"seed": seed}), data)
            except ConfigError as error:
                wrong.setdefault(str(error), []).append(name)
    if wrong:
        texts = [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in wrong.items()]
        raise ConfigError("\n".join(texts))
    for folder, settings in configs.items():
        before = _settings_of(folder)
        if before is not None:
            changed = find_differences(before, settings.to_json())
            if changed:
                raise ConfigError(
                    f"{folder} holds a run with other settings: {'; '.join(changed)}. Give another folder with --out, or "
                    f"finish what is there: spacecl compare --resume --out {shlex.quote(str(out))}"
                )
    for folder, settings in configs.items():
        disk.make_folder(folder)
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ConfigError):  # a process at work there will fail this run alone, not the comparison
                stack.enter_context(alone(folder))
            if not (folder / "config.json").exists():
                disk.write_file(folder / "config.json", json.dumps(settings.to_json(), indent=1).encode())
    return list(configs)


def planned(out: str | os.PathLike[str]) -> list[Path]:
    """The folders of all runs below a folder, seed by seed."""
    top = Path(out)
    folders = [file.parent for file in sorted(top.rglob("config.json")) if is_run(file)] if top.is_dir() else []
    if not folders:
        raise ConfigError(f"{top} holds no runs to go on with. Say what to compare, such as: spacecl compare permuted-digits")
    return sorted(folders, key=lambda folder: (_settings_of(folder) or {}).get("seed", 0))


def _settings_of(folder: Path) -> dict[str, Any] | None:
    """The settings of the run in a folder, finished or not; None where there is none."""
    if (folder / "result.json").exists():
        return read_result(folder / "result.json")["config"]
    return Config.from_file(folder / "config.json").to_json() if (folder / "config.json").exists() else None


def compare(
    out: str | os.PathLike[str],
    folders: Sequence[Path],
    *,
    data: str | None = None,
    jobs: int | None = None,
    engine: str = "local",
    trust_code: bool = False,
    progress: bool | None = None,
    say: Say = print,
) -> list[str]:
    """Do those of some planned runs that are not finished; then measure what inference costs, one network at a time.

    Returns what failed, in words; the other runs are not touched by it. With `trust_code`, code that the folders name as
    their tasks or networks is run; without it, folders that name any are refused.
    """
    top = Path(out)
    if not trust_code:
        refuse_code(top, sorted({name for f in folders for name in Config.from_file(f / "config.json").find_user_code()}))
    with alone(top):
        missing = [folder for folder in folders if not (folder / "result.json").exists()]
        if len(missing) < len(folders):
            say(f"{len(folders) - len(missing)} of {len(folders)} runs are finished already.")
        count, threads = _room(jobs, len(missing), engine)
        if missing:
            where = "on a Ray cluster" if engine == "ray" else f"{count} at a time"
            say(f"{len(missing)} run{'s' * (len(missing) > 1)} to do, {where}, {threads} thread{'s' * (threads > 1)} each.")
        variables = {name: value for name, value in os.environ.items() if name.startswith("SPACECL_")}
        cells = [
            Cell(str(f.relative_to(top)), str(f.absolute()), _absolute(data), threads, trust_code, variables) for f in missing
        ]
        failed = []
        run = _on_ray(cells) if engine == "ray" else _locally(cells, count)
        with _bar(top, folders, is_shown(progress)):
            for number, (cell, outcome) in enumerate(run, 1):
                told = _told(cell, outcome, engine)
                if outcome["problem"] is not None:
                    failed.append(f"{cell.name}: {outcome['problem']}")
                say(f"{number:>3}/{len(cells)}  {cell.name}: {told}")
        results = [folder / "result.json" for folder in folders]
        done = [f.parent for f in results if f.exists() and not is_measured(read_result(f))]
        for number, folder in enumerate(done, 1):
            name = folder.relative_to(top)
            say(f"Measuring inference, {number}/{len(done)}: {name}")
            try:
                measure(folder)
            except Exception as error:  # a network that cannot be loaded must not lose the table
                failed.append(f"{name}: inference could not be measured: {error}")
        return failed


def _told(cell: Cell, outcome: Outcome, engine: str) -> str:
    """What became of a run, in words; one that left nothing here has failed."""
    result = Path(cell.folder) / "result.json"
    if outcome["problem"] is None and not result.exists():
        outcome["problem"] = (
            f"it ended on {outcome['where']}, but there is no {result} here. All nodes must see the same folder."
        )
    if outcome["problem"] is not None:
        return f"failed: {outcome['problem']}"
    found = read_result(result)
    place = f", on {outcome['where']}" if engine == "ray" else ""
    return f"{found['average_accuracy']:.2%}, size {found['size']:.3f} ({format_duration(found['seconds']['total'])}){place}"


def _room(jobs: int | None, runs: int, engine: str) -> tuple[int, int]:
    """How many runs at a time, and with how many threads each: one a core, as memory allows; one where a GPU is to share."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wish = os.environ.get("OMP_NUM_THREADS", "")
    most = int(wish) if wish.isdigit() else cores
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else _GIGABYTES << 30
    room = 1 if torch.cuda.is_available() else max(1, min(cores, memory // (_GIGABYTES << 30)))
    if engine == "ray":  # nodes may be smaller than this machine
        return runs, max(1, min(most, cores // jobs if jobs else 1))
    count = max(1, min(jobs or room, runs or 1))
    return count, max(1, min(most, cores // count))


def _absolute(data: str | None) -> str | None:
    return None if data is None else os.pathsep.join(str(Path(part).absolute()) for part in data.split(os.pathsep))


# -- engines ----------------------------------------------------------------------------------------------------------

_alive: set[subprocess.Popen[bytes]] = set()
_stopped = threading.Event()
_starting = threading.Lock()


def execute(cell: Cell) -> tuple[Cell, Outcome]:
    """Do one run in a process of its own, so that nothing that happens to it can touch another."""
    command = [sys.executable, "-m", "spacecl", "run", "--resume", "--out", cell.folder, "--quiet", "--no-measure"]
    command += ["--data", cell.data] if cell.data is not None else []
    command += ["--trust-code"] if cell.trusted else []
    environment = {**os.environ, **cell.variables, "OMP_NUM_THREADS": str(cell.threads), "PYTHONUNBUFFERED": "1"}
    where = socket.gethostname()
    log = Path(cell.folder) / "log.txt"
    disk.make_folder(log.parent)
    with log.open("ab") as stream:
        began = stream.tell()
        with _starting:  # so that none begins after the others have been ended
            if _stopped.is_set():
                return cell, {"problem": "it was not begun", "where": where}
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment)
            _alive.add(process)
        try:
            code = process.wait()
        finally:
            _alive.discard(process)
    return cell, {"problem": _problem(code, log, began), "where": where}


def _problem(code: int, log: Path, began: int) -> str | None:
    """Why a run's process ended as it did: its own last message, all of it."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"its process was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}; see {log}"
    if not code:
        return None
    text = log.read_bytes()[began:].decode(errors="replace").strip()
    lines = text.splitlines()
    first = max((n for n, line in enumerate(lines) if line.startswith("spacecl: ")), default=len(lines) - 1)
    told = "\n".join(lines[first:]).removeprefix("spacecl: ")
    return f"{told or f'exit code {code}'} (all that it said: {log})"


def _locally(cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Outcome]]:
    """So many at a time on this machine. Threads wait for the processes that do the work."""
    from joblib import Parallel, delayed

    _stopped.clear()
    before = _ended_by_signal()
    try:
        parallel = Parallel(n_jobs=jobs, backend="threading", return_as="generator_unordered", pre_dispatch="n_jobs")
        yield from parallel(delayed(execute)(cell) for cell in cells)
    finally:
        with _starting:
            _stopped.set()
            for process in list(_alive):
                process.terminate()
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _ended_by_signal() -> Any:
    """End by SIGTERM as by Ctrl-C, so that the runs' processes end, too."""
    if threading.current_thread() is not threading.main_thread():
        return None

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, interrupt)


def _on_ray(cells: Sequence[Cell]) -> Iterator[tuple[Cell, Outcome]]:
    """On a Ray cluster: the one that `ray start` or $RAY_ADDRESS names, else one on this machine."""
    if not cells:
        return
    try:
        import ray
    except ImportError as error:
        raise ConfigError('--engine ray needs Ray. Install it with: pip install "spacecl[ray]"') from error
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray is going to do anyway, without its warning
    ours = not ray.is_initialized()
    if ours:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        largest = max(int(node["Resources"].get("CPU", 1)) for node in ray.nodes() if node["Alive"])
        if cells[0].threads > largest:
            raise ConfigError(f"A run would need {cells[0].threads} processors; the largest node has {largest}. Raise --jobs.")
        gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
        needs: Any = {"num_cpus": cells[0].threads, "num_gpus": gpus, "max_retries": 0, "scheduling_strategy": "SPREAD"}
        remote = ray.remote(_execute_on_ray).options(**needs)
        waiting = {remote.remote(cell): cell for cell in cells}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for future in ready:
                cell = waiting.pop(future)
                try:
                    yield ray.get(future)
                except ray.exceptions.RayError as error:
                    yield cell, {"problem": f"Ray lost it: {str(error).splitlines()[0]}", "where": "the cluster"}
    finally:
        if ours:
            ray.shutdown()


def _execute_on_ray(cell: Cell) -> tuple[Cell, Outcome]:
    import ray

    cell, outcome = execute(cell)
    return cell, outcome | {"where": f"{outcome['where']}, node {ray.get_runtime_context().get_node_id()[:8]}"}


# -- what is shown ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _bar(top: Path, planned: Sequence[Path], show: bool) -> Iterator[None]:
    """A bar over the tasks of all runs, read from their journals."""
    if not show:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    totals = {folder: Config.from_file(folder / "config.json").tasks or 1 for folder in planned}
    described, text = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[text]}", markup=False)
    columns = described, BarColumn(bar_width=24), text, TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()
    ended = threading.Event()
    terminal = sys.stdout.isatty()  # else lines go where they are sent, past the bar
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=terminal) as bars:
        bar = bars.add_task("tasks", total=sum(totals.values()), text="")

        def look() -> None:
            while not ended.wait(1.0):
                done = {folder: min(total, _tests(folder)) for folder, total in totals.items()}
                now = [f"{f.relative_to(top)} {done[f]}/{totals[f]}" for f in planned if _at_work(f)]
                bars.update(
                    bar, completed=sum(done.values()), text=f"{sum(done.values())}/{sum(totals.values())}  {', '.join(now)}"
                )

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _tests(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b'"kind": "test"') if file.exists() else 0


def _at_work(folder: Path) -> bool:
    """Whether a run has begun, is not finished, and wrote something down lately."""
    files = [folder / name for name in ("metrics.jsonl", "environment.json")]
    return not (folder / "result.json").exists() and any(f.exists() and time.time() - f.stat().st_mtime < 600 for f in files)


def default_folder(given: Mapping[str, Any], what: str) -> str:
    return f"runs/{what}-{short_name(str(given['benchmark']))}-{given.get('recipe', 'fast')}"
