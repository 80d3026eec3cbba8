"""What all committed tasks together have, kept up to date task by task: one more costs the same however many there are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..structure.channels import Channels
from ..structure.tensors import Tensors
from .ownership import CommittedTask


@dataclass(frozen=True, eq=False)
class Summary:
    """The union of the networks of some tasks. Immutable, and its tensors are not to be changed."""

    units: Tensor  # (units,) booleans: those that any task has
    positions: Tensors  # shared weight -> booleans: those between the units of any task without such a weight of its own
    norms: Mapping[str, tuple[Tensor, Tensor]]  # private tensor -> values of the last task that has each, and where any has one
    private: Mapping[str, int]  # private tensor -> how many elements the tasks have, without those of equal tensors
    distinct: Mapping[str, frozenset[bytes]]  # private tensor -> digests of those that were counted

    @staticmethod
    def empty(channels: Channels, shared: Mapping[str, Tensor]) -> Summary:
        """The summary of no task."""
        positions = {name: torch.zeros(channels.shapes[name], dtype=torch.bool) for name in shared}
        return Summary(torch.zeros(channels.units, dtype=torch.bool), positions, {}, {}, {})

    def add(self, task: CommittedTask, channels: Channels, shared: Mapping[str, Tensor]) -> Summary:
        """The summary with one more task."""
        positions = dict(self.positions)
        for name in shared.keys() - task.private.keys():
            mask = channels.mask(name, task.units)
            positions[name] = mask.logical_or_(positions[name])
        private, distinct, norms = dict(self.private), dict(self.distinct), dict(self.norms)
        for name, tensor in task.private.items():
            if channels.is_head(name):
                continue
            values, known = _digest(tensor), distinct.get(name, frozenset())
            if values not in known:
                distinct[name], private[name] = known | {values}, private.get(name, 0) + tensor.numel()
            if name in channels.private and tensor.is_floating_point():
                shape = channels.shapes[name]
                full, present = norms.get(name, (tensor.new_zeros(shape), torch.zeros(shape, dtype=torch.bool)))
                full = channels.scatter({name: tensor}, task.units, {name: full})[name]
                norms[name] = full, present | channels.mask(name, task.units)
        return Summary(self.units | task.units, positions, norms, private, distinct)


def _digest(tensor: Tensor) -> bytes:
    """The same for tensors that are equal: zeros may differ in their sign."""
    digest = hashlib.sha256(repr(tuple(tensor.shape)).encode())
    digest.update((tensor + 0 if tensor.is_floating_point() else tensor).reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
