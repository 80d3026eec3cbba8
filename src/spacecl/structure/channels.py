"""Units, groups and positions: which elements of every tensor belong to a network of given channels.

A *unit* is the least that can be kept or removed: channels of one or several layers that are tied. Units of the same
layers form a *group*. `keep`, a boolean for every unit, therefore says all there is to say about a network's widths,
and selects a set of positions in every tensor: for extraction, freezing, writing back and counting alike.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .graph import layer_of
from .owners import NO_OWNER
from .resizing import Correction, Dimension
from .tensors import Tensors

GroupKey = tuple[tuple[str, ...], int]


@dataclass(frozen=True, eq=False)
class Group:
    """Units that belong to the same layers, which therefore have one width."""

    layers: tuple[str, ...]
    units: Tensor  # (n,) in the order of the channels
    number: int = 0  # how many groups of the same layers come before, such as those of the parts of a split

    @property
    def key(self) -> GroupKey:
        """What a group has in common with the one of the same channels in a network with more of them."""
        return self.layers, self.number


@dataclass(frozen=True, eq=False)
class Place:
    """Where channels can be observed together: the input or the output of a layer that mixes channels."""

    weight: str
    side: str  # "input" or "output"
    dim: int  # the channel dimension of the activation there
    columns: Tensor  # (occurrences, units): the indices along `dim` of each unit
    units: Tensor  # (units,)

    @property
    def layer(self) -> str:
        return layer_of(self.weight)


@dataclass(frozen=True, eq=False)
class Channels:
    """Everything that is known about a model's channels. Immutable; see `trace`."""

    dims: Mapping[str, tuple[Tensor | None, ...]]  # tensor -> per dimension the unit of each index, or NO_OWNER
    shapes: Mapping[str, tuple[int, ...]]
    groups: tuple[Group, ...]
    layers: Mapping[str, Tensor]  # layer, in order of use -> the unit of each output channel, or NO_OWNER
    readings: tuple[Place, ...]
    outputs: tuple[Place, ...]
    readers: Mapping[str, int]  # weight that mixes channels -> its dimension of what it reads
    biases: Mapping[str, Sequence[str]]  # weight of a reading layer -> its bias, or biases where layers share the weight
    filters: Mapping[str, int]  # weight of a layer that creates channels -> its dimension of these
    private: frozenset[str]  # tensors that every task has for itself: norms and the head
    unprunable: Mapping[str, str | None]  # layer that keeps its full width -> why; None if the user shared it
    sizes: Mapping[str, Dimension]  # number that a module stores -> the tensor and dimension that it follows
    resizes: Mapping[str, Correction]  # module -> the sizes that its code gets, if they need correction
    statistics: frozenset[int]  # numbers of the calls of mean() that are over channels
    operations: tuple[str, ...]
    head: str  # the layer whose output the model returns
    heads: frozenset[str]  # names of the head's tensors, and of those that have a value for every score

    @property
    def units(self) -> int:
        return sum(len(group.units) for group in self.groups)

    @property
    def shared(self) -> list[str]:
        """Names of the tensors that all tasks share."""
        return [name for name in self.shapes if name not in self.private]

    def is_head(self, name: str) -> bool:
        """Whether a tensor belongs to the head."""
        return name in self.heads

    def all_units(self) -> Tensor:
        """A `keep` that keeps every unit."""
        return torch.ones(self.units, dtype=torch.bool)

    def indices(self, name: str, keep: Tensor) -> list[Tensor | None]:
        """For each dimension of a tensor, the indices that the network with these units has; None where it has all."""
        return [None if owner is None else ((owner < 0) | keep[owner]).nonzero()[:, 0] for owner in self.dims[name]]

    def narrowed_shape(self, name: str, keep: Tensor) -> tuple[int, ...]:
        """The shape of a tensor in the network that keeps these units."""
        return tuple(size if index is None else len(index) for size, index in zip(self.shapes[name], self.indices(name, keep)))

    def gather(self, tensors: Mapping[str, Tensor], keep: Tensor) -> Tensors:
        """The small tensors of the network that keeps these units."""
        small = {}
        for name, tensor in tensors.items():
            for dim, index in enumerate(self.indices(name, keep)):  # one dimension at a time, much faster than all at once
                tensor = tensor if index is None else tensor.index_select(dim, index.to(tensor.device))
            small[name] = tensor.clone() if tensor is tensors[name] else tensor
        return small

    def scatter(self, small: Mapping[str, Tensor], keep: Tensor, into: Mapping[str, Tensor]) -> Tensors:
        """Copies of the full tensors `into` with the small network's values at its positions."""
        full = {name: tensor.clone() for name, tensor in into.items()}
        for name, tensor in small.items():
            full[name][self._grid(name, keep)] = tensor.to(full[name])
        return full

    def permute(self, tensors: Mapping[str, Tensor], source: Tensor) -> Tensors:
        """Full tensors in which every unit has the values of another one of its group: unit u has those of `source[u]`.

        The same network in another order, as long as no unit has the values of two.
        """
        permuted = {}
        for name, tensor in tensors.items():
            for dim, owner in enumerate(self.dims[name]):
                if owner is not None:
                    tensor = tensor.index_select(dim, _permute_indices(owner, source).to(tensor.device))
            permuted[name] = tensor
        return permuted

    def mask(self, name: str, keep: Tensor) -> Tensor:
        """True at the positions of a full tensor that belong to the network that keeps these units."""
        mask = torch.zeros(self.shapes[name], dtype=torch.bool)
        mask[self._grid(name, keep)] = True
        return mask

    def filter_mask(self, name: str, keep: Tensor, unprunable: bool = False) -> Tensor:
        """Return `mask` plus all positions of the filters that these units own, whatever they read.

        With `unprunable`, the filters of unprunable layers are added, too.
        """
        dim = self.filters.get(name, 0)
        mask, owner = self.mask(name, keep), self.dims[name][dim] if self.dims[name] else None
        if owner is not None:
            mask.movedim(dim, 0)[((owner < 0) & unprunable) | ((owner >= 0) & keep[owner])] = True
        elif unprunable and name in self.filters:
            mask[:] = True
        return mask

    def widths(self, keep: Tensor) -> dict[str, int]:
        """How many output channels each layer keeps."""
        return {layer: int(((owner < 0) | keep[owner]).sum()) for layer, owner in self.layers.items()}

    def per_unit(self, layer: str, group: Group) -> int:
        """How many output channels of a layer each unit of a group has."""
        return int(torch.isin(self.layers[layer], group.units).sum()) // len(group.units)

    def step(self, group: Group, multiple: Callable[[str], int]) -> int:
        """The number of units whose multiples make the width of each layer of a group a multiple of `multiple(layer)`."""
        wanted = {layer: multiple(layer) for layer in group.layers}
        return math.lcm(*(number // math.gcd(number, self.per_unit(layer, group)) for layer, number in wanted.items()))

    def full_layers(self, committed: Tensor) -> list[str]:
        """List the layers of groups that have no free unit left, given which units are committed."""
        return [layer for group in self.groups if bool(committed[group.units].all()) for layer in group.layers]

    def places(self, group: Group, side: str) -> Iterator[tuple[Place, Tensor]]:
        """List where a whole group can be observed, with the indices of its units among the place's."""
        for place in self.readings if side == "input" else self.outputs:
            local = torch.isin(place.units, group.units).nonzero()[:, 0]
            if len(local) == len(group.units):
                yield place, local

    def parameters_of_units(self) -> Tensor:
        """How many parameters of the full network, heads left out, belong to each unit: its filters and what reads them."""
        counts = torch.zeros(self.units)
        for name, dims in self.dims.items():
            if not self.is_head(name):
                for size, owner in zip(self.shapes[name], dims):
                    if owner is not None:
                        units = torch.bincount(owner[owner >= 0], minlength=self.units)
                        counts += units * (math.prod(self.shapes[name]) // size)
        return counts

    def fingerprint(self) -> str:
        """A digest of the tensors' names, shapes and ties; `operations` tell apart architectures that agree in these."""
        digest = hashlib.sha256()
        for name, shape in sorted(self.shapes.items()):
            digest.update(f"{name}{shape}{[None if d is None else d.tolist() for d in self.dims[name]]}".encode())
        return digest.hexdigest()

    def without_groups(self, reasons: Mapping[int, str]) -> Channels:
        """The same channels with some groups unprunable: number of the group -> the reason."""
        groups = [group for number, group in enumerate(self.groups) if number not in reasons]
        renumber = torch.full((self.units + 1,), NO_OWNER)  # the last entry serves NO_OWNER itself
        for new, old in enumerate(torch.cat([group.units for group in groups]).tolist() if groups else []):
            renumber[old] = new
        unprunable = dict(self.unprunable)
        for number, reason in reasons.items():
            unprunable |= dict.fromkeys(self.groups[number].layers, reason)
        return replace(
            self,
            dims={
                name: tuple(None if d is None else drop_empty(renumber[d]) for d in dims) for name, dims in self.dims.items()
            },
            groups=tuple(replace(group, units=renumber[group.units]) for group in groups),
            layers={layer: renumber[owner] for layer, owner in self.layers.items()},
            readings=_renumber(self.readings, renumber),
            outputs=_renumber(self.outputs, renumber),
            unprunable=unprunable,
        )

    def _grid(self, name: str, keep: Tensor) -> tuple[Tensor | slice, ...]:
        """Indices that select all of a tensor's positions at once."""
        indices = self.indices(name, keep)
        owned = [dim for dim, index in enumerate(indices) if index is not None]
        grid: list[Tensor | slice] = [slice(None)] * len(indices)
        if len(owned) == 1:
            grid[owned[0]] = indices[owned[0]]  # type: ignore[assignment]
        elif owned:  # every dimension by index, so that the result keeps the order of the dimensions
            for dim, index in enumerate(indices):
                index = torch.arange(self.shapes[name][dim]) if index is None else index
                grid[dim] = index.reshape([-1 if d == dim else 1 for d in range(len(indices))])
        return tuple(grid)


def _permute_indices(owner: Tensor, source: Tensor) -> Tensor:
    """For every index along a dimension, the index whose values it gets when unit u gets those of `source[u]`."""
    indices = torch.arange(len(owner))
    owned = (owner >= 0).nonzero()[:, 0]
    by_source, by_owner = (owned[units.argsort(stable=True)] for units in (source[owner[owned]], owner[owned]))
    indices[by_source] = by_owner  # units of a group have the same number of indices, in the same order
    return indices


def drop_empty(owner: Tensor | None) -> Tensor | None:
    """None instead of owners if no index has one."""
    return None if owner is None or bool((owner < 0).all()) else owner


def _renumber(places: Sequence[Place], renumber: Tensor) -> tuple[Place, ...]:
    """The places with units by their new numbers; units that have none, and places without units, are dropped."""
    result = []
    for place in places:
        remaining = renumber[place.units] >= 0
        if bool(remaining.any()):
            result.append(replace(place, columns=place.columns[:, remaining], units=renumber[place.units[remaining]]))
    return tuple(result)
