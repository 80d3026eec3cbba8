"""A user's model as a blueprint: the same Python, with tensors of any width.

Every network here, full, narrowed or grown, is the blueprint's module with some dictionary of tensors in place of its
own. This is the only room that knows layer types: what numbers a layer keeps beside its tensors, how it starts afresh.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .channels import Channels, Tensors
from .graph import module_of
from .layers import _LAYERS


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
        return named_tensors(self.module)

    def extract_tensors(self, module: nn.Module) -> Tensors:
        """The tensors of a trained network as the core keeps them: in the user's own precision, in main memory."""
        given = self.tensors()
        return {name: tensor.to("cpu", given[name].dtype, copy=True) for name, tensor in named_tensors(module).items()}

    def build(self, tensors: Mapping[str, Tensor]) -> nn.Module:
        """A network of its own with these tensors, in training mode."""
        return rebuild(self.module, tensors)

    def draw_tensors(self, classes: int) -> Tensors:
        """Tensors as a newly made model of the channels' shapes has them, drawn from torch's random generator.

        What no layer knows how to draw, such as loose parameters and buffers, and what the user froze begins as given.
        """
        given = {name: repeat_to_shape(tensor, self.channels.shapes[name]) for name, tensor in self.tensors().items()}
        with torch.no_grad():
            module = self.build(given)
            for layer in module.modules():
                reset = getattr(layer, "reset_parameters", None)
                if isinstance(layer, tuple(_LAYERS)) and callable(reset):
                    reset()
        found = named_tensors(module) | {name: given[name] for name in self.frozen}
        return found | self.new_head(found, classes)

    def redrawn_names(self) -> set[str]:
        """Names of the tensors that `draw_tensors` draws, so that the given values do not matter after the first task."""
        layers = {name for name, layer in self.module.named_modules() if isinstance(layer, tuple(_LAYERS))}
        return {name for name in self.tensors() if module_of(name) in layers} - self.frozen

    def new_head(self, tensors: Mapping[str, Tensor], classes: int) -> Tensors:
        """Fresh tensors of a head for so many classes, on features as wide as in `tensors`."""
        old = tensors[f"{self.head}.weight"]
        layer = nn.Linear(old.shape[1], classes, bias=f"{self.head}.bias" in tensors, dtype=old.dtype)
        return {f"{self.head}.{name}": tensor.detach() for name, tensor in layer.named_parameters()}

    def with_channels(self, channels: Channels) -> Blueprint:
        return replace(self, channels=channels)


def named_tensors(module: nn.Module) -> Tensors:
    """A module's parameters and buffers by name, detached but not copied."""
    return {name: tensor.detach() for name, tensor in [*module.named_parameters(), *module.named_buffers()]}


def describe_unsupported(tensor: Tensor) -> str | None:
    """The kind of a tensor that networks cannot read, or None for a plain one."""
    if tensor.is_nested or tensor.layout != torch.strided:
        return f"{'nested' if tensor.is_nested else 'sparse'} ({tensor.layout})"
    if tensor.is_meta:
        return "on the device meta, without values"
    if tensor.is_quantized or tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype not in _FLOATS):
        return f"{tensor.dtype}"
    return None


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def random_inputs(example: Tensor, rows: int, generator: torch.Generator | None = None) -> Tensor:
    """Random inputs of an example's shape and type, the same every time unless drawn by a generator; of tokens, its own."""
    shape = (rows, *example.shape[1:])
    if not example.is_floating_point():
        return example[:1].expand(shape).clone()
    return torch.randn(shape, generator=generator or torch.Generator().manual_seed(0)).to(example)


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


def repeat_to_shape(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor's values over and over, where a dimension has grown."""
    for dim, size in enumerate(shape):
        if tensor.shape[dim] != size:
            tensor = tensor.index_select(dim, torch.arange(size) % tensor.shape[dim])
    return tensor
