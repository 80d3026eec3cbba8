"""Memory formats: channels-last where that is faster, and gradients that avoid oneDNN's bugs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import _pair, _triple
from torch.overrides import TorchFunctionMode

from .calling import Inputs, call_model, map_tensors


def to_memory_format(x: Tensor, channels_last: bool) -> Tensor:
    """Return a batch in a memory format. Only images can be channels-last."""
    return x.contiguous(memory_format=torch.channels_last if channels_last and x.dim() == 4 else torch.contiguous_format)


def set_memory_format(module: nn.Module, channels_last: bool) -> nn.Module:
    """Give a network's weights a memory format, in place. Its activations follow the weights."""
    return module.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)  # type: ignore[call-overload]


def run_model(module: nn.Module, inputs: Inputs, channels_last: bool = False) -> Tensor:
    """Run a module on inputs, moved to its device, precision and memory format first; returns its scores."""
    parameter = next(module.parameters())

    def move(x: Tensor) -> Tensor:
        x = x.to(parameter.device, parameter.dtype if x.is_floating_point() else x.dtype)
        return to_memory_format(x, channels_last)

    return call_model(module, map_tensors(move, inputs))


def protect_gradients(module: nn.Module) -> AbstractContextManager[object]:
    """A context in which a module's gradients can be computed safely on CPUs, in every memory format.

    Backward passes outside of it can corrupt memory: see `_SafeConvolutions`. It costs nothing for modules without 1 x 1
    convolutions of few channels and without 3-d convolutions of large kernels.
    """
    affected = any(_is_narrow_point(p) or (p.dim() == 5 and max(p.shape[2:]) >= _LARGE) for p in module.parameters())
    return _SafeConvolutions() if affected else nullcontext()


class _SafeConvolutions(TorchFunctionMode):
    """Computes some convolutions in another way, because oneDNN (up to 3.12 at least) writes their gradients out of bounds.

    That causes heap corruption, hangs and wrong gradients. bench/convolutions.py finds these convolutions;
    docs/performance.md lists them. A mode also catches convolutions that are not layers, and does not change the module.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        safe = {torch.conv2d: _safe_conv2d, torch.conv3d: _safe_conv3d}.get(func, func)
        return safe(*args, **(kwargs or {}))


def _safe_conv2d(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """Select the pixels of a strided 1 x 1 convolution of few channels first, and convolve them with stride 1.

    In channels-last format oneDNN copies these pixels itself, beyond its buffer if a vector register holds more channels
    than there are (https://github.com/uxlfoundation/oneDNN/issues/6035). With this copy the same kernels give the same bits.
    """
    pixels, (down, right) = input.shape[-2:], _pair(stride)
    if (
        input.device.type == "cpu"
        and groups == 1
        and _is_narrow_point(weight)
        and (down, right) != (1, 1)
        and (padding == "valid" or _pair(padding) == (0, 0))
        and pixels[0] % down == 0
        and pixels[1] % right == 0
    ):
        # A dilation does nothing to a single pixel, but torch chooses oneDNN by it as it does by a stride.
        return torch.conv2d(input[..., ::down, ::right], weight, bias, 1, 0, 2)
    return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)


def _safe_conv3d(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """Pad the input of a 3-d convolution first if padding exceeds stride and the input is hardly larger than the kernel."""
    if input.device.type == "cpu" and not isinstance(padding, str):
        sides = zip(input.shape[-3:], weight.shape[2:], _triple(stride), _triple(padding))
        if any(padded > step > 1 and side < size + step for side, size, step, padded in sides):
            borders = [border for border in reversed(_triple(padding)) for _ in range(2)]
            return torch.conv3d(nn.functional.pad(input, borders), weight, bias, stride, 0, dilation, groups)
    return torch.conv3d(input, weight, bias, stride, padding, dilation, groups)


def _is_narrow_point(weight: Tensor) -> bool:
    """Whether a weight is of a 1 x 1 convolution with fewer input channels than the largest vector register holds."""
    return weight.dim() == 4 and weight.shape[1] < _VECTOR and weight.shape[2:] == (1, 1)


_VECTOR = 16  # float32 numbers in the largest vector register, of AVX-512
_LARGE = 6  # the smallest kernel of a 3-d convolution that was seen to fail
