"""Corrected sizes in a narrowed network's code: numbers that modules store, and reshapes that take theirs from another tensor.

Attention often divides its channels by the width of what it reads, as in `C // self.num_heads`, which is right only as long
as both have the same width. Where that fails, the module's `forward` runs as it is, but its reshapes get the sizes that the
narrowed network needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from .sizes import Dimension, Size, is_given
from .tensors import named_tensors

_SIZES = "_sizes_of_reshapes"


def set_sizes(module: nn.Module, original: nn.Module, sizes: Mapping[str, Dimension]) -> None:
    """Correct the numbers that a copy of a module stores for what its tensors have become.

    `sizes` has the tensor and the dimension in proportion to which each number changes.
    """
    before, after = named_tensors(original), named_tensors(module)
    for source, dimension in sizes.items():
        path, _, name = source.rpartition(".")
        number = Size(getattr(original.get_submodule(path), name), dimension)
        setattr(module.get_submodule(path), name, number.scale(before, after))


def resize_reshapes(module: nn.Module, original: nn.Module, resizes: Mapping[str, Sequence[Sequence[Size]]]) -> None:
    """Give reshapes inside some modules of a copy the sizes that follow from its tensors."""
    before, after = named_tensors(original), named_tensors(module)
    for path, calls in resizes.items():
        layer = module.get_submodule(path)
        layer.__class__ = _make_class(type(original.get_submodule(path)))  # type: ignore[arg-type]
        sizes = [_resolve([size.scale(before, after) for size in call], [size.rows for size in call]) for call in calls]
        setattr(layer, _SIZES, sizes)


def _resolve(sizes: Sequence[int], rows: Sequence[bool]) -> list[int | None]:
    """Sizes for a call: -1 for the one that changes with the number of examples; None, as the code says, for several."""
    return [(-1 if sum(rows) == 1 else None) if changes else size for size, changes in zip(sizes, rows)]


@cache
def _make_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of modules that do what those of another class do, with other sizes of reshapes."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Resizing(getattr(self, _SIZES)):
            return kind.forward(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__})


class _Resizing(TorchFunctionMode):
    """Gives the reshapes inside a module other sizes, in the order of calls."""

    def __init__(self, sizes: Sequence[Sequence[int | None]]):
        super().__init__()
        self.sizes: Iterator[Sequence[int | None]] = iter(sizes)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not is_given(func, args):
            return func(*args, **(kwargs or {}))
        given = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
        sizes = next(self.sizes, given)
        if len(sizes) == len(given):
            args = (args[0], [value if size is None else size for size, value in zip(sizes, given)])
        return func(*args, **(kwargs or {}))
