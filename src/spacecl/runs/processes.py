"""Several processes for one run: started here, or by torchrun on several machines."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .. import disk
from ..errors import ConfigError, SpaceError, TrainingError
from ..learning.distributed import gather_values
from .config import Config
from .ranks import has_rank, is_first
from .resources import count_cores

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_TOKEN = ".shared"  # a file that shows whether all processes see one folder
LOST = 75  # the exit code of a process that has lost the connection to another one
_TRANSPORTS = ("gloo", "NCCL", "c10d", "TCPStore")  # one of them is named in errors of lost connections
_INTERVAL = 0.2  # seconds between looks at the processes
RESUME = "The others were ended. All finished epochs are saved; the same command resumes."


def count_devices(devices: str, device: str) -> int:
    """The number of processes that a user asks for: a number, or "auto" for one for each accelerator, or one without any."""
    if devices == "auto":
        return torch.accelerator.device_count() if device != "cpu" and torch.accelerator.is_available() else 1
    if not devices.isdecimal() or int(devices) < 1:
        raise ConfigError(f"--devices {devices} must be a number of processes, 1 or more, or auto.")
    return int(devices)


def start_processes(count: int, arguments: Sequence[str]) -> int:
    """Run a command of spacecl in several processes on this machine, and return its exit code. If one fails, all are ended.

    The first process prints its own errors. Raises TrainingError if another one has failed, or one was killed.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=uuid.uuid4().hex,
        max_restarts=0,
        monitor_interval=_INTERVAL,
    )
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # what went wrong is said below
    try:
        elastic_launch(config, sys.executable)("-m", "spacecl", *arguments)
    except SignalException:
        return 130
    except ChildFailedError as error:
        rank, failure = min(error.failures.items(), key=lambda item: (_is_consequence(item[1].exitcode), item[0]))
        if rank == 0 and failure.exitcode > 0 and failure.exitcode != LOST:
            return failure.exitcode
        raise TrainingError(
            f"Process {rank} of {count} {_describe_end(failure.exitcode, failure.message)}. {RESUME}"
        ) from error
    return 0


def _describe_end(code: int, message: str) -> str:
    if code == LOST:
        return "has lost the connection to another one"
    return f"was killed by signal {-code}" if code < 0 else f"failed: {message}"


def _is_consequence(code: int) -> bool:
    """Whether a process has ended because another one did: the connection was lost, or it was told to end."""
    return code in (LOST, -signal.SIGTERM)


def end_process(error: Exception) -> int | None:
    """End one of several processes because of an error: the exit code, or None if the process must report the error itself."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    if is_lost_connection(error):
        return LOST
    get_error_handler().record_exception(error)
    return 1 if isinstance(error, (SpaceError, OSError)) and not is_first() else None


def is_lost_connection(error: Exception) -> bool:
    """Whether an error is the consequence of another process's end."""
    if isinstance(error, torch.distributed.DistNetworkError):  # which need not name a transport
        return True
    return isinstance(error, RuntimeError) and any(name in str(error) for name in _TRANSPORTS)


def make_fabric(config: Config) -> Fabric:
    """The devices and processes of a run: one, or those that torchrun or Ray has started, of which this is one."""
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces the processes and the precision
    if not has_rank():
        return Fabric(accelerator=config.device, devices=1, precision=config.precision)
    world, local = (int(os.environ[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if world % local:
        raise ConfigError(f"{world} processes are not {local} on each machine, as on this one. There must be as many on each.")
    torch.set_num_threads(min(torch.get_num_threads(), max(1, count_cores() // local)))
    fabric = Fabric(
        accelerator=config.device,
        strategy="ddp" if world > 1 else "auto",
        devices=local,
        num_nodes=world // local,
        precision=config.precision,
    )
    if world > 1 and not torch.distributed.is_initialized():  # by Ray
        threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
        _connect(fabric.device, world)
    fabric.launch()
    return fabric


def _watch_parent(parent: int) -> None:
    """End this process when the one that has started it is gone, even if that was killed and could end nobody."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(LOST)


def _connect(device: torch.device, world: int) -> None:
    """Connect this process with the others, by keys that none of an earlier attempt has used.

    After a restart, torchrun's store still has the addresses of the processes before, which a process that is faster than
    the others would find there.
    """
    store, rank, _ = next(torch.distributed.rendezvous("env://"))  # type: ignore[operator]
    attempt = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}-{world}"
    backend = torch.distributed.get_default_backend_for_device(device)
    store = torch.distributed.PrefixStore(attempt, store)
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=world)


def check_shared_folder(fabric: Fabric, folder: Path) -> None:
    """Raise an error on every process unless all see the same folder."""
    if fabric.world_size == 1:
        return
    token = gather_values(fabric, uuid.uuid4().hex)[0]
    file = folder / _TOKEN
    if fabric.is_global_zero:
        disk.write_file(file, token.encode())
    fabric.barrier()
    seen = gather_values(fabric, file.exists() and file.read_text() == token)
    if fabric.is_global_zero:
        disk.remove(file)
    blind = [str(rank) for rank, sees in enumerate(seen) if not sees]
    if blind:
        raise ConfigError(
            f"The processes {', '.join(blind)} do not see the files of process 0 in {folder}. "
            "Give a folder with --out that is on a file system that all machines share."
        )
