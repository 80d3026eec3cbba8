"""Sizes in a model's own code: the numbers that modules store and reshape by, the results of reshapes and splits, and means.

A narrowed network is the user's own code with smaller tensors. Code that reshapes by `self.num_heads` needs another number
when heads are removed. So the numbers are marked, the model is run, and each reshape tells which of them it got. The walk
through the graph then adds which channels lie along these sizes, and these say which tensor's size each of them follows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node

from .calling import Inputs, map_tensors
from .graph import layers_of, name_of
from .recorder import GIVEN, NORMS, SLICE, SPLITS, WITH_NUMBERS, Call, Recorder, Shape, record_run
from .resizing import Correction, Dimension, Size

Uses = Mapping[Node, Mapping[int, str]]  # a reshape -> dimension of its result -> the stored number that gave its size
ByUnits = Mapping[tuple[int, ...], Dimension]  # units -> a tensor and its dimension that these units own


@dataclass(frozen=True)
class Resize:
    """A reshape or a split of the graph, and which sizes of its result change with the number of examples."""

    node: Node
    rows: tuple[bool, ...]  # for each dimension of a reshape, or each part of a split

    def ids(self, values: Mapping[Node, Any], number: int) -> Tensor:
        """The ids along a dimension of a reshape's result, or along a part of a split."""
        result = values[self.node]
        return _ids_along(result, number) if isinstance(result, Tensor) else _ids_along(result[number], _split_dim(self.node))


@dataclass
class Sizes:
    """What runs of a model show about the sizes in its code; then, after a walk through its graph, which channels lie there."""

    uses: Uses = field(default_factory=dict)  # of numbers that modules store, by reshapes, slices and norms
    slices: Collection[Node] = ()  # of channels, whose bounds are numbers that modules store
    means: Mapping[Node, int] = field(default_factory=dict)  # the number of every call of mean(), if a run has the same ones
    resizes: Mapping[str, Sequence[Resize]] = field(default_factory=dict)  # in modules whose sizes can be corrected, in order
    reads: Mapping[str, Sequence[Sequence[int | None]]] = field(default_factory=dict)  # shapes that their code reads
    splits: bool = False  # whether splits are corrected, too
    statistics: set[int] = field(default_factory=set)  # numbers of calls of mean() over channels, as in a norm
    ids: dict[tuple[Node, int], Tensor] = field(default_factory=dict)  # the ids along sizes of reshapes and splits

    def corrects(self, split: Node) -> bool:
        """Whether narrowed networks can split into other sizes than the code says."""
        return self.splits and any(resize.node is split for some in self.resizes.values() for resize in some)

    def collect_ids(self, values: Mapping[Node, Any]) -> None:
        """Keep the ids along the sizes that were seen, from those of all values of the graph."""
        self.ids = {(node, dim): _ids_along(values[node], dim) for node, sources in self.uses.items() for dim in sources}
        every = [resize for some in self.resizes.values() for resize in some]
        self.ids |= {(item.node, number): item.ids(values, number) for item in every for number in range(len(item.rows))}

    def follow_numbers(self, unit_of: Callable[[Tensor], Tensor], by_units: ByUnits) -> dict[str, Dimension]:
        """Of numbers that modules store, the tensor's size that each follows."""
        followed = {}
        for node, sources in self.uses.items():
            for dim, source in sources.items():
                units = unit_of(self.ids[node, dim])
                if bool((units >= 0).all()):
                    followed[source] = by_units.get(_list_units(units))
        return {source: dimension for source, dimension in followed.items() if dimension is not None}

    def follow_resizes(self, unit_of: Callable[[Tensor], Tensor], by_units: ByUnits) -> dict[str, Correction]:
        """The sizes that the code of modules gets."""

        def follow(resize: Resize) -> list[Size]:
            units = [unit_of(self.ids[resize.node, number]) for number in range(len(resize.rows))]
            keys = [_list_units(some) for some in units]
            follows = [by_units.get(key) if len(key) > 1 else None for key in keys]
            sizes = [Size(len(some), place, rows) for some, place, rows in zip(units, follows, resize.rows)]
            unknown = [number for number, key in enumerate(keys) if len(key) > 1 and follows[number] is None]
            if _is_split(resize.node) and len(unknown) == 1:
                sizes[unknown[0]] = replace(sizes[unknown[0]], rest=True)
            return sizes

        return {
            path: Correction([follow(resize) for resize in resizes], self.splits, self.reads.get(path, ()))
            for path, resizes in self.resizes.items()
        }


def index_by_units(dims: Mapping[str, Sequence[Tensor | None]]) -> ByUnits:
    """The first dimension of a tensor that some units own, and no others, by these units."""
    by_units: dict[tuple[int, ...], Dimension] = {}
    for name, owners in dims.items():
        for dim, owner in enumerate(owners):
            if owner is not None and bool((owner >= 0).all()):
                by_units.setdefault(_list_units(owner), (name, dim))
    return by_units


def _list_units(units: Tensor) -> tuple[int, ...]:
    return tuple(torch.unique(units).tolist())


