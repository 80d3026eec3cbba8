"""Seeds: the same seed gives the same bits, and the user's own random generators are not touched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def task_seed(seed: int, number: int) -> int:
    """Return the seed of a task, by its number; it decides the validation split and training."""
    return 1_000_003 * seed + 1009 * number


def seed_process(seed: int, epoch: int, rank: int) -> None:
    """Seed every generator of one of several processes that train together, anew after an epoch."""
    own = ((seed * 1_000_003 + epoch) * 1009 + rank) % 2**63
    torch.manual_seed(own)
    random.seed(own)
    np.random.seed(own % 2**32)


@contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Seed every generator that training may use, and restore their states at the end."""
    with torch.random.fork_rng(), use_cpu_seed(seed):
        torch.manual_seed(seed)
        yield


@contextmanager
def use_cpu_seed(seed: int) -> Iterator[None]:
    """Seed the generators that reading an example may use, and restore their states; cheap, and safe in forked processes."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
