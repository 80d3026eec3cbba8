"""Seals: whether the networks of all committed tasks are what they were, at the cost of reading each tensor once.

Digests of all networks read the shared weights once for every task. A seal reads all that the networks depend on once, so equal
seals mean equal networks. Different ones do not say which network has changed; digests do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..structure.tensors import Tensors
from .core import Core, digest_tensors
from .ownership import CommittedTask


@dataclass(frozen=True)
class Seal:
    """Digests of everything that the networks of some tasks depend on."""

    shared: str  # of the shared weights at the positions that these networks have, and of their owners
    tasks: tuple[str, ...]  # of what each task has beside them: units, private tensors and scaling


def make_seal(core: Core) -> Seal:
    """The seal of all committed tasks."""
    return Seal(_digest_shared(core, core), tuple(map(_digest_own, core.tasks)))


def extend_seal(seal: Seal, core: Core) -> Seal:
    """The seal of all committed tasks, of which all but the last have a seal."""
    return Seal(_digest_shared(core, core), (*seal.tasks, _digest_own(core.tasks[-1])))


def has_seal(core: Core, seal: Seal, before: Core) -> bool:
    """Whether the first tasks of a core are those that had this seal; `before` is the core when it was made."""
    count = len(seal.tasks)
    if core.channels is not before.channels or len(before.tasks) != count:
        return False
    return _digest_shared(core, before) == seal.shared and tuple(map(_digest_own, core.tasks[:count])) == seal.tasks


def _digest_shared(core: Core, before: Core) -> str:
    """A digest of the shared weights that the tasks of `before` have, as they are in `core`."""
    count = len(before.tasks)
    ownership = core.ownership.keep_first(count)
    used = {f"weight.{name}": torch.where(before.used_positions(name), tensor, 0) for name, tensor in core.shared.items()}
    return digest_tensors(used | {f"owner.{name}": mask for name, mask in ownership.masks.items()})


def _digest_own(task: CommittedTask) -> str:
    scaling: Tensors = {} if task.scaling is None else {".mean": task.scaling.mean, ".scale": task.scaling.scale}
    return digest_tensors({**task.private, ".units": task.units, **scaling})  # no tensor of a module begins with a dot