def observe_sizes(model: nn.Module, inputs: Inputs, graph: Graph, heads: Iterable[Node], splits: bool, slices: bool) -> Sizes:
    """Run a model to see where its code has sizes; `inputs` are those that its graph was made with.

    `heads` are the reshapes that divide channels into heads. The sizes of modules that have some, and with `splits` of those
    that split channels, can be corrected, unless a run does not do what the graph says. With `slices`, the bounds of slices
    and the sizes of layer norms are looked at, too.
    """
    chosen = [*heads, *(node for node in graph.nodes if splits and _is_split(node))]
    paths = sorted({(layers_of(node) or [("", "")])[-1][0] for node in chosen} - {""})
    marked = record_run(model, inputs, paths, mark=True)
    sizes = Sizes(splits=splits)
    if marked is not None:
        calls = _match(marked, WITH_NUMBERS, [node for node in graph.nodes if name_of(node) in WITH_NUMBERS])
        sliced = _match(marked, (SLICE,), [node for node in graph.nodes if _is_slice(node)]) if slices else {}
        norms = _match(marked, NORMS, [node for node in graph.nodes if name_of(node) in NORMS]) if slices else {}
        sizes.uses = {node: call.sources for node, call in (calls | sliced | norms).items() if call.sources}
        sizes.slices = {node for node, call in sliced.items() if call.sources or call.begins}
        means = [node for node in graph.nodes if name_of(node) == "mean"]
        sizes.means = {node: number for number, node in enumerate(means)} if marked.means == len(means) else {}
    two = marked or (record_run(model, inputs, paths) if paths else None)  # code that does not take numbers of another type
    three = record_run(model, map_tensors(lambda x: torch.cat([x, x[:1]]), inputs), paths) if paths and two else None
    if two is not None and three is not None:
        sizes.resizes = _find_resizes(graph, paths, (*GIVEN, *SPLITS) if splits else GIVEN, two, three)
        if splits:
            reads = {path: (two.list_reads(path), three.list_reads(path)) for path in sizes.resizes}
            sizes.reads = {path: _compare_reads(*both) for path, both in reads.items() if _agree(*both)}
    return sizes


def _find_resizes(
    graph: Graph, paths: Iterable[str], names: Collection[str], two: Recorder, three: Recorder
) -> dict[str, list[Resize]]:
    """The reshapes and splits that run inside each module, in order, from runs with two and with three examples."""
    found = {}
    for path in paths:
        nodes = [n for n in graph.nodes if name_of(n) in names and any(layer == path for layer, _ in layers_of(n))]
        few, more = two.list_shapes(path, names), three.list_shapes(path, names)
        alike = few == [_list_shapes(node) for node in nodes] and len(few) == len(more)
        if alike and all(_agree(*pair) for pair in zip(few, more)):
            found[path] = [Resize(*item) for item in zip(nodes, map(_compare_rows, nodes, few, more))]
    return found


def _list_shapes(node: Node) -> tuple[Shape, ...]:
    value = node.meta["val"]
    return tuple(tuple(item.shape) for item in (value if isinstance(value, (list, tuple)) else [value]))


def _agree(few: Sequence[Shape], more: Sequence[Shape]) -> bool:
    """Whether there are equally many shapes, of equally many dimensions."""
    return len(few) == len(more) and all(len(a) == len(b) for a, b in zip(few, more))


def _compare_rows(node: Node, few: Sequence[Shape], more: Sequence[Shape]) -> tuple[bool, ...]:
    """Which sizes of a call's result differ between two runs."""
    if _is_split(node):
        dim = _split_dim(node)
        return tuple(a[dim] != b[dim] for a, b in zip(few, more))
    return tuple(a != b for a, b in zip(few[0], more[0]))


def _compare_reads(few: Sequence[Shape], more: Sequence[Shape]) -> list[list[int | None]]:
    """The shapes that two runs read, with None for sizes in which they differ."""
    return [[a if a == b else None for a, b in zip(*pair)] for pair in zip(few, more)]


def _is_split(node: Node) -> bool:
    return name_of(node) in SPLITS


def _split_dim(node: Node) -> int:
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    assert isinstance(dim, int)
    return dim


def _match(run: Recorder, names: Collection[str], nodes: Sequence[Node]) -> dict[Node, Call]:
    """Match the calls of some names in a run to nodes of a graph, both in order, by the shapes of their results."""
    calls = [call for call in run.calls if call.name in names]
    matcher = SequenceMatcher(None, [call.shapes for call in calls], [_list_shapes(node) for node in nodes], autojunk=False)
    blocks = matcher.get_matching_blocks()
    return {nodes[block.b + step]: calls[block.a + step] for block in blocks for step in range(block.size)}


def _is_slice(node: Node) -> bool:
    """Whether a node selects a part of a dimension; a slice of all of it does not."""
    return name_of(node) == SLICE and node.meta["val"].shape != node.args[0].meta["val"].shape  # type: ignore[union-attr]


def _ids_along(ids: Tensor, dim: int) -> Tensor:
    """The ids along one dimension, at the first index of all others."""
    dim %= ids.dim()
    return ids[tuple(slice(None) if d == dim else 0 for d in range(ids.dim()))]
