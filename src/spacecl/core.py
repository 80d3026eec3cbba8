"""The core: what tasks have committed. Immutable; learning a task makes a new one, so that a failed step changes nothing.

One number per unit, the task that took it, says which channels each task's network has: a task owns all units taken up
to it, so a later network contains every earlier one. Weights are held in common, full-width, zero where no task has
committed; norms and heads are each task's own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .blueprint import Blueprint, rebuild, repeated
from .channels import Channels, Tensors, trace
from .door import check
from .errors import SpaceError

FREE = 2**31 - 1  # the task of a unit that none has taken


@dataclass(frozen=True, eq=False)
class Core:
    """Committed weights, the task that took each unit, and every task's own tensors."""

    blueprint: Blueprint
    tensors: Tensors
    adopted: Tensor  # (units,) number of the task that took each unit, or FREE
    own: tuple[Tensors, ...]

    @staticmethod
    def empty(blueprint: Blueprint) -> Core:
        channels, given = blueprint.channels, blueprint.tensors()
        tensors = {name: torch.zeros_like(given[name]) for name in channels.shared}
        return Core(blueprint, tensors, torch.full((channels.units,), FREE), ())

    @property
    def channels(self) -> Channels:
        return self.blueprint.channels

    @property
    def committed(self) -> Tensor:
        """The units that any task has taken."""
        return self.adopted < FREE

    def keep(self, number: int) -> Tensor:
        """The units of a task's network."""
        return self.adopted <= number

    def task_tensors(self, number: int) -> Tensors:
        """All tensors of a task's network: its positions of those in common, and its own."""
        return self.channels.gather(self.tensors, self.keep(number)) | self.own[number]

    def network(self, number: int) -> nn.Module:
        """A task's own small network, in eval mode."""
        network = self.blueprint.build(self.task_tensors(number))
        network.eval()
        return network

    def digest(self, number: int) -> str:
        """A fingerprint of every bit of a task's network."""
        return digest(self.task_tensors(number))

    def size(self) -> float:
        """The share of the full backbone's parameters that all committed networks have between them, heads left out.

        Every task's norms count, each time; a full backbone has one set of them.
        """
        parameters = {name for name, _ in self.blueprint.module.named_parameters() if not self.channels.of_head(name)}
        shared = [name for name in self.channels.shared if name in parameters]
        norms = [name for name in self.channels.own if name in parameters]
        used = self.channels.count(self.committed, shared) if self.own else 0
        used += sum(own[name].numel() for own in self.own for name in norms)
        return used / self.channels.count(self.channels.everything(), [*shared, *norms])

    def start(self, classes: int) -> Tensors:
        """Full-width tensors to begin a task with: the core's weights, and fresh ones for all that is free.

        The first task begins with the user's own weights. Later ones take over the last task's norms for the core's
        channels. Weights of core filters on free channels begin at zero: the core's features are what they were.
        """
        if not self.own:
            given = self.blueprint.tensors()
            return given | self.blueprint.new_head(given, classes)
        channels, last = self.channels, len(self.own) - 1
        fresh = self.blueprint.fresh(classes)
        norms = {n: t for n, t in self.own[last].items() if not channels.of_head(n) and t.is_floating_point()}
        fresh |= channels.scatter(norms, self.keep(last), {n: fresh[n] for n in norms})
        frozen = self.blueprint.frozen  # begins as given where it is free, since it cannot learn
        for name, tensor in self.tensors.items():
            known = channels.mask(name, self.committed) if name in frozen else channels.rows(name, self.committed, whole=True)
            fresh[name] = torch.where(known, tensor, fresh[name])
        return fresh

    def held(self, freeze: str) -> dict[str, Tensor]:
        """The positions of shared tensors that may not change: committed ones, or with them all of a core filter's."""
        if not self.own:
            return {}
        find = self.channels.mask if freeze == "subnet" else self.channels.rows
        return {name: find(name, self.committed) for name in self.channels.shared}

    def commit(self, small: Mapping[str, Tensor], keep: Tensor) -> Core:
        """A core with one task more, whose network keeps these units and has these tensors.

        What was committed is never written, whatever `small` says there.
        """
        written = self.channels.scatter({name: small[name] for name in self.tensors}, keep, self.tensors)
        fixed = self.held("subnet")
        tensors = {n: torch.where(fixed[n], self.tensors[n], t) if n in fixed else t for n, t in written.items()}
        own = {name: small[name] for name in sorted(self.channels.own)}
        adopted = torch.where(keep & (self.adopted == FREE), len(self.own), self.adopted)
        return replace(self, tensors=tensors, adopted=adopted, own=(*self.own, own))

    def grow(self, factor: float) -> Core:
        """The same core in a network with more channels in every group; committed networks are the same to the bit."""
        return self.resized([math.ceil(len(group.units) * factor) for group in self.channels.groups])

    def resized(self, sizes: list[int]) -> Core:
        """The same core in a network whose groups have so many units, none fewer than now."""
        old = self.channels
        more = {g: size / len(group.units) for g, (group, size) in enumerate(zip(old.groups, sizes))}
        group_of = torch.cat([torch.full((len(group.units),), g) for g, group in enumerate(old.groups)])
        shapes = {}
        for name, shape in old.shapes.items():
            shapes[name] = tuple(
                size if owner is None else _grown(size, owner, group_of, more) for size, owner in zip(shape, old.dims[name])
            )
        blueprint = self.blueprint
        given = {name: repeated(tensor, shapes[name]) for name, tensor in blueprint.tensors().items()}
        module = rebuild(blueprint.module, given)
        module.eval()
        channels = check(module, blueprint.example, trace(module, blueprint.example, blueprint.head, blueprint.shared))
        layers = [group.layers for group in old.groups]
        found = {group.layers: group.units for group in channels.groups}
        if any(len(found.get(name, ())) != size for name, size in zip(layers, sizes)) or len(found) != len(layers):
            raise SpaceError("The network cannot grow: with more channels its layers are tied otherwise than before.")
        units = torch.cat([found[group.layers][: len(group.units)] for group in old.groups])  # old unit -> new unit
        kept = torch.zeros(channels.units, dtype=torch.bool)
        kept[units] = True
        adopted = torch.full((channels.units,), FREE)
        adopted[units] = self.adopted
        tensors = channels.scatter(self.tensors, kept, {name: torch.zeros_like(given[name]) for name in self.tensors})
        grown = replace(self, blueprint=blueprint.with_channels(channels), tensors=tensors, adopted=adopted)
        if any(grown.digest(number) != self.digest(number) for number in range(len(self.own))):
            raise SpaceError("The network cannot grow: a committed task's weights would not stay where they are.")
        return grown


def _grown(size: int, owner: Tensor, group_of: Tensor, more: Mapping[int, float]) -> int:
    """The size of a dimension when every group that owns part of it has grown by its ratio."""
    owners = group_of[owner[owner >= 0]]
    extra = sum(round(int((owners == g).sum()) * (ratio - 1)) for g, ratio in more.items())
    return size + extra


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
