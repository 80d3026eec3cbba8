"""The cores and the memory of a machine that a run uses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

_WORK = 2e8  # multiply-adds of a training step that occupy a thread: bench/threads.py


def count_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_threads(work: float) -> int:
    """The number of threads for training steps of so many multiply-adds: small steps are faster on one.

    There are never more than torch has now, by default one for each core, or as many as $OMP_NUM_THREADS says.
    """
    return max(1, min(torch.get_num_threads(), int(work / _WORK)))


@contextmanager
def keep_threads() -> Iterator[None]:
    """Restore the number of threads at the end."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def return_memory() -> None:
    """Return freed memory to the system. The GNU C library keeps it in pieces, and a run would take more with every task."""
    with suppress(OSError, AttributeError):  # another system, another library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
