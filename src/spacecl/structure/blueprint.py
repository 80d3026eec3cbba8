"""A user's model as a blueprint: the same Python code, with tensors of any width.

Every network in spacecl, full, narrowed or grown, is the blueprint's module with another dictionary of tensors.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from .calling import Inputs, map_tensors
from .channels import Channels
from .graph import module_of
from .layers import adapt_layer, initialize_layer
from .owners import RULES
from .resizing import correct_code, set_sizes
from .tensors import Tensors, named_tensors


@dataclass(frozen=True)
class Blueprint:
    """The user's model in eval mode, never trained itself, with its head, an example input and its channels."""

    module: nn.Module
    example: Inputs
    shared: tuple[str, ...]
    channels: Channels
    channels_last: bool = False  # whether it runs in that memory format, the faster one on CPUs
    pretrained: bool = False  # whether the user's model was trained before, as far as its norms show
    rules: int = RULES  # the version of the rules by which the channels were found
    given_units: Tensor | None = None  # the units for which the module has the user's values; None: all

    @property
    def head(self) -> str:
        """The dotted name of the classifier, the model's last layer."""
        return self.channels.head

    @property
    def known_units(self) -> Tensor:
        """The units for which the module has the user's values, as a boolean for every unit."""
        return self.channels.all_units() if self.given_units is None else self.given_units

    @property
    def frozen(self) -> set[str]:
        """Names of the parameters that the user has frozen."""
        return {name for name, parameter in self.module.named_parameters() if not parameter.requires_grad}

    def tensors(self) -> Tensors:
        """The tensors of the model as the user passed it, by name."""
        return named_tensors(self.module)

    def extract_tensors(self, module: nn.Module) -> Tensors:
        """Copy the tensors of a trained network as the core stores them: in the user's precision, in main memory."""
        originals = self.tensors()
        return {name: tensor.to("cpu", originals[name].dtype, copy=True) for name, tensor in named_tensors(module).items()}

    def build(self, tensors: Mapping[str, Tensor]) -> nn.Module:
        """Build a network with copies of these tensors, in training mode."""
        return rebuild(self.module, tensors, self.channels)

    def initial_tensors(self, classes: int) -> Tensors:
        """The tensors of the full network as the user gave it, with a new head.

        Channels that the user's model does not have, since the network has grown, are newly drawn. The user's filters
        begin with zero weight on them, so that their features are what they were.
        """
        if self.given_units is None:
            tensors = self.tensors()
        else:
            tensors, units = self._draw_tensors(), self.given_units
            if bool(units.any()):
                zeros = {name: self.channels.filter_mask(name, units) for name in self.channels.shared}
                tensors |= {name: tensors[name].masked_fill(mask, 0) for name, mask in zeros.items()}
                tensors |= self.channels.scatter(self.tensors(), units, tensors)
        return tensors | self.new_head(tensors, classes)

    def _draw_tensors(self) -> Tensors:
        """Draw the tensors of a new model of the channels' shapes, by torch's random generator.

        Loose parameters and buffers, which no layer can initialize, and what the user froze have the user's values.
        """
        originals = {name: repeat_to_shape(tensor, self.channels.shapes[name]) for name, tensor in self.tensors().items()}
        with torch.no_grad():
            module = self.build(originals)
            for layer in module.modules():
                initialize_layer(layer)
        return named_tensors(module) | {name: originals[name] for name in self.frozen}

    @property
    def has_bias(self) -> bool:
        """Whether the head has a bias."""
        return f"{self.head}.bias" in self.channels.shapes

    def new_head(self, tensors: Mapping[str, Tensor], classes: int) -> Tensors:
        """Draw the tensors of a head for `classes` classes, on features as wide as in `tensors`."""
        heads = [name for name in self.channels.shapes if self.channels.is_head(name)]
        new = {name: repeat_to_shape(tensors[name], (classes, *tensors[name].shape[1:])) for name in heads}
        for layer in dict.fromkeys(module_of(name) for name in heads if module_of(name)):
            inside = {name.removeprefix(f"{layer}."): tensor for name, tensor in new.items() if module_of(name) == layer}
            module = rebuild(self.module.get_submodule(layer), inside)
            with torch.no_grad():
                initialize_layer(module)
            new |= {f"{layer}.{name}": tensor for name, tensor in named_tensors(module).items() if name in inside}
        return new


