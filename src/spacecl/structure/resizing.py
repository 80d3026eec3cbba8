"""Corrected sizes in a narrowed network's code: numbers that modules store, and sizes that code takes from elsewhere.

Attention often divides its channels by the width of what it reads, as in `C // self.num_heads`, which is right only as long
as both have the same width; other code splits its channels into parts whose sizes it stores. Where that fails, the module's
`forward` runs as it is, but its reshapes and splits get the sizes that the narrowed network needs. What it reads as the shape
of a tensor can stay that of the full network, so that all else that it computes from sizes stays what it was, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .recorder import is_given, is_read, is_split
from .tensors import Tensors, named_tensors

Dimension = tuple[str, int]  # a tensor and one of its dimensions

_CORRECTION = "_corrected_sizes"


@dataclass(frozen=True)
class Size:
    """A size in the full network, and what it follows in narrowed ones."""

    full: int
    follows: Dimension | None = None  # in proportion to which the size changes
    rows: bool = False  # whether it changes with the number of examples
    rest: bool = False  # whether it is what the other parts of a split leave

    def scale(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> int:
        """The size in a network with other tensors."""
        if self.follows is None:
            return self.full
        name, dim = self.follows
        return self.full * after[name].shape[dim] // before[name].shape[dim]


@dataclass(frozen=True)
class Correction:
    """The sizes that the code of a module gets in narrowed networks, in the order of its calls."""

    calls: Sequence[Sequence[Size]]  # of reshapes, the dimensions of the result; of splits, the parts
    splits: bool = False  # whether splits are among the calls
    reads: Sequence[Sequence[int | None]] = ()  # shapes of the full network that the code reads; None: by number of examples


def set_sizes(module: nn.Module, original: nn.Module, sizes: Mapping[str, Dimension]) -> None:
    """Correct the numbers that a copy of a module stores for what its tensors have become.

    `sizes` has the tensor and the dimension in proportion to which each number changes.
    """
    before, after = named_tensors(original), named_tensors(module)
    for source, dimension in sizes.items():
        path, _, name = source.rpartition(".")
        name, _, index = name.partition("[")
        layer, value = module.get_submodule(path), getattr(original.get_submodule(path), name)
        if index:
            number = int(index.removesuffix("]"))
            items = list(getattr(layer, name))
            items[number] = Size(value[number], dimension).scale(before, after)
            setattr(layer, name, type(value)(items))
        else:
            setattr(layer, name, Size(value, dimension).scale(before, after))


def correct_code(module: nn.Module, original: nn.Module, corrections: Mapping[str, Correction]) -> None:
    """Give the code of some modules of a copy the sizes that follow from its tensors."""
    before, after = named_tensors(original), named_tensors(module)
    for path, correction in corrections.items():
        layer = module.get_submodule(path)
        layer.__class__ = _make_class(type(original.get_submodule(path)))  # type: ignore[arg-type]
        calls = [_resolve(sizes, before, after) for sizes in correction.calls]
        setattr(layer, _CORRECTION, (calls, correction.splits, correction.reads))


def _resolve(sizes: Sequence[Size], before: Tensors, after: Tensors) -> list[int | None]:
    """Sizes for a call: -1 for one that follows from the others; None, as the code says, if several change with the rows."""
    changing = -1 if sum(size.rows for size in sizes) == 1 else None
    return [changing if size.rows else -1 if size.rest else size.scale(before, after) for size in sizes]


@cache
def _make_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of modules that do what those of another class do, with other sizes."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Corrected(*getattr(self, _CORRECTION)):
            return kind.forward(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__})


class _Corrected(TorchFunctionMode):
    """Gives the code inside a module other sizes, in the order of its calls."""

    def __init__(self, calls: Sequence[Sequence[int | None]], splits: bool, reads: Sequence[Sequence[int | None]]):
        super().__init__()
        self.calls: Iterator[Sequence[int | None]] = iter(calls)
        self.splits, self.reads = splits, iter(reads)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_given(func, args):
            given = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
            sizes = next(self.calls, given)
            if len(sizes) == len(given):
                args = (args[0], [value if size is None else size for size, value in zip(sizes, given)])
        elif self.splits and is_split(func):
            return self._split(func, args, kwargs)
        elif is_read(func):
            return self._read(func, args, kwargs)
        return func(*args, **kwargs)

    def _split(self, func: Any, args: Any, kwargs: Any) -> Any:
        dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
        sizes, total = next(self.calls, ()), args[0].shape[dim]
        parts = [size for size in sizes if size is not None]
        rest = total - sum(size for size in parts if size >= 0)
        parts = [rest if size < 0 else size for size in parts]
        if len(parts) < len(sizes) or rest < 0 or sum(parts) != total:
            return func(*args, **kwargs)
        return torch.split(args[0], parts, dim)

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        actual, full = args[0].shape, next(self.reads, ())
        if len(full) != len(actual):
            return func(*args, **kwargs)
        shape = torch.Size([size if known is None else known for size, known in zip(actual, full)])
        dims = args[1:] or tuple(kwargs.values())
        return shape[dims[0]] if func is Tensor.size and dims and dims[0] is not None else shape
