"""Owner ids: which output channel of which layer owns each element of every tensor in a network.

Each convolution, linear layer and embedding gives its output channels new integer ids. The ids flow through the exported
graph in tensors of the activations' shapes (`walk.py`); a rule says what each operation does to them (`rules.py`). Ids that
are tied become one *unit*: channels that can only be kept or removed together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from .sizes import Sizes

# Learners that were saved before follow the rules of their version: 1 has no products of activations, 2 no heads of
# nn.MultiheadAttention, 3 no splits into unequal parts, ties all channels of a dimension that is divided after others, and does
# not show the sizes of the full network to the code of attention, 4 has no biases that are made of parameters and no slices by
# stored numbers.
RULES = 5
NO_OWNER = -1  # the owner of what no layer's width can change, such as the pixels of the input


@dataclass
class Owners:
    """What a walk through a model's graph has learned about its channels."""

    count: int = 0  # ids in use
    outputs: dict[str, tuple[int, int]] = field(default_factory=dict)  # a layer's weight -> ids of its outputs, start to stop
    depthwise: dict[str, Tensor] = field(default_factory=dict)  # a depthwise convolution's weight -> the ids of its outputs
    dims: dict[str, list[Tensor | None]] = field(default_factory=dict)  # tensor -> per dimension the id that owns each index
    elements: dict[str, Tensor] = field(default_factory=dict)  # loose tensor -> the id of each of its elements
    ties: list[Tensor] = field(default_factory=list)  # (2, n) ids that belong together
    unprunable: dict[int, str | None] = field(default_factory=dict)  # id -> why it stays; None if the user shared its layer
    computed: dict[str, str] = field(default_factory=dict)  # layer whose weight is no parameter -> why it cannot be pruned
    norms: set[str] = field(default_factory=set)  # tensors of norm layers
    readers: dict[str, int] = field(default_factory=dict)  # weight that mixes channels -> its dimension of what it reads
    filters: dict[str, int] = field(default_factory=dict)  # weight that creates channels -> its dimension of these
    input_dims: dict[str, int] = field(default_factory=dict)  # reader of a layer's input -> the channels' dimension in that
    output_dims: dict[str, int] = field(default_factory=dict)  # weight -> the channels' dimension in its layer's output
    biases: dict[str, list[str]] = field(default_factory=dict)  # weight -> biases of the layers that use it
    operations: list[str] = field(default_factory=list)  # what the model does, in order
    rules: int = RULES  # the version of the rules to follow
    head: str = ""  # the layer whose output the model returns; the first or the one that the user named, if there are several
    heads: tuple[str, ...] = ()  # all layers whose outputs are the scores, or are added to them
    head_splits: set[Node] = field(default_factory=set)  # reshapes that divide channels into heads of attention
    in_heads: set[int] = field(default_factory=set)  # ids that such a reshape has divided
    _resolved: tuple[tuple[int, int], Tensor] = ((-1, -1), torch.zeros(0))  # units for a number of ids and ties
    sizes: Sizes = field(default_factory=Sizes)  # those in the model's own code
    units: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # id -> the number of its unit
    unless_tied: list[tuple[Tensor, Tensor, str]] = field(default_factory=list)  # pairs (2, n), ids, reason
    unless_contained: list[tuple[Tensor, Tensor, str]] = field(default_factory=list)  # ids, ids of the result, reason

    def new_ids(self, count: int) -> Tensor:
        """Create `count` ids."""
        self.count += count
        return torch.arange(self.count - count, self.count)

    def tie(self, left: Tensor, right: Tensor) -> None:
        """Put ids that meet, element by element, into one unit."""
        pairs = _different_pairs(left, right)
        if pairs.numel():
            self.ties.append(pairs)

    def mark_unprunable(self, ids: Tensor | None, reason: str | None) -> None:
        """Never remove these ids; the first reason counts."""
        if ids is not None:
            for index in distinct(ids).tolist():
                self.unprunable.setdefault(index, reason)

    def mark_unprunable_unless_tied(self, ids: Tensor, other: Tensor, reason: str) -> None:
        """Mark `ids` if, once all ties are known, they are not of the same units as `other`, element by element."""
        self.unless_tied.append((_different_pairs(ids, other), distinct(ids), reason))

    def mark_unprunable_unless_contained(self, ids: Tensor, result: Tensor, reason: str) -> None:
        """Mark `ids` if, once all ties are known, some of their units are missing from `result`."""
        self.unless_contained.append((distinct(ids), distinct(result), reason))

    def number_units(self) -> None:
        """Give ids that are tied, directly or through others, the same unit; then decide what depended on it."""
        self.units = self._find_units()
        for (left, right), ids, reason in self.unless_tied:
            if bool((self.units[left] != self.units[right]).any()):
                self.mark_unprunable(ids, reason)
        channels = self.channel_units()
        for ids, result, reason in self.unless_contained:
            if (self.units_of(ids) - self.units_of(result)) & channels:
                self.mark_unprunable(ids, reason)

    def resolve(self, ids: Tensor) -> Tensor:
        """The same number for ids that are tied by now."""
        state = (self.count, len(self.ties))
        if self._resolved[0] != state:
            self._resolved = state, torch.from_numpy(self._find_units().astype(np.int64))
        units = self._resolved[1]
        return torch.where(ids >= 0, units[ids.clamp(min=0)], NO_OWNER) if len(units) else ids

    def varies(self, ids: Tensor, dims: Iterable[int]) -> bool:
        """Whether the channels change along some dimensions, as far as they are known by now not to be tied."""
        first = ids
        for dim in dims:
            first = first.narrow(dim, 0, 1)
        ids, first = without_repetition(ids, first.expand(ids.shape))
        if bool((ids == first).all()):
            return False
        return bool((self.resolve(ids) != self.resolve(first)).any())

    def is_made(self, ids: Tensor) -> bool:
        """Whether a layer makes some of these ids; the others are those of loose tensors."""
        different = distinct(ids)
        return any(bool(((different >= start) & (different < stop)).any()) for start, stop in self.outputs.values())

    def _find_units(self) -> np.ndarray:
        """The unit of every id: the same for ids that are tied, directly or through others."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        pairs = torch.cat(self.ties, 1).numpy() if self.ties else np.zeros((2, 0), dtype=np.int64)
        graph = coo_array((np.ones(pairs.shape[1], dtype=np.int8), (pairs[0], pairs[1])), shape=(self.count,) * 2)
        return connected_components(graph, directed=False)[1]

    def units_of(self, ids: Tensor) -> set[int]:
        return set(self.units[torch.unique(ids[ids >= 0]).numpy()].tolist())

    def channel_units(self) -> set[int]:
        """The units that are output channels of a layer."""
        return {unit for start, stop in self.outputs.values() for unit in self.units[start:stop].tolist()}


def spread_along(ids: Tensor, dim: int, shape: tuple[int, ...]) -> Tensor:
    """Expand one id per channel to the shape of an activation, with the channels along `dim`."""
    dim %= len(shape)
    return ids.reshape([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape)


def distinct(ids: Tensor) -> Tensor:
    """The different ids of a tensor, in order."""
    ids = without_repetition(ids)[0]
    return torch.unique(ids[ids >= 0])


def without_repetition(*tensors: Tensor) -> list[Tensor]:
    """Tensors of one shape without the repetitions that all have from being expanded: one place stands for all of them.

    Activations are large; their ids mostly are one per channel, expanded over examples and positions.
    """
    for dim in range(tensors[0].dim()):
        if tensors[0].shape[dim] > 1 and all(tensor.stride(dim) == 0 for tensor in tensors):
            tensors = tuple(tensor.narrow(dim, 0, 1) for tensor in tensors)
    return list(tensors)


def compress(ids: Tensor) -> Tensor:
    """The same ids, expanded along the dimensions in which they do not change, so that they take less space and time.

    Values without an owner stay as they are: if they were expanded, they would seem to follow the size of what they meet.
    """
    shape = ids.shape
    if not bool((ids >= 0).any()):
        return ids
    for dim, size in enumerate(shape):
        first = ids.narrow(dim, 0, 1)
        if size > 1 and (ids.stride(dim) == 0 or bool((ids == first).all())):
            ids = first
    return ids.expand(shape)


def _different_pairs(left: Tensor, right: Tensor) -> Tensor:
    """The distinct pairs of different ids that meet, of shape (2, n)."""
    left, right = without_repetition(*torch.broadcast_tensors(left, right))
    differ = (left != right) & (left >= 0) & (right >= 0)
    keys = torch.unique(left[differ] << 32 | right[differ])  # one number per pair: much faster than unique columns
    return torch.stack([keys >> 32, keys & 0xFFFFFFFF])