def describe_unsupported(tensor: Tensor) -> str | None:
    """Describe a tensor that networks cannot read; None for a plain one."""
    if tensor.is_nested or tensor.layout != torch.strided:
        return f"{'nested' if tensor.is_nested else 'sparse'} ({tensor.layout})"
    if tensor.is_meta:
        return "on the device meta, without values"
    if tensor.is_quantized or tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype not in _FLOATS):
        return f"{tensor.dtype}"
    return None


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def random_inputs(example: Inputs, rows: int, generator: torch.Generator | None = None) -> Inputs:
    """Draw inputs of an example's shape and type, the same every time unless a generator is passed.

    Integers, such as tokens, are copied from the example: others may be out of range.
    """
    generator = generator or torch.Generator().manual_seed(0)

    def draw(tensor: Tensor) -> Tensor:
        shape = (rows, *tensor.shape[1:])
        if not tensor.is_floating_point():
            return tensor[:1].expand(shape).clone()
        return torch.randn(shape, generator=generator).to(tensor)

    return map_tensors(draw, example)


def rebuild(module: nn.Module, tensors: Mapping[str, Tensor], channels: Channels | None = None) -> nn.Module:
    """Copy a module with copies of other tensors, and adapt its layers to their shapes. Missing tensors stay as they are.

    The module's own `channels` are needed if widths change: they say what else follows them.
    """
    copies = {name: tensors.get(name, tensor).detach().clone() for name, tensor in named_tensors(module).items()}
    return assemble(module, copies, channels)


def assemble(module: nn.Module, tensors: Mapping[str, Tensor], channels: Channels | None = None) -> nn.Module:
    """As `rebuild`, but with the tensors themselves, all of which must be given: the result may change them."""
    memo: dict[int, object] = {}
    for name, parameter in module.named_parameters():
        memo[id(parameter)] = nn.Parameter(tensors[name], parameter.requires_grad)
    for name, buffer in module.named_buffers():
        memo[id(buffer)] = tensors[name]
    for layer in module.modules():  # its many empty dictionaries, of hooks above all, take most of the time of a copy
        memo |= {id(value): type(value)() for value in vars(layer).values() if type(value) in (dict, OrderedDict) and not value}
    result = copy.deepcopy(module, memo)
    for layer in result.modules():
        adapt_layer(layer)
    if channels is not None:
        set_sizes(result, module, channels.sizes)
        correct_code(result, module, channels.resizes)
    result.train()
    return result


def is_pretrained(module: nn.Module) -> bool:
    """Whether a model was trained before, as far as its norms show: new ones scale all channels alike and have seen nothing.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> before = is_pretrained(model)
    >>> _ = model(torch.randn(8, 2))
    >>> before, is_pretrained(model)
    (False, True)
    """
    for layer in module.modules():
        mean, weight = getattr(layer, "running_mean", None), getattr(layer, "weight", None)
        if mean is not None and bool(mean.any()):
            return True
        if "Norm" in type(layer).__name__ and isinstance(weight, Tensor) and weight.dim() == 1 and len(weight.unique()) > 1:
            return True
    return False


def check_head(model: nn.Module, head: str | None) -> None:
    """Raise an error unless the model has this head, a linear layer or a convolution, and no other layer shares its weight."""
    possible = [name for name, layer in model.named_modules() if isinstance(layer, _HEADS)]
    if not possible:
        raise ConfigError("The model has no Linear layer to serve as its head. Let it end in a torch.nn.Linear.")
    if head is None:
        return
    layer = dict(model.named_modules()).get(head)
    if head not in possible:
        problem = "there is no such layer" if layer is None else f"it is a {type(layer).__name__}"
        linear = [name for name in possible if isinstance(model.get_submodule(name), nn.Linear)]
        raise ConfigError(
            f"head={head!r} cannot be the head: {problem}. Name one of the Linear layers: {', '.join(linear or possible)}."
        )
    names = [n for n, p in model.named_parameters(remove_duplicate=False) if p is layer.weight]  # type: ignore[union-attr]
    if len(names) > 1:
        raise ConfigError(f"head={head!r} cannot be the head: its weight is used as {', '.join(names)}. Give it its own.")


_HEADS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def repeat_to_shape(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeat a tensor's values along the dimensions that have grown."""
    for dim, size in enumerate(shape):
        if tensor.shape[dim] != size:
            tensor = tensor.index_select(dim, torch.arange(size) % tensor.shape[dim])
    return tensor
