"""The core: what tasks have committed. Immutable; learning a task makes a new one, so that a failed step changes nothing.

Shared weights have the full width and are zero where no task has committed; norms and heads are private to each task. Which
positions of the shared weights a task's network has is a matter of `ownership`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..data.targets import Scaling
from ..structure.blueprint import Blueprint
from ..structure.channels import Channels
from ..structure.graph import layer_of
from ..structure.tensors import Tensors
from .ownership import CommittedTask, LayerCapacity, Ownership, UnitOwnership
from .summary import Summary


@dataclass(frozen=True, eq=False, repr=False)
class Core:
    """The weights of all committed tasks, and what each of their networks has of them."""

    blueprint: Blueprint
    shared: Tensors  # full-width weights, zero where they are free
    tasks: tuple[CommittedTask, ...] = ()
    ownership: Ownership = field(default_factory=UnitOwnership)
    memory: Tensors = field(default_factory=dict)  # what a method needs for later tasks, and no network has

    def __repr__(self) -> str:
        used = int(self.committed_units.sum())
        return f"<Core tasks={len(self.tasks)} units={used}/{self.channels.units} size={self.size():.3f}>"

    @staticmethod
    def empty(blueprint: Blueprint) -> Core:
        """A core without tasks."""
        initial = blueprint.tensors()
        return Core(blueprint, {name: torch.zeros_like(initial[name]) for name in blueprint.channels.shared})

    @property
    def channels(self) -> Channels:
        return self.blueprint.channels

    @cached_property
    def summary(self) -> Summary:
        """What all tasks together have; where one was committed, it follows from the summary of those before."""
        summary = Summary.empty(self.channels, self.shared)
        for task in self.tasks:
            summary = summary.add(task, self.channels, self.shared)
        return summary

    @property
    def committed_units(self) -> Tensor:
        """The units that any task has, as a boolean for every unit; not to be changed."""
        return self.summary.units

    @property
    def prunable_weights(self) -> set[str]:
        """Names of the weights of which single ones can be left out: those of layers, without what the user froze."""
        layers = self.channels.layers.keys()
        named = self.blueprint.module.named_parameters()
        trained = {name for name, p in named if name in self.shared and p.requires_grad and p.dim() > 1}
        return {name for name in trained if layer_of(name) in layers}

    @property
    def classes(self) -> tuple[int, ...]:
        """How many classes, labels or values each task has."""
        return tuple(len(task.private[f"{self.blueprint.head}.weight"]) for task in self.tasks)

    # -- networks of tasks ----------------------------------------------------------------------------------------

    def task_tensors(self, number: int) -> Tensors:
        """All tensors of a task's network: its positions of the shared ones, and its private ones.

        Its head returns values in the user's unit, whatever unit it has learned them in.
        """
        task = self.tasks[number]
        shared = {name: tensor for name, tensor in self.shared.items() if name not in task.private}
        tensors = self.channels.gather(self.ownership.view(shared, number), task.units) | task.private
        return tensors if task.scaling is None else tensors | scale_head(tensors, self.blueprint.head, task.scaling)

    def network(self, number: int) -> nn.Module:
        """A task's own small network, in eval mode."""
        network = self.blueprint.build(self.task_tensors(number))
        network.eval()
        return network

    def digest(self, number: int) -> str:
        """A fingerprint of every bit of a task's network."""
        return digest_tensors(self.task_tensors(number))

    # -- what is used ---------------------------------------------------------------------------------------------

    def used_positions(self, name: str) -> Tensor:
        """True at the positions of a shared weight that any task's network has."""
        return self.ownership.used_positions(name, self.summary.positions[name])

    def frozen_positions(self, freeze: Literal["subnet", "filters"]) -> Tensors:
        """The positions of shared weights that may not change, for every weight.

        "subnet" freezes the weights that committed networks have, "filters" all weights of a committed filter, whatever
        channels they read.
        """
        if not self.tasks:
            return {}
        if freeze == "subnet":
            return {name: self.used_positions(name) for name in self.shared}
        return {name: self.channels.filter_mask(name, self.committed_units) for name in self.shared}

    def size(self, units: Tensor | None = None) -> float:
        """The parameters of all committed networks together over those of the backbone as it was given, without heads.

        Private tensors, such as norms, count once for every task, but not where they are equal; a full backbone has one
        set of norms. With `units`, a further task whose network has these is counted, too.
        """
        full = used = 0
        for name, parameter in self.blueprint.module.named_parameters():
            if not self.channels.is_head(name):
                full += parameter.numel()
                if name in self.shared and (self.tasks or units is not None):
                    positions = self.used_positions(name)
                    used += int((positions if units is None else positions | self.channels.mask(name, units)).sum())
                used += self.summary.private.get(name, 0)
                if units is not None and name in self.channels.private:
                    used += math.prod(self.channels.narrowed_shape(name, units))
        return used / full

    def capacity(self) -> dict[str, LayerCapacity]:
        """For every layer that tasks divide between them, how much there is and how much is taken."""
        if self.tasks and all(name in task.private for task in self.tasks for name in self.shared):
            return {}  # nothing is shared
        return self.ownership.capacity(self.channels, self.tasks)

    def storage(self) -> dict[str, int]:
        """The bytes that are stored: shared weights, private tensors, masks, and what only later tasks need."""
        given = self.blueprint.tensors() if self.blueprint.pretrained else {}  # with which later tasks begin
        parts: dict[str, Iterable[Tensor]] = {
            "weights": self.shared.values(),
            "own": (tensor for task in self.tasks for tensor in task.private.values()),  # scalings are a few numbers
            "masks": [*(task.units for task in self.tasks), *self.ownership.masks.values()],
            "memory": [*self.memory.values(), *(given[name] for name in given if not self.channels.is_head(name))],
            "signatures": (tensor for task in self.tasks for tensor in task.signature.values()),
        }
        return {name: sum(tensor.nbytes for tensor in tensors) for name, tensors in parts.items()}

    # -- learning one more ----------------------------------------------------------------------------------------

    def initial_tensors(self, classes: int) -> Tensors:
        """Full-width tensors to begin a task with: the core's weights, and the user's own for everything that is free.

        Tasks after the first take over the norms of the last task that has a channel. Weights of core filters on free
        channels begin at zero, so that the core's features are what they were.
        """
        tensors = self.blueprint.initial_tensors(classes)
        if not self.tasks:
            return tensors
        channels, norms = self.channels, self.summary.norms
        tensors |= {name: torch.where(known, tensor, tensors[name]) for name, (tensor, known) in norms.items()}
        untrained = self.blueprint.frozen  # begins as given where it is free, since it cannot learn
        for name, shared in self.shared.items():
            if name in untrained:
                known = self.used_positions(name)
            else:
                covered = self.summary.positions[name]
                known = self.ownership.initial_positions(name, channels, self.committed_units, covered)
            tensors[name] = torch.where(known, shared, tensors[name])
        return tensors

    def commit(self, small: Mapping[str, Tensor], units: Tensor, claims: Mapping[str, Tensor] | None = None) -> Core:
        """A core with one more task, whose network has these units and these tensors.

        `claims` are the positions of shared weights that the task has, where tasks own single weights. Committed
        positions are never written, whatever `small` has there.
        """
        written = self.channels.scatter({name: small[name] for name in self.shared}, units, self.shared)
        frozen = self.frozen_positions("subnet")
        shared = {n: torch.where(frozen[n], self.shared[n], t) if n in frozen else t for n, t in written.items()}
        ownership = self.ownership.claim(len(self.tasks), claims or {})
        private = {name: small[name] for name in sorted(self.channels.private)}
        core = self.add(CommittedTask(units.clone(), private), shared=shared, ownership=ownership)
        if claims is None:
            return core
        used = {name: core.used_positions(name) for name in shared}  # zero where no task has claimed a weight
        shared = {name: torch.where(used[name], tensor, torch.zeros_like(tensor)) for name, tensor in shared.items()}
        return core._with_summary(core.summary, shared=shared)

    def add(self, task: CommittedTask, **changes: Any) -> Core:
        """The core with one more task, and with some fields changed in a way that leaves earlier tasks what they are."""
        return self._with_summary(self.summary.add(task, self.channels, self.shared), tasks=(*self.tasks, task), **changes)

    def replace_weights(self, tensors: Mapping[str, Tensor], joint: bool = False) -> Core:
        """A core with one more task in which all networks have these full-width weights: those of earlier tasks change.

        Norms and heads of earlier tasks stay. With `joint`, `tensors` has norms for all tasks, and one head with the
        classes of all.
        """
        private = {name: tensors[name] for name in sorted(self.channels.private)}
        everything: tuple[Tensors, ...] = (*(task.private for task in self.tasks), private)
        if joint:
            heads = self.channels.heads
            sizes = [*self.classes, len(private[f"{self.blueprint.head}.weight"]) - sum(self.classes)]
            rows = [{name: private[name].split(sizes)[number].clone() for name in heads} for number in range(len(sizes))]
            everything = tuple({name: row.get(name, tensor) for name, tensor in private.items()} for row in rows)
        known = (*self.tasks, CommittedTask(self.channels.all_units(), {}))
        tasks = [replace(task, units=self.channels.all_units(), private=parts) for task, parts in zip(known, everything)]
        return replace(self, shared={name: tensors[name] for name in self.shared}, tasks=tuple(tasks))

    def joined_heads(self) -> Tensors:
        """The heads of all tasks as one, with the classes of all."""
        return {name: torch.cat([task.private[name] for task in self.tasks]) for name in self.channels.heads}

    def with_signature(self, signature: Tensors) -> Core:
        """The same core, with a signature for the last task."""
        return self._with_summary(self.summary, tasks=(*self.tasks[:-1], replace(self.tasks[-1], signature=signature)))

    def with_scaling(self, scaling: Scaling | None) -> Core:
        """The same core, with the scaling of the last task's values."""
        return self._with_summary(self.summary, tasks=(*self.tasks[:-1], replace(self.tasks[-1], scaling=scaling)))

    def _with_summary(self, summary: Summary, **changes: Any) -> Core:
        """The core with some changes, and the summary that belongs to it: nothing else need be computed from all tasks."""
        core = replace(self, **changes)
        core.__dict__["summary"] = summary  # where cached_property keeps it
        return core


def scale_head(tensors: Mapping[str, Tensor], head: str, scaling: Scaling) -> Tensors:
    """The tensors of a head that returns values in the user's unit, from those of one that returns them standardized."""
    weight, bias = tensors[f"{head}.weight"], tensors.get(f"{head}.bias")
    scaled = {f"{head}.weight": (weight.double() * scaling.scale.reshape(-1, *[1] * (weight.dim() - 1))).to(weight.dtype)}
    return scaled if bias is None else scaled | {f"{head}.bias": scaling.restore(bias).to(bias.dtype)}


def unscale_head(tensors: Mapping[str, Tensor], head: str, scaling: Scaling) -> Tensors:
    """The reverse of `scale_head`."""
    reverse = Scaling(-scaling.mean / scaling.scale, 1 / scaling.scale)
    return scale_head(tensors, head, reverse)


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
