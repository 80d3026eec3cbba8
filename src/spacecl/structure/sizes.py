"""Numbers that modules store beside their tensors and reshape by, such as a number of heads: where they are used.

A narrowed network is the user's own code with smaller tensors. Code that reshapes by `self.num_heads` needs another number
when heads are removed. So the numbers are marked, the model is run once, and each reshape tells which of them it got.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.overrides import TorchFunctionMode

from .calling import Inputs, call_model
from .graph import name_of
from .owners import Uses

_RESHAPES = ("reshape", "view", "expand", "unflatten", "_unsafe_view")


class _Marked(int):
    """A number that knows the module and the attribute that it comes from."""

    source: str


@dataclass(frozen=True)
class _Call:
    """One reshape of a run: the shape of its result, and the stored numbers that gave some of its sizes."""

    shape: tuple[int, ...]
    sources: Mapping[int, str]


class _Recorder(TorchFunctionMode):
    """Records all reshapes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.means = 0  # calls of mean()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        self.means += name == "mean"
        if name in _RESHAPES and isinstance(result, Tensor) and args:
            first = args[1] % args[0].dim() if name == "unflatten" and len(args) > 1 and isinstance(args[1], int) else 0
            values = args[2:] if name == "unflatten" else args[1:]
            sizes = list(values[0] if len(values) == 1 and isinstance(values[0], (tuple, list)) else values)
            sources = {first + dim: size.source for dim, size in enumerate(sizes) if isinstance(size, _Marked)}
            self.calls.append(_Call(tuple(result.shape), sources))
        return result


def observe_run(model: nn.Module, inputs: Inputs, graph: Graph) -> tuple[Uses, bool]:
    """Run a model once; `inputs` are those that its graph was made with.

    Returns which stored numbers the reshapes of the graph get, and whether the run calls mean() as often as the graph does.
    """
    model = copy.deepcopy(model)
    for path, module in model.named_modules():
        if not type(module).__module__.startswith("torch.nn."):
            for name, value in vars(module).items():
                if type(value) is int and value > 1:
                    marked = _Marked(value)
                    marked.source = f"{path}.{name}" if path else name
                    object.__setattr__(module, name, marked)
    recorder = _Recorder()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), recorder:
            call_model(model, inputs)
    except Exception:  # a model that does not take numbers of another type: nothing is known
        return {}, False
    uses = _match(recorder.calls, [node for node in graph.nodes if name_of(node) in _RESHAPES])
    return uses, recorder.means == len(find_means(graph))


def find_means(graph: Graph) -> list[Node]:
    """The calls of mean() in a graph."""
    return [node for node in graph.nodes if name_of(node) == "mean"]


def _match(calls: Iterable[_Call], nodes: list[Node]) -> Uses:
    """Match the calls of a run to the nodes of a graph, both in order, by the shapes of their results."""
    calls = list(calls)
    shapes = [tuple(node.meta["val"].shape) for node in nodes]
    blocks = SequenceMatcher(None, [call.shape for call in calls], shapes, autojunk=False).get_matching_blocks()
    pairs = ((calls[block.a + step], nodes[block.b + step]) for block in blocks for step in range(block.size))
    return {node: call.sources for call, node in pairs if call.sources}


def set_sizes(module: nn.Module, original: nn.Module, sizes: Mapping[str, tuple[str, int]]) -> None:
    """Correct the numbers that a copy of a module stores for what its tensors have become.

    `sizes` has the tensor and the dimension in proportion to which each number changes.
    """
    before, after = (dict([*some.named_parameters(), *some.named_buffers()]) for some in (original, module))
    for source, (tensor, dim) in sizes.items():
        path, _, name = source.rpartition(".")
        number = getattr(original.get_submodule(path), name)
        setattr(module.get_submodule(path), name, number * after[tensor].shape[dim] // before[tensor].shape[dim])
