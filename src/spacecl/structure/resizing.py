"""Reshapes whose sizes the code takes from another tensor, as in `C // self.num_heads`: right for every width.

Attention often divides its channels by the width of what it reads, which is right only as long as both have the same width.
Where that fails, the module's `forward` runs as it is, but its reshapes get the sizes that the narrowed network needs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.overrides import TorchFunctionMode

from .calling import Inputs, call_model, map_tensors
from .graph import layers_of, name_of

_RESHAPES = ("reshape", "view")
_SIZES = "_sizes_of_reshapes"


@dataclass(frozen=True)
class Size:
    """The size of one dimension of a reshape's result in the full network, and what it follows in narrowed ones."""

    full: int
    follows: tuple[str, int] | None = None  # a tensor and its dimension, in proportion to which the size changes
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


def find_reshapes(model: nn.Module, inputs: Inputs, graph: Graph, splits: Iterable[Node]) -> dict[str, list[Reshape]]:
    """The reshapes that run inside each module that divides channels into heads, in order, by the module's name.

    Modules in which a run does not do what the graph says are left out.
    """
    paths = {(layers_of(node) or [("", "")])[-1][0] for node in splits} - {""}
    runs = [_observe(model, some, paths) for some in (inputs, map_tensors(lambda x: torch.cat([x, x[:1]]), inputs))]
    found = {}
    for path in sorted(paths):
        nodes = [n for n in graph.nodes if name_of(n) in _RESHAPES and any(layer == path for layer, _ in layers_of(n))]
        shapes = [tuple(node.meta["val"].shape) for node in nodes]
        two, three = (run.get(path, []) for run in runs)
        if two == shapes and len(three) == len(two) and all(len(a) == len(b) for a, b in zip(two, three)):
            found[path] = [Reshape(n, tuple(a != b for a, b in zip(*pair))) for n, pair in zip(nodes, zip(two, three))]
    return found


def _observe(model: nn.Module, inputs: Inputs, paths: Iterable[str]) -> dict[str, list[tuple[int, ...]]]:
    """Run a model, and return the shapes of the results of all reshapes inside some modules that are called once."""
    model, recorder = copy.deepcopy(model), _Recorder()
    spans: dict[str, list[int]] = {path: [] for path in paths}
    for path, marks in spans.items():
        module = model.get_submodule(path)
        module.register_forward_pre_hook(lambda *_, marks=marks: marks.append(len(recorder.shapes)))
        module.register_forward_hook(lambda *_, marks=marks: marks.append(len(recorder.shapes)))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), recorder:
            call_model(model, inputs)
    except Exception:  # code that takes two examples, but not three
        return {}
    return {path: recorder.shapes[slice(*marks)] for path, marks in spans.items() if len(marks) == 2}


def _is_reshape(func: Any, args: Sequence[Any]) -> bool:
    """Whether a call is a reshape to given sizes; view() has other uses."""
    return getattr(func, "__name__", "") in _RESHAPES and len(args) > 1 and not isinstance(args[1], torch.dtype)


class _Recorder(TorchFunctionMode):
    """Records the shapes of the results of all reshapes."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _is_reshape(func, args):
            self.shapes.append(tuple(result.shape))
        return result


class _Resizing(TorchFunctionMode):
    """Gives the reshapes inside a module other sizes, in the order of calls."""

    def __init__(self, sizes: Sequence[Sequence[int | None]]):
        super().__init__()
        self.sizes: Iterator[Sequence[int | None]] = iter(sizes)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _is_reshape(func, args):
            return func(*args, **(kwargs or {}))
        given = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
        sizes = next(self.sizes, given)
        if len(sizes) == len(given):
            args = (args[0], [value if size is None else size for size, value in zip(sizes, given)])
        return func(*args, **(kwargs or {}))


@cache
def _make_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of modules that do what those of another class do, with other sizes of reshapes."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Resizing(getattr(self, _SIZES)):
            return kind.forward(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__})


def resize_reshapes(module: nn.Module, original: nn.Module, resizes: Mapping[str, Sequence[Sequence[Size]]]) -> None:
    """Give reshapes inside some modules of a copy the sizes that follow from its tensors."""
    before, after = (dict([*some.named_parameters(), *some.named_buffers()]) for some in (original, module))
    for path, calls in resizes.items():
        layer = module.get_submodule(path)
        layer.__class__ = _make_class(type(original.get_submodule(path)))  # type: ignore[arg-type]
        sizes = [_resolve([size.scale(before, after) for size in call], [size.rows for size in call]) for call in calls]
        setattr(layer, _SIZES, sizes)


def _resolve(sizes: Sequence[int], rows: Sequence[bool]) -> list[int | None]:
    """Sizes for a call: -1 for the one that changes with the number of examples; None, as the code says, for several."""
    return [(-1 if sum(rows) == 1 else None) if changes else size for size, changes in zip(sizes, rows)]
