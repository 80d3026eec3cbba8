"""Which of several processes this one is, by the variables that torchrun sets. Imports nothing that takes time."""

from __future__ import annotations

import os

_ID = "TORCHELASTIC_RUN_ID"  # by which Fabric knows torchrun's processes, too


def has_rank() -> bool:
    """Whether this process is one of those that torchrun, `start_processes` or Ray has started."""
    return _ID in os.environ


def is_first() -> bool:
    """Whether this process prints for all: the only one, or the first of several."""
    return not has_rank() or os.environ.get("RANK", "0") == "0"


def adopt_rank(run: str) -> None:
    """Complete the variables of a process that Ray has started, which has its ranks, to those that torchrun sets."""
    os.environ[_ID] = run
    os.environ["GROUP_RANK"] = os.environ["NODE_RANK"]
