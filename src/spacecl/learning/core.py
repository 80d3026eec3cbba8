"""The core: what tasks have committed. Immutable; learning a task makes a new one, so that a failed step changes nothing.

A boolean per unit and task says which channels each task's network has. Weights are held in common, full-width, zero
where no task has committed; norms and heads are each task's own. Methods that share single weights rather than channels
also note the task that took each weight.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ..errors import SpaceError
from ..structure.blueprint import Blueprint, rebuild, repeat_to_shape
from ..structure.channels import Channels, Tensors, trace
from ..structure.graph import module_of
from ..structure.validate import check_narrowing

FREE = 255  # the task of a weight that none has taken


@dataclass(frozen=True, eq=False)
class Core:
    """Committed weights, and for every task the units of its network and its own tensors."""

    blueprint: Blueprint
    tensors: Tensors
    keeps: tuple[Tensor, ...] = ()  # per task (units,) booleans: the units of its network
    own: tuple[Tensors, ...] = ()  # per task norms and head, and whatever else it shares with none
    taken: Tensors = field(
        default_factory=dict
    )  # weight -> uint8, the task that took each element, or FREE; by default none do
    memory: Tensors = field(default_factory=dict)  # what a method needs for later tasks, and no network
    signatures: tuple[Tensors, ...] = ()  # per task what its inputs are like, to know them again

    @staticmethod
    def empty(blueprint: Blueprint) -> Core:
        channels, given = blueprint.channels, blueprint.tensors()
        return Core(blueprint, {name: torch.zeros_like(given[name]) for name in channels.shared})

    @property
    def channels(self) -> Channels:
        return self.blueprint.channels

    @property
    def committed(self) -> Tensor:
        """The units that any task has taken."""
        return torch.stack(self.keeps).any(0) if self.keeps else torch.zeros(self.channels.units, dtype=torch.bool)

    def keep(self, number: int) -> Tensor:
        """The units of a task's network."""
        return self.keeps[number]

    def task_tensors(self, number: int) -> Tensors:
        """All tensors of a task's network: its positions of those in common, and its own."""
        own = self.own[number]
        common = {name: tensor for name, tensor in self.tensors.items() if name not in own}
        for name in self.taken.keys() & common.keys():
            common[name] = torch.where(self.taken[name] <= number, common[name], torch.zeros_like(common[name]))
        return self.channels.gather(common, self.keep(number)) | own

    def used(self, name: str) -> Tensor:
        """True at the positions of a tensor in common that any task's network has."""
        if name in self.taken:
            return self.taken[name] < FREE
        found = torch.zeros(self.channels.shapes[name], dtype=torch.bool)
        seen: list[Tensor] = []
        for keep, own in zip(self.keeps, self.own):
            if name not in own and not any(torch.equal(keep, other) for other in seen):
                found |= self.channels.mask(name, keep)
                seen.append(keep)
        return found

    def network(self, number: int) -> nn.Module:
        """A task's own small network, in eval mode."""
        network = self.blueprint.build(self.task_tensors(number))
        network.eval()
        return network

    def digest(self, number: int) -> str:
        """A fingerprint of every bit of a task's network."""
        return digest(self.task_tensors(number))

    def size(self) -> float:
        """The parameters of all committed networks together over those of the backbone as it was given, heads left out.

        What tasks have of their own, such as norms, counts each time, but not where it is the same; a full backbone has
        one set of norms.
        """
        full = used = 0
        for name, parameter in self.blueprint.module.named_parameters():
            if not self.channels.is_head(name):
                full += parameter.numel()
                used += int(self.used(name).sum()) if name in self.tensors else 0
                used += sum(tensor.numel() for tensor in _distinct(own[name] for own in self.own if name in own))
        return used / full

    def capacity(self) -> dict[str, dict[str, int]]:
        """For every layer that tasks share out, `of`: what there is, `taken`: by any task, `last`: by the last one alone."""
        if self.taken:
            found: dict[str, dict[str, int]] = {}
            for name, taken in self.taken.items():
                layer = found.setdefault(module_of(name) or name, {"of": 0, "taken": 0, "last": 0})
                layer["of"] += taken.numel()
                layer["taken"] += int((taken < FREE).sum())
                layer["last"] += int((taken == len(self.own) - 1).sum())
            return found
        if self.own and all(name in own for own in self.own for name in self.tensors):  # nothing is shared
            return {}
        before = replace(self, keeps=self.keeps[:-1]).committed
        counts = [self.channels.widths(keep) for keep in (self.channels.all_units(), self.committed, before)]
        layers = {layer for group in self.channels.groups for layer in group.layers}
        return {
            layer: {"of": of, "taken": counts[1][layer], "last": counts[1][layer] - counts[2][layer]}
            for layer, of in counts[0].items()
            if layer in layers
        }

    def storage(self) -> dict[str, int]:
        """The bytes that are kept: weights in common, tensors of single tasks, masks, and what only later tasks need."""
        parts: dict[str, Iterable[Tensor]] = {
            "weights": self.tensors.values(),
            "own": (tensor for own in self.own for tensor in own.values()),
            "masks": [*self.keeps, *self.taken.values()],
            "memory": self.memory.values(),
            "signatures": (tensor for signed in self.signatures for tensor in signed.values()),
        }
        return {name: sum(tensor.nbytes for tensor in tensors) for name, tensors in parts.items()}

    def start(self, classes: int) -> Tensors:
        """Full-width tensors to begin a task with: the core's weights, and fresh ones for all that is free.

        The first task begins with the user's own weights. Later ones take over the last task's norms for the core's
        channels. Weights of core filters on free channels begin at zero: the core's features are what they were.
        """
        if not self.own:
            given = self.blueprint.tensors()
            return given | self.blueprint.new_head(given, classes)
        channels, last = self.channels, len(self.own) - 1
        fresh = self.blueprint.draw_tensors(classes)
        norms = {n: t for n, t in self.own[last].items() if not channels.is_head(n) and t.is_floating_point()}
        fresh |= channels.scatter(norms, self.keep(last), {n: fresh[n] for n in norms})
        frozen = self.blueprint.frozen  # begins as given where it is free, since it cannot learn
        for name, tensor in self.tensors.items():
            known = (
                channels.mask(name, self.committed)
                if name in frozen
                else channels.filter_mask(name, self.committed, unprunable=True)
            )
            fresh[name] = torch.where(known, tensor, fresh[name])
        return fresh

    def held(self, freeze: str) -> dict[str, Tensor]:
        """The positions of shared tensors that may not change: committed ones, or with them all of a core filter's."""
        if not self.own:
            return {}
        if freeze == "subnet":
            return {name: self.used(name) for name in self.tensors}
        return {name: self.channels.filter_mask(name, self.committed) for name in self.tensors}

    def commit(self, small: Mapping[str, Tensor], keep: Tensor, takes: Mapping[str, Tensor] | None = None) -> Core:
        """A core with one task more, whose network keeps these units and has these tensors.

        With `takes`, the network has of each weight in common only these positions, and what earlier tasks took. What
        was committed is never written, whatever `small` says there.
        """
        written = self.channels.scatter({name: small[name] for name in self.tensors}, keep, self.tensors)
        fixed = self.held("subnet")
        tensors = {n: torch.where(fixed[n], self.tensors[n], t) if n in fixed else t for n, t in written.items()}
        taken = dict(self.taken)
        for name, mask in (takes or {}).items():
            before = taken.get(name, torch.full_like(mask, FREE, dtype=torch.uint8))
            taken[name] = torch.where(mask & (before == FREE), len(self.own), before).to(torch.uint8)
            tensors[name] = torch.where(taken[name] < FREE, tensors[name], torch.zeros_like(tensors[name]))
        own = {name: small[name] for name in sorted(self.channels.private)}
        return replace(self, tensors=tensors, keeps=(*self.keeps, keep.clone()), own=(*self.own, own), taken=taken)

    @property
    def classes(self) -> tuple[int, ...]:
        """How many classes each task has."""
        return tuple(len(own[f"{self.blueprint.head}.weight"]) for own in self.own)

    def joined_heads(self) -> Tensors:
        """The heads of all tasks as one, with the classes of all."""
        return {name: torch.cat([own[name] for own in self.own]) for name in self.channels.heads}

    def rewrite(self, whole: Mapping[str, Tensor], together: bool = False) -> Core:
        """A core with one task more in which all networks have these whole weights: earlier ones' answers change.

        Norms and heads of earlier tasks stay, or, with `together`, `whole` has norms for all tasks and one head with the
        classes of all.
        """
        own = {name: whole[name] for name in sorted(self.channels.private)}
        every: tuple[Tensors, ...] = (*self.own, own)
        if together:
            head = self.channels.heads
            sizes = [*self.classes, len(own[f"{self.blueprint.head}.weight"]) - sum(self.classes)]
            rows = [{name: own[name].split(sizes)[number].clone() for name in head} for number in range(len(sizes))]
            every = tuple({name: row[name] if name in head else tensor for name, tensor in own.items()} for row in rows)
        keeps = (self.channels.all_units(),) * len(every)
        return replace(self, tensors={name: whole[name] for name in self.tensors}, keeps=keeps, own=every)

    def grow(self, factor: float) -> Core:
        """The same core in a network with more channels in every group; committed networks are the same to the bit."""
        return self.resized([math.ceil(len(group.units) * factor) for group in self.channels.groups])

    def resized(self, sizes: list[int], expected: Mapping[str, Sequence[int]] | None = None) -> Core:
        """The same core in a network whose groups have `sizes` units, none fewer than now.

        `expected` has shapes of tensors in common that the larger network must have, or nothing is made.
        """
        old = self.channels
        more = {g: size / len(group.units) for g, (group, size) in enumerate(zip(old.groups, sizes))}
        group_of = torch.cat([torch.full((len(group.units),), g) for g, group in enumerate(old.groups)])
        shapes = {}
        for name, shape in old.shapes.items():
            shapes[name] = tuple(
                size if owner is None else _grown(size, owner, group_of, more) for size, owner in zip(shape, old.dims[name])
            )
        other = [name for name, shape in (expected or {}).items() if tuple(shape) != shapes[name]]
        if other:
            raise SpaceError(f"The network cannot grow: {other[0]} would have the shape {list(shapes[other[0]])}.")
        blueprint = self.blueprint
        given = {name: repeat_to_shape(tensor, shapes[name]) for name, tensor in blueprint.tensors().items()}
        module = rebuild(blueprint.module, given)
        module.eval()
        channels = check_narrowing(
            module, blueprint.example, trace(module, blueprint.example, blueprint.head, blueprint.shared)
        )
        layers = [group.layers for group in old.groups]
        found = {group.layers: group.units for group in channels.groups}
        if any(len(found.get(name, ())) != size for name, size in zip(layers, sizes)) or len(found) != len(layers):
            raise SpaceError("The network cannot grow: with more channels its layers are tied otherwise than before.")
        units = torch.cat([found[group.layers][: len(group.units)] for group in old.groups])  # old unit -> new unit
        kept = torch.zeros(channels.units, dtype=torch.bool)
        kept[units] = True
        keeps = tuple(torch.zeros_like(kept).index_put((units,), keep) for keep in self.keeps)
        tensors = channels.scatter(self.tensors, kept, {name: torch.zeros_like(given[name]) for name in self.tensors})
        grown = replace(self, blueprint=blueprint.with_channels(channels), tensors=tensors, keeps=keeps)
        if any(grown.digest(number) != self.digest(number) for number in range(len(self.own))):
            raise SpaceError("The network cannot grow: a committed task's weights would not stay where they are.")
        return grown


def _grown(size: int, owner: Tensor, group_of: Tensor, more: Mapping[int, float]) -> int:
    """The size of a dimension when every group that owns part of it has grown by its ratio."""
    owners = group_of[owner[owner >= 0]]
    extra = sum(round(int((owners == g).sum()) * (ratio - 1)) for g, ratio in more.items())
    return size + extra


def _distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    for tensor in tensors:
        if not any(torch.equal(tensor, other) for other in found):
            found.append(tensor)
    return found


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
