"""A user's model as a blueprint: the same Python, with tensors of any width.

Every network here, full, narrowed or grown, is the blueprint's module with some dictionary of tensors in place of its
own. This is the only room that knows layer types: what numbers a layer keeps beside its tensors, how it starts afresh.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import _pair, _triple
from torch.overrides import TorchFunctionMode

from .channels import Channels, Tensors
from .errors import ConfigError
from .graph import module_of


@dataclass(frozen=True)
class Blueprint:
    """The user's model in eval mode, never trained itself, with its head, an example input and its channels."""

    module: nn.Module
    example: Tensor
    shared: tuple[str, ...]
    channels: Channels
    channels_last: bool = False  # whether it can be trained and asked in that memory format, the faster one on CPUs

    @property
    def head(self) -> str:
        return self.channels.head

    @property
    def frozen(self) -> set[str]:
        """Parameters that the user does not want trained."""
        return {name for name, parameter in self.module.named_parameters() if not parameter.requires_grad}

    def tensors(self) -> Tensors:
        return tensors_of(self.module)

    def taken(self, module: nn.Module) -> Tensors:
        """The tensors of a trained network as the core keeps them: in the user's own precision, in main memory."""
        given = self.tensors()
        return {name: tensor.to("cpu", given[name].dtype, copy=True) for name, tensor in tensors_of(module).items()}

    def build(self, tensors: Mapping[str, Tensor]) -> nn.Module:
        """A network of its own with these tensors, in training mode."""
        return rebuild(self.module, tensors)

    def fresh(self, classes: int) -> Tensors:
        """Tensors as a newly made model of the channels' shapes has them, drawn from torch's random generator.

        What no layer knows how to draw, such as loose parameters and buffers, and what the user froze begins as given.
        """
        given = {name: repeated(tensor, self.channels.shapes[name]) for name, tensor in self.tensors().items()}
        with torch.no_grad():
            module = self.build(given)
            for layer in module.modules():
                reset = getattr(layer, "reset_parameters", None)
                if isinstance(layer, tuple(_LAYERS)) and callable(reset):
                    reset()
        found = tensors_of(module) | {name: given[name] for name in self.frozen}
        return found | self.new_head(found, classes)

    def drawn(self) -> set[str]:
        """Tensors that `fresh` draws anew, so that the given values do not matter after the first task."""
        layers = {name for name, layer in self.module.named_modules() if isinstance(layer, tuple(_LAYERS))}
        return {name for name in self.tensors() if module_of(name) in layers} - self.frozen

    def new_head(self, tensors: Mapping[str, Tensor], classes: int) -> Tensors:
        """Fresh tensors of a head for so many classes, on features as wide as in `tensors`."""
        old = tensors[f"{self.head}.weight"]
        layer = nn.Linear(old.shape[1], classes, bias=f"{self.head}.bias" in tensors, dtype=old.dtype)
        return {f"{self.head}.{name}": tensor.detach() for name, tensor in layer.named_parameters()}

    def with_channels(self, channels: Channels) -> Blueprint:
        return replace(self, channels=channels)


def tensors_of(module: nn.Module) -> Tensors:
    """A module's parameters and buffers by name, detached but not copied."""
    return {name: tensor.detach() for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def unusual_kind(tensor: Tensor) -> str | None:
    """The kind of a tensor that networks cannot read, or None for a plain one."""
    if tensor.is_nested or tensor.layout != torch.strided:
        return f"{'nested' if tensor.is_nested else 'sparse'} ({tensor.layout})"
    if tensor.is_meta:
        return "on the device meta, without values"
    if tensor.is_quantized or tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype not in _FLOATS):
        return f"{tensor.dtype}"
    return None


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def inputs_like(example: Tensor, rows: int, generator: torch.Generator | None = None) -> Tensor:
    """Random inputs of an example's shape and type, the same every time unless drawn by a generator; of tokens, its own."""
    shape = (rows, *example.shape[1:])
    if not example.is_floating_point():
        return example[:1].expand(shape).clone()
    return torch.randn(shape, generator=generator or torch.Generator().manual_seed(0)).to(example)


def laid_out(x: Tensor, channels_last: bool) -> Tensor:
    """A batch in the memory format that a network is fed in; only images have the choice."""
    return x.contiguous(memory_format=torch.channels_last if channels_last and x.dim() == 4 else torch.contiguous_format)


def lay(module: nn.Module, channels_last: bool) -> nn.Module:
    """Give a network's weights a memory format, in place; what it computes then follows them."""
    return module.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)  # type: ignore[call-overload]


def ask(module: nn.Module, x: Tensor, channels_last: bool = False) -> Tensor:
    """A module's answer to inputs that may lie elsewhere, have another precision or another memory format."""
    parameter = next(module.parameters())
    x = x.to(parameter.device, parameter.dtype if x.is_floating_point() else x.dtype)
    return module(laid_out(x, channels_last))


def protect_gradients(module: nn.Module) -> AbstractContextManager[object]:
    """A context in which gradients of a module may be computed on CPUs in every memory format.

    Backward passes outside of it can corrupt memory: see `_SafeConvolutions`. Modules without 1 x 1 convolutions of few
    channels and without 3-d convolutions of large kernels need none, and pay nothing.
    """
    affected = any(_is_narrow_point(p) or (p.dim() == 5 and max(p.shape[2:]) >= _LARGE) for p in module.parameters())
    return _SafeConvolutions() if affected else nullcontext()


