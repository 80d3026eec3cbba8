"""Ownership: which positions of the shared weights each committed task's network has.

SPACE and HAT give tasks whole units, PackNet and WSN give them single weights. Everything else about a core is the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypedDict

from ..data.targets import Scaling
from ..structure.channels import Channels
from ..structure.graph import module_of
from ..structure.tensors import Tensors

FREE = 255  # the owner of a weight that no task has claimed


@dataclass(frozen=True, eq=False)
class CommittedTask:
    """One committed task: the units of its network, the tensors it shares with no other task, and a signature of its inputs."""

    units: Tensor  # (units,) booleans: the units of its network
    private: Tensors  # norms and head, and whatever else belongs to it alone
    signature: Tensors = field(default_factory=dict)  # statistics of its inputs, for task inference; empty if it has none
    scaling: Scaling | None = None  # of the values that it predicts: its head learns them without their mean and scale


class LayerCapacity(TypedDict):
    """How much of a layer there is (`of`), how much any task has taken, and how much the last task alone took."""

    of: int
    taken: int
    last: int


class Ownership(Protocol):
    """What a core must know of the way in which tasks divide the shared weights between them."""

    @property
    def masks(self) -> Tensors:
        """What is stored for it, beside the units of every task, by the names that files have for it."""

    def mask_shapes(self, shapes: Mapping[str, Sequence[int]], tasks: int) -> dict[str, tuple[int, ...]]:
        """The shapes that `masks`, which are bytes, have if shared weights have these shapes and there are so many tasks."""

    def view(self, shared: Mapping[str, Tensor], number: int) -> Tensors:
        """Shared weights as a task's network has them, at full width."""

    def used_positions(self, name: str, covered: Tensor) -> Tensor:
        """True at the positions of a shared weight that any task's network has; `covered` are those between their units."""

    def keep_first(self, count: int) -> Ownership:
        """The ownership as the first tasks know it, without what later ones have claimed."""

    def initial_positions(self, name: str, channels: Channels, units: Tensor, covered: Tensor) -> Tensor:
        """True where a new task begins with the core's values of a shared weight, which are zero where they are free.

        `units` are those that any task has, and `covered` is as for `used_positions`.
        """

    def claim(self, number: int, positions: Mapping[str, Tensor]) -> Ownership:
        """The ownership after a task has claimed positions of some weights."""

    def capacity(self, channels: Channels, tasks: Sequence[CommittedTask]) -> dict[str, LayerCapacity]:
        """What tasks have taken of every layer; empty if they share nothing."""


@dataclass(frozen=True, eq=False)
class UnitOwnership:
    """Tasks own whole units: a task's network has every shared weight between its units."""

    @property
    def masks(self) -> Tensors:
        return {}

    def mask_shapes(self, shapes: Mapping[str, Sequence[int]], tasks: int) -> dict[str, tuple[int, ...]]:
        return {}

    def view(self, shared: Mapping[str, Tensor], number: int) -> Tensors:
        return dict(shared)

    def used_positions(self, name: str, covered: Tensor) -> Tensor:
        return covered

    def keep_first(self, count: int) -> UnitOwnership:
        return self

    def initial_positions(self, name: str, channels: Channels, units: Tensor, covered: Tensor) -> Tensor:
        return channels.filter_mask(name, units, unprunable=True)

    def claim(self, number: int, positions: Mapping[str, Tensor]) -> UnitOwnership:
        return self  # the units of the task say it all

    def capacity(self, channels: Channels, tasks: Sequence[CommittedTask]) -> dict[str, LayerCapacity]:
        total = channels.widths(channels.all_units())
        now, before = (channels.widths(committed_units(channels, part)) for part in (tasks, tasks[:-1]))
        layers = {layer for group in channels.groups for layer in group.layers}
        return {
            layer: LayerCapacity(of=count, taken=now[layer], last=now[layer] - before[layer])
            for layer, count in total.items()
            if layer in layers
        }


