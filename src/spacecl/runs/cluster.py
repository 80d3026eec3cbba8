"""A Ray cluster: import Ray, connect, and train one run in processes on its nodes with Ray Train."""

from __future__ import annotations

import functools
import io
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import ConfigError, SpaceError, SpaceWarning, TrainingError
from .config import Config
from .processes import RESUME, count_devices, is_lost_connection
from .ranks import adopt_rank
from .result import Result, read_result
from .run_folder import make_data_absolute

_STORAGE = ".ray"  # what Ray Train writes to a run's folder
_STARTS = 3  # attempts to start the processes, of a minute each


def import_ray() -> Any:
    """Import Ray, or say how to install it."""
    _hide_amdsmi()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default, without its warning
    try:
        import ray
    except ImportError as error:
        raise ConfigError('--engine ray needs Ray. Install it with: pip install "spacecl[ray]"') from error
    return ray


@functools.cache
def _hide_amdsmi() -> tempfile.TemporaryDirectory[str] | None:
    """Hide the package amdsmi where AMD's library is missing, from this process and from those that Ray starts on this machine.

    Zeus brings the package along, and Ray 2.56 and later import it and fail if it fails by anything but an ImportError.
    """
    with redirect_stdout(io.StringIO()):  # where it says that there is no library
        try:
            import amdsmi  # noqa: F401
        except ImportError:
            return None
        except Exception:
            sys.modules["amdsmi"] = None  # type: ignore[assignment]
        else:
            return None
    folder = tempfile.TemporaryDirectory(prefix="spacecl-")  # which exists as long as this process
    text = 'raise ImportError("AMD\'s library is missing on this machine.")\n'
    disk.write_file(Path(folder.name, "amdsmi.py"), text.encode())
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder.name, os.environ.get("PYTHONPATH")]))
    return folder


@contextmanager
def connect() -> Iterator[Any]:
    """Ray, connected to the cluster of `ray start` or $RAY_ADDRESS, else to one of this machine that ends with the context."""
    ray = import_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()


def train_on_ray(
    config: Config,
    out: str | os.PathLike[str],
    devices: str,
    *,
    data: str | None,
    print_line: Callable[[str], None],
    **options: Any,
) -> Result:
    """Train a run in several processes on the nodes of a Ray cluster, and return its result.

    `devices` is their number, or "auto"; the other arguments are those of `run`. The bits are those of as many processes on
    one machine.
    """
    with connect() as ray:
        try:
            train, torch_train, queue = (import_module(f"ray.{name}") for name in ("train", "train.torch", "util.queue"))
        except ImportError as error:
            raise ConfigError(f'Ray Train cannot be imported: {error}. Install it with: pip install "spacecl[ray]"') from error
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = [int(node.get("GPU", 0)) for node in nodes]
        use_gpu = config.device in ("auto", "cuda") and sum(gpus) > 0
        count = max(1, sum(gpus) * use_gpu) if devices == "auto" else count_devices(devices, config.device)
        threads = share_processors([int(node.get("CPU", 0)) for node in nodes], gpus if use_gpu else None, count)
        folder = Path(out).absolute()
        disk.make_folder(folder)
        lines = queue.Queue(actor_options={"num_cpus": 0})
        task = {
            "config": config.to_json(),
            "out": str(folder),
            "variables": {name: value for name, value in os.environ.items() if name.startswith("SPACECL_")},
            "lines": lines,
            "data": make_data_absolute(data or os.environ.get("SPACECL_DATA")),
            **options,
        }
        trainer = torch_train.TorchTrainer(
            _train,
            train_loop_config=task,
            scaling_config=train.ScalingConfig(
                num_workers=count, use_gpu=use_gpu, resources_per_worker={"CPU": threads, **({"GPU": 1} if use_gpu else {})}
            ),
            run_config=train.RunConfig(
                name=_STORAGE,
                storage_path=str(folder),
                failure_config=train.FailureConfig(max_failures=0, controller_failure_limit=_STARTS - 1),
            ),
        )
        try:
            _follow(trainer.fit, lines, queue.Empty, print_line)
        except train.TrainingFailedError as error:
            raise explain_failure(getattr(error, "worker_failures", {}), count, error) from error
        finally:
            disk.remove(folder / _STORAGE)
    if not (folder / "result.json").exists():
        raise ConfigError(
            f"The run has ended, but there is no {folder / 'result.json'} here. All nodes must see the same folder."
        )
    return read_result(folder / "result.json")


def share_processors(processors: list[int], gpus: list[int] | None, count: int) -> int:
    """The largest number of processors, the same for each process, with which so many processes fit on the nodes.

    >>> share_processors([8, 8], None, 2), share_processors([8, 8], None, 4), share_processors([16, 4], None, 3)
    (8, 4, 5)
    """
    limits = gpus or [sys.maxsize] * len(processors)
    for each in range(max(processors), 0, -1):
        if sum(min(number // each, limit) for number, limit in zip(processors, limits)) >= count:
            return each
    most = sum(min(pair) for pair in zip(processors, limits))
    raise ConfigError(f"--devices {count} is more than the {most} processes for which the Ray cluster has processors and GPUs.")


def _follow(fit: Callable[[], object], lines: Any, empty: type[Exception], print_line: Callable[[str], None]) -> None:
    """Wait for training, in another thread so that Ctrl-C comes here, and print the lines of its first process."""
    failures: list[BaseException] = []

    def train() -> None:
        try:
            fit()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    while thread.is_alive() or not lines.empty():
        try:
            kind, text = lines.get(timeout=0.5)
        except empty:
            continue
        if kind == "warning":
            warnings.warn(text, SpaceWarning, stacklevel=2)
        else:
            print_line(text)
    if failures:
        raise failures[0]


def _train(task: dict[str, Any]) -> None:
    """One process of a run, on a node of the cluster."""
    from .run import run

    os.environ.update(task.pop("variables"))
    adopt_rank("ray")
    config, lines = Config.from_json(task.pop("config")), task.pop("lines")

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, SpaceWarning):
            lines.put(("warning", str(message)))

    with warnings.catch_warnings():
        warnings.showwarning = show  # type: ignore[assignment]
        run(config, task.pop("out"), progress=False, print_line=lambda text: lines.put(("line", text)), **task)


def explain_failure(failures: Mapping[int, Exception], count: int, whole: Exception) -> Exception:
    """The error for a user, from those of the processes by rank: the one that is not the consequence of another."""
    for rank, error in sorted(failures.items()):
        if type(error).__module__.startswith("ray."):  # about the process, not by it
            return TrainingError(f"Process {rank} of {count} died on its node. {RESUME}")
    for error in failures.values():
        if isinstance(error, (SpaceError, OSError)):
            return error
    if failures and all(is_lost_connection(error) for error in failures.values()):
        return TrainingError(f"Process {min(failures)} of {count} has lost the connection to another one. {RESUME}")
    if not failures:
        return TrainingError(f"Ray could not start {count} processes: {getattr(whole, 'controller_failure', whole)}")
    return whole
