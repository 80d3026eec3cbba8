"""A run of a model that records what its code does with sizes: reshapes and splits, the shapes that it reads, and means."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .calling import Inputs, call_model
from .graph import RESHAPES

GIVEN = ("view", "reshape")  # the reshapes whose sizes can be corrected
SPLITS = ("split", "split_with_sizes", "chunk")  # likewise
WITH_NUMBERS = (*RESHAPES, "expand")  # operations whose sizes may be numbers that a module stores
SLICE = "slice"  # likewise
NORMS = ("layer_norm", "rms_norm")  # likewise

Shape = tuple[int, ...]
LISTS = (tuple, list, torch.Size)  # of numbers that modules store


def is_given(func: Any, args: Sequence[Any]) -> bool:
    """Whether a call is a reshape to given sizes; view() has other uses."""
    return getattr(func, "__name__", "") in GIVEN and len(args) > 1 and not isinstance(args[1], torch.dtype)


def is_split(func: Any) -> bool:
    """Whether a call divides a tensor into parts of given sizes."""
    return getattr(func, "__name__", "") in SPLITS


def is_read(func: Any) -> bool:
    """Whether a call reads the shape of a tensor, or one size of it."""
    return func is Tensor.size or func == _READ_SHAPE


_READ_SHAPE = Tensor.shape.__get__  # type: ignore[attr-defined]


class Marked(int):
    """A number that knows the module and the attribute that it comes from, such as `attn.num_heads` or `scale.shape[0]`."""

    source: str


@dataclass(frozen=True)
class Call:
    """One reshape or split of a run."""

    name: str
    shapes: tuple[Shape, ...]  # of the results
    sources: Mapping[int, str]  # the stored numbers that gave some sizes of the result, by dimension
    given: bool  # whether its sizes can be corrected
    begins: bool = False  # whether a slice begins where a stored number says


def _list_sources(sizes: Sequence[int], first: int) -> dict[int, str]:
    """The stored numbers among some sizes, by their dimensions, of which `first` is that of the first one."""
    return {first + number: size.source for number, size in enumerate(sizes) if isinstance(size, Marked)}


def _describe_slice(args: Sequence[Any], result: Any) -> Call | None:
    """What `x[:, :n]` selects, if it has slices alone; `args` are those of `x.__getitem__`."""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not all(item is Ellipsis or (isinstance(item, slice) and item.step is None) for item in index):
        return None
    where = index.index(Ellipsis) if Ellipsis in index else len(index)
    skipped = result.dim() - len(index)  # dimensions that an ellipsis stands for, less itself
    slices = {dim + skipped * (dim > where): item for dim, item in enumerate(index) if item is not Ellipsis}
    sources = {dim: s.stop.source for dim, s in slices.items() if not s.start and isinstance(s.stop, Marked)}
    begins = any(isinstance(s.start, Marked) and s.stop is None for s in slices.values())
    return Call(SLICE, (tuple(result.shape),), sources, False, begins)


class Recorder(TorchFunctionMode):
    """Records a run, in order, and which parts of it are inside some modules."""

    def __init__(self, paths: Iterable[str]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.reads: list[Shape] = []
        self.means = 0  # calls of mean()
        self.spans: dict[str, list[tuple[int, int]]] = {path: [] for path in paths}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        self.means += name == "mean"
        if is_read(func):
            self.reads.append(tuple(args[0].shape))
        elif name in WITH_NUMBERS and isinstance(result, Tensor) and args:
            first = args[1] % args[0].dim() if name == "unflatten" and len(args) > 1 and isinstance(args[1], int) else 0
            values = args[2:] if name == "unflatten" else args[1:]
            sizes = list(values[0] if len(values) == 1 and isinstance(values[0], (tuple, list)) else values)
            self.calls.append(Call(name, (tuple(result.shape),), _list_sources(sizes, first), is_given(func, args)))
        elif name in NORMS and len(args) > 1:
            self.calls.append(Call(name, (tuple(result.shape),), _list_sources(args[1], result.dim() - len(args[1])), False))
        elif is_split(func):
            self.calls.append(Call(name, tuple(tuple(part.shape) for part in result), {}, True))
        elif func is Tensor.__getitem__ and result.shape != args[0].shape:
            call = _describe_slice(args, result)
            self.calls += [] if call is None else [call]
        return result

    def mark(self, path: str) -> None:
        """Note that a module begins or ends."""
        self.spans[path].append((len(self.calls), len(self.reads)))

    def list_shapes(self, path: str, names: Collection[str]) -> list[tuple[Shape, ...]]:
        """The shapes of the results of correctable calls of these names, inside a module that is called once."""
        start, stop = self._span(path, 0)
        return [call.shapes for call in self.calls[start:stop] if call.given and call.name in names]

    def list_reads(self, path: str) -> list[Shape]:
        """The shapes that are read inside a module that is called once."""
        start, stop = self._span(path, 1)
        return self.reads[start:stop]

    def _span(self, path: str, which: int) -> tuple[int, int]:
        marks = self.spans[path]
        return (marks[0][which], marks[1][which]) if len(marks) == 2 else (0, 0)


def record_run(model: nn.Module, inputs: Inputs, paths: Iterable[str], mark: bool = False) -> Recorder | None:
    """Run a copy of a model, and return what it did; None if it failed. With `mark`, the numbers of modules are marked."""
    model, recorder = copy.deepcopy(model), Recorder(paths)
    if mark:
        _mark_numbers(model)
    for path in recorder.spans:
        module = model.get_submodule(path)
        module.register_forward_pre_hook(_make_hook(recorder, path))
        module.register_forward_hook(_make_hook(recorder, path))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), recorder:
            call_model(model, inputs)
    except Exception:
        return None
    return recorder


def _make_hook(recorder: Recorder, path: str) -> Callable[..., None]:
    return lambda *_: recorder.mark(path)


def _mark_numbers(model: nn.Module) -> None:
    """Replace the whole numbers that modules store, alone or in a list, by marked ones, in place.

    PyTorch's own layers stay as they are, but for the one that reshapes.
    """
    for path, module in model.named_modules():
        if not type(module).__module__.startswith("torch.nn.") or isinstance(module, nn.Unflatten):
            for name, value in vars(module).items():
                source = f"{path}.{name}" if path else name
                if type(value) is int:
                    object.__setattr__(module, name, _mark(value, source))
                elif type(value) in LISTS and all(type(item) is int for item in value):
                    marked = [_mark(item, f"{source}[{number}]") for number, item in enumerate(value)]
                    object.__setattr__(module, name, type(value)(marked))


def _mark(value: int, source: str) -> int:
    if value <= 1:
        return value
    marked = Marked(value)
    marked.source = source
    return marked