@dataclass(frozen=True, eq=False)
class WeightOwnership:
    """Tasks own single weights: a task's network has its own and those of all earlier tasks, and zeros elsewhere."""

    owners: Tensors = field(default_factory=dict)  # weight -> uint8, the task that claimed each element, or FREE

    @property
    def masks(self) -> Tensors:
        return {f"taken.{name}": owner for name, owner in self.owners.items()}

    def mask_shapes(self, shapes: Mapping[str, Sequence[int]], tasks: int) -> dict[str, tuple[int, ...]]:
        return {f"taken.{name}": tuple(shape) for name, shape in shapes.items()}

    def view(self, shared: Mapping[str, Tensor], number: int) -> Tensors:
        return {
            name: torch.where(self.owners[name] <= number, tensor, torch.zeros_like(tensor)) for name, tensor in shared.items()
        }

    def used_positions(self, name: str, covered: Tensor) -> Tensor:
        return self.owners[name] < FREE

    def initial_positions(self, name: str, channels: Channels, units: Tensor, covered: Tensor) -> Tensor:
        return self.used_positions(name, covered)

    def keep_first(self, count: int) -> WeightOwnership:
        return WeightOwnership({name: owner.masked_fill(owner >= count, FREE) for name, owner in self.owners.items()})

    def claim(self, number: int, positions: Mapping[str, Tensor]) -> WeightOwnership:
        owners = dict(self.owners)
        for name, mask in positions.items():
            before = owners.get(name, torch.full_like(mask, FREE, dtype=torch.uint8))
            owners[name] = torch.where(mask & (before == FREE), number, before).to(torch.uint8)
        return WeightOwnership(owners)

    def capacity(self, channels: Channels, tasks: Sequence[CommittedTask]) -> dict[str, LayerCapacity]:
        layers: dict[str, LayerCapacity] = {}
        for name, owner in self.owners.items():
            layer = layers.setdefault(module_of(name) or name, LayerCapacity(of=0, taken=0, last=0))
            layer["of"] += owner.numel()
            layer["taken"] += int((owner < FREE).sum())
            layer["last"] += int((owner == len(tasks) - 1).sum())
        return layers


@dataclass(frozen=True, eq=False)
class SubnetOwnership:
    """Tasks select single weights, also those of other tasks: a task's network has its selection, and zeros elsewhere."""

    selected: Tensors = field(default_factory=dict)  # weight -> (tasks, bytes), a bit for every element, as packbits has them

    @property
    def masks(self) -> Tensors:
        return {f"selected.{name}": rows for name, rows in self.selected.items()}

    def mask_shapes(self, shapes: Mapping[str, Sequence[int]], tasks: int) -> dict[str, tuple[int, ...]]:
        return {f"selected.{name}": (tasks, math.ceil(math.prod(shape) / 8)) for name, shape in shapes.items()}

    def view(self, shared: Mapping[str, Tensor], number: int) -> Tensors:
        return {
            name: torch.where(unpack_bits(self.selected[name][number], tensor.shape), tensor, torch.zeros_like(tensor))
            for name, tensor in shared.items()
        }

    def used_positions(self, name: str, covered: Tensor) -> Tensor:
        return self._unite(name, covered.shape)

    def initial_positions(self, name: str, channels: Channels, units: Tensor, covered: Tensor) -> Tensor:
        return self.used_positions(name, covered)

    def keep_first(self, count: int) -> SubnetOwnership:
        return SubnetOwnership({name: rows[:count] for name, rows in self.selected.items()})

    def claim(self, number: int, positions: Mapping[str, Tensor]) -> SubnetOwnership:
        rows = {name: pack_bits(mask)[None] for name, mask in positions.items()}
        return SubnetOwnership({name: torch.cat([self.selected.get(name, row[:0]), row]) for name, row in rows.items()})

    def capacity(self, channels: Channels, tasks: Sequence[CommittedTask]) -> dict[str, LayerCapacity]:
        layers: dict[str, LayerCapacity] = {}
        for name in self.selected:
            layer = layers.setdefault(module_of(name) or name, LayerCapacity(of=0, taken=0, last=0))
            shape = channels.shapes[name]
            now, before = (int(self._unite(name, shape, count).sum()) for count in (len(tasks), len(tasks) - 1))
            layer["of"] += math.prod(shape)
            layer["taken"] += now
            layer["last"] += now - before
        return layers

    def _unite(self, name: str, shape: Sequence[int], count: int | None = None) -> Tensor:
        """True at the positions of a weight that any task has selected, or any of the first `count`."""
        return unpack_bits(torch.from_numpy(np.bitwise_or.reduce(self.selected[name][:count].numpy())), shape)


def pack_bits(mask: Tensor) -> Tensor:
    """A mask as bytes, with eight elements in each.

    >>> pack_bits(torch.tensor([[True, False], [True, True]])).tolist()
    [176]
    """
    return torch.from_numpy(np.packbits(mask.numpy()))


def unpack_bits(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask of this shape that `pack_bits` made bytes of.

    >>> unpack_bits(torch.tensor([176], dtype=torch.uint8), (2, 2)).tolist()
    [[True, False], [True, True]]
    """
    bits = np.unpackbits(packed.numpy(), count=math.prod(shape))
    return torch.from_numpy(bits.astype(bool)).reshape(tuple(shape))


def committed_units(channels: Channels, tasks: Sequence[CommittedTask]) -> Tensor:
    """The units that any of some tasks has, as a boolean for every unit."""
    if not tasks:
        return torch.zeros(channels.units, dtype=torch.bool)
    return torch.stack([task.units for task in tasks]).any(0)