class _SafeConvolutions(TorchFunctionMode):
    """Computes those convolutions in another way whose weight gradients oneDNN (up to 3.12 at least) writes out of bounds.

    Heap corruption, hangs and wrong gradients come of it; bench/convolutions.py finds them, docs/performance.md lists them. A
    mode also sees convolutions that are no layers, and leaves nothing in the module.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        safe = {torch.conv2d: _safe_conv2d, torch.conv3d: _safe_conv3d}.get(func, func)
        return safe(*args, **(kwargs or {}))


def _safe_conv2d(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """A strided 1 x 1 convolution of few channels reads its pixels first, and has stride 1.

    In channels-last oneDNN copies these pixels itself, past its work space if a vector register holds more channels than
    there are (https://github.com/uxlfoundation/oneDNN/issues/6035). Copied here, the same kernels give the same bits.
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
    """A 3-d convolution with more padding than stride, on an input hardly larger than its kernel, is padded beforehand."""
    if input.device.type == "cpu" and not isinstance(padding, str):
        sides = zip(input.shape[-3:], weight.shape[2:], _triple(stride), _triple(padding))
        if any(padded > step > 1 and side < size + step for side, size, step, padded in sides):
            borders = [border for border in reversed(_triple(padding)) for _ in range(2)]
            return torch.conv3d(nn.functional.pad(input, borders), weight, bias, stride, 0, dilation, groups)
    return torch.conv3d(input, weight, bias, stride, padding, dilation, groups)


def _is_narrow_point(weight: Tensor) -> bool:
    """Whether a weight is that of a 1 x 1 convolution that reads fewer channels than the largest vector register holds."""
    return weight.dim() == 4 and weight.shape[1] < _VECTOR and weight.shape[2:] == (1, 1)


_VECTOR = 16  # float32 numbers in the largest vector register, of AVX-512
_LARGE = 6  # the least kernel with which 3-d convolutions were seen to go wrong


def rebuild(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a module with other tensors, the layers' numbers adapted to their shapes; its own are never copied."""
    memo: dict[int, object] = {}
    for name, parameter in module.named_parameters():
        memo[id(parameter)] = nn.Parameter(tensors.get(name, parameter).detach().clone(), parameter.requires_grad)
    for name, buffer in module.named_buffers():
        memo[id(buffer)] = tensors.get(name, buffer).detach().clone()
    result = copy.deepcopy(module, memo)
    for layer in result.modules():
        for kind, adapt in _LAYERS.items():
            if isinstance(layer, kind):
                adapt(layer)
    result.train()
    return result


def check_head(model: nn.Module, head: str | None) -> None:
    """A head that is named must be there, be linear, and have a weight of its own."""
    linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ConfigError("The model has no Linear layer to serve as its head. Let it end in a torch.nn.Linear.")
    if head is None:
        return
    found = dict(model.named_modules()).get(head)
    if head not in linear:
        what = "there is no such layer" if found is None else f"it is a {type(found).__name__}"
        raise ConfigError(f"head={head!r} cannot be the head: {what}. Name one of the Linear layers: {', '.join(linear)}.")
    names = [n for n, p in model.named_parameters(remove_duplicate=False) if p is found.weight]  # type: ignore[union-attr]
    if len(names) > 1:
        raise ConfigError(f"head={head!r} cannot be the head: its weight serves as {', '.join(names)}. Give it one of its own.")


def repeated(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor's values over and over, where a dimension has grown."""
    for dim, size in enumerate(shape):
        if tensor.shape[dim] != size:
            tensor = tensor.index_select(dim, torch.arange(size) % tensor.shape[dim])
    return tensor


def _adapt_conv(layer: Any) -> None:
    outputs, per_group = layer.weight.shape[:2]
    if layer.groups > 1 and layer.groups == layer.in_channels:  # depthwise: the groups are the channels
        layer.groups = outputs // (layer.out_channels // layer.groups)
    layer.out_channels, layer.in_channels = outputs, per_group * layer.groups


def _adapt_linear(layer: Any) -> None:
    layer.out_features, layer.in_features = layer.weight.shape


def _adapt_batch_norm(layer: Any) -> None:
    vector = layer.running_mean if layer.running_mean is not None else layer.weight
    if vector is not None:
        layer.num_features = len(vector)


def _adapt_group_norm(layer: Any) -> None:
    if layer.weight is not None:
        layer.num_channels = len(layer.weight)


def _adapt_layer_norm(layer: Any) -> None:
    if layer.weight is not None:
        layer.normalized_shape = tuple(layer.weight.shape)


def _adapt_prelu(layer: Any) -> None:
    layer.num_parameters = layer.weight.numel()


def _adapt_embedding(layer: Any) -> None:
    layer.num_embeddings, layer.embedding_dim = layer.weight.shape


_LAYERS: dict[type, Callable[[Any], None]] = {
    nn.Conv1d: _adapt_conv,
    nn.Conv2d: _adapt_conv,
    nn.Conv3d: _adapt_conv,
    nn.Linear: _adapt_linear,
    nn.modules.batchnorm._BatchNorm: _adapt_batch_norm,
    nn.modules.instancenorm._InstanceNorm: _adapt_batch_norm,
    nn.GroupNorm: _adapt_group_norm,
    nn.LayerNorm: _adapt_layer_norm,
    nn.RMSNorm: _adapt_layer_norm,
    nn.PReLU: _adapt_prelu,
    nn.Embedding: _adapt_embedding,
}
