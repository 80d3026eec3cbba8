"""Sizes in a model's own code: the numbers that modules store and reshape by, the results of reshapes, and means over channels.

A narrowed network is the user's own code with smaller tensors. Code that reshapes by `self.num_heads` needs another number
when heads are removed. So the numbers are marked, the model is run, and each reshape tells which of them it got. The walk
through the graph then adds which channels lie along these sizes, and these say which tensor's size each of them follows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.overrides import TorchFunctionMode

from .calling import Inputs, call_model, map_tensors
from .graph import RESHAPES, layers_of, name_of

Uses = Mapping[Node, Mapping[int, str]]  # a reshape -> dimension of its result -> the stored number that gave its size
Dimension = tuple[str, int]  # a tensor and one of its dimensions

_WITH_NUMBERS = (*RESHAPES, "expand")  # operations whose sizes may be stored numbers


@dataclass(frozen=True)
class Size:
    """The size of one dimension of a reshape's result in the full network, and what it follows in narrowed ones."""

    full: int
    follows: Dimension | None = None  # in proportion to which the size changes
    rows: bool = False  # whether it changes with the number of examples

    def scale(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> int:
        """The size in a network with other tensors."""
        if self.follows is None:
            return self.full
        name, dim = self.follows
        return self.full * after[name].shape[dim] // before[name].shape[dim]


@dataclass(frozen=True)
class Reshape:
    """A reshape of the graph, and which dimensions of its result change with the number of examples."""

    node: Node
    rows: tuple[bool, ...]


@dataclass
class Sizes:
    """What runs of a model show about the sizes in its code; then, after a walk through its graph, which channels lie there."""

    uses: Uses = field(default_factory=dict)  # of numbers that modules store, by reshapes
    means: Mapping[Node, int] = field(default_factory=dict)  # the number of every call of mean(), if a run has the same ones
    reshapes: Mapping[str, Sequence[Reshape]] = field(default_factory=dict)  # inside modules that divide channels into heads
    statistics: set[int] = field(default_factory=set)  # numbers of calls of mean() over channels, as in a norm
    ids: dict[tuple[Node, int], Tensor] = field(default_factory=dict)  # the ids along a dimension of a reshape's result

    def collect_ids(self, values: Mapping[Node, Any]) -> None:
        """Keep the ids along the sizes that were seen, from those of all values of the graph."""
        dims = {(node, dim) for node, sources in self.uses.items() for dim in sources}
        dims |= {(item.node, dim) for some in self.reshapes.values() for item in some for dim in range(len(item.rows))}
        self.ids = {(node, dim): _ids_along(values[node], dim) for node, dim in dims}

    def follow_numbers(self, unit_of: Callable[[Tensor], Tensor], by_units: ByUnits) -> dict[str, Dimension]:
        """Of numbers that modules store, the tensor's size that each follows."""
        followed = {}
        for node, sources in self.uses.items():
            for dim, source in sources.items():
                units = unit_of(self.ids[node, dim])
                if bool((units >= 0).all()):
                    followed[source] = by_units.get(list_units(units))
        return {source: dimension for source, dimension in followed.items() if dimension is not None}

    def follow_reshapes(self, unit_of: Callable[[Tensor], Tensor], by_units: ByUnits) -> dict[str, list[list[Size]]]:
        """The sizes of the reshapes inside modules that divide channels into heads."""

        def follow(reshape: Reshape, dim: int) -> Size:
            units = unit_of(self.ids[reshape.node, dim])
            several = list_units(units)
            return Size(len(units), by_units.get(several) if len(several) > 1 else None, reshape.rows[dim])

        return {
            path: [[follow(reshape, dim) for dim in range(len(reshape.rows))] for reshape in reshapes]
            for path, reshapes in self.reshapes.items()
        }


ByUnits = Mapping[tuple[int, ...], Dimension]  # units -> a tensor and its dimension that these units own


def index_by_units(dims: Mapping[str, Sequence[Tensor | None]]) -> ByUnits:
    """The first dimension of a tensor that some units own, and no others, by these units."""
    by_units: dict[tuple[int, ...], Dimension] = {}
    for name, owners in dims.items():
        for dim, owner in enumerate(owners):
            if owner is not None and bool((owner >= 0).all()):
                by_units.setdefault(list_units(owner), (name, dim))
    return by_units


def list_units(units: Tensor) -> tuple[int, ...]:
    """The different units of a tensor, in order."""
    return tuple(torch.unique(units).tolist())


def observe_sizes(model: nn.Module, inputs: Inputs, graph: Graph, splits: Iterable[Node]) -> Sizes:
    """Run a model to see where its code has sizes; `inputs` are those that its graph was made with.

    `splits` are the reshapes that divide channels into heads. Modules that have some, and in which a run does not do what the
    graph says, are left out.
    """
    paths = {(layers_of(node) or [("", "")])[-1][0] for node in splits} - {""}
    marked = _record_run(model, inputs, paths, mark=True)
    sizes = Sizes()
    if marked is not None:
        sizes.uses = _match(marked.calls, [node for node in graph.nodes if name_of(node) in _WITH_NUMBERS])
        means = [node for node in graph.nodes if name_of(node) == "mean"]
        sizes.means = {node: number for number, node in enumerate(means)} if marked.means == len(means) else {}
    if paths:
        two = marked or _record_run(model, inputs, paths)  # code that does not take numbers of another type
        three = _record_run(model, map_tensors(lambda x: torch.cat([x, x[:1]]), inputs), paths)
        if two is not None and three is not None:
            sizes.reshapes = _find_reshapes(graph, paths, two, three)
    return sizes


def _find_reshapes(graph: Graph, paths: Iterable[str], two: _Recorder, three: _Recorder) -> dict[str, list[Reshape]]:
    """The reshapes that run inside each module, in order, from runs with different numbers of examples."""
    found = {}
    for path in sorted(paths):
        nodes = [n for n in graph.nodes if name_of(n) in GIVEN and any(layer == path for layer, _ in layers_of(n))]
        shapes = [tuple(node.meta["val"].shape) for node in nodes]
        few, more = two.list_shapes(path), three.list_shapes(path)
        if few == shapes and len(more) == len(few) and all(len(a) == len(b) for a, b in zip(few, more)):
            found[path] = [Reshape(n, tuple(a != b for a, b in zip(*pair))) for n, pair in zip(nodes, zip(few, more))]
    return found


GIVEN = ("view", "reshape")  # the reshapes whose sizes can be corrected


def is_given(func: Any, args: Sequence[Any]) -> bool:
    """Whether a call is a reshape to given sizes; view() has other uses."""
    return getattr(func, "__name__", "") in GIVEN and len(args) > 1 and not isinstance(args[1], torch.dtype)


class _Marked(int):
    """A number that knows the module and the attribute that it comes from."""

    source: str


@dataclass(frozen=True)
class _Call:
    """One reshape of a run: the shape of its result, and the stored numbers that gave some of its sizes."""

    shape: tuple[int, ...]
    sources: Mapping[int, str]
    given: bool


class _Recorder(TorchFunctionMode):
    """Records all reshapes of a run, in order, and between which of them some modules run."""

    def __init__(self, paths: Iterable[str]) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.means = 0  # calls of mean()
        self.spans: dict[str, list[int]] = {path: [] for path in paths}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        self.means += name == "mean"
        if name in _WITH_NUMBERS and isinstance(result, Tensor) and args:
            first = args[1] % args[0].dim() if name == "unflatten" and len(args) > 1 and isinstance(args[1], int) else 0
            values = args[2:] if name == "unflatten" else args[1:]
            sizes = list(values[0] if len(values) == 1 and isinstance(values[0], (tuple, list)) else values)
            sources = {first + dim: size.source for dim, size in enumerate(sizes) if isinstance(size, _Marked)}
            self.calls.append(_Call(tuple(result.shape), sources, is_given(func, args)))
        return result

    def list_shapes(self, path: str) -> list[tuple[int, ...]]:
        """The shapes of what reshapes to given sizes result in, inside a module that is called once."""
        span = self.spans[path]
        return [call.shape for call in self.calls[slice(*span)] if call.given] if len(span) == 2 else []


def _record_run(model: nn.Module, inputs: Inputs, paths: Iterable[str], mark: bool = False) -> _Recorder | None:
    """Run a copy of a model, and return what it did; None if it failed. With `mark`, the numbers of modules are marked."""
    model, recorder = copy.deepcopy(model), _Recorder(paths)
    for path, module in model.named_modules() if mark else ():
        if not type(module).__module__.startswith("torch.nn."):
            for name, value in vars(module).items():
                if type(value) is int and value > 1:
                    marked = _Marked(value)
                    marked.source = f"{path}.{name}" if path else name
                    object.__setattr__(module, name, marked)
    for path, span in recorder.spans.items():
        module = model.get_submodule(path)
        module.register_forward_pre_hook(lambda *_, span=span: span.append(len(recorder.calls)))
        module.register_forward_hook(lambda *_, span=span: span.append(len(recorder.calls)))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), recorder:
            call_model(model, inputs)
    except Exception:
        return None
    return recorder


def _match(calls: Sequence[_Call], nodes: Sequence[Node]) -> Uses:
    """Match the calls of a run to the nodes of a graph, both in order, by the shapes of their results."""
    shapes = [tuple(node.meta["val"].shape) for node in nodes]
    blocks = SequenceMatcher(None, [call.shape for call in calls], shapes, autojunk=False).get_matching_blocks()
    pairs = ((calls[block.a + step], nodes[block.b + step]) for block in blocks for step in range(block.size))
    return {node: call.sources for call, node in pairs if call.sources}


def _ids_along(ids: Tensor, dim: int) -> Tensor:
    """The ids along one dimension, at the first index of all others."""
    return ids[tuple(slice(None) if d == dim else 0 for d in range(ids.dim()))]
