"""The registry of layer types: the sizes that a layer stores beside its tensors, and how it is initialized again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import ConfigError
from ..validation import show

Adapt = Callable[[Any], None]


@dataclass(frozen=True)
class LayerRule:
    """What has to be done with layers of one type."""

    adapt: Adapt  # corrects a layer's sizes after its tensors have changed
    initialize: Adapt | None  # gives a layer new random values, in place


def register_layer(
    kind: type[nn.Module], *, initialize: Adapt | None = None, override: bool = False
) -> Callable[[Adapt], Adapt]:
    """Make a function the one that adapts layers of a type to tensors of another width; used as a decorator.

    A narrowed network is a copy of the user's model with smaller tensors. A layer that stores sizes beside its tensors, as
    `torch.nn.Linear` stores `out_features`, and uses them in `forward`, then has the wrong sizes. The function gets such a
    layer and corrects them. PyTorch's own layers are known, numbers that are stored as they are, or in a tuple or list, are
    corrected, and layers that store no sizes need no function.
    docs/extending.md has a complete example.

    Parameters
    ----------
    kind : the type, a subclass of `torch.nn.Module`. Subclasses follow it unless they are registered themselves.
    initialize : a function that gives a layer new random values, in place; the free channels of a later task begin with
        them. Default: the layer's `reset_parameters()`, if it has one. Without either, the channels begin with the values
        of the user's model.
    override : replace what is registered for this very type. Without it, that is an error.

    >>> import torch
    >>> class Scaled(nn.Module):
    ...     def __init__(self, inputs, outputs):
    ...         super().__init__()
    ...         self.weight, self.sizes = nn.Parameter(torch.randn(outputs, inputs)), {"out": outputs}
    ...     def forward(self, x):
    ...         return nn.functional.linear(x, self.weight).view(-1, self.sizes["out"])
    >>> @register_layer(Scaled, initialize=lambda layer: nn.init.normal_(layer.weight))
    ... def adapt(layer):
    ...     layer.sizes = {"out": len(layer.weight)}
    >>> from spacecl.structure.validate import validate_model
    >>> model = nn.Sequential(Scaled(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [group.layers for group in validate_model(model, torch.zeros(1, 4)).channels.groups]
    [('0',)]
    """
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ConfigError(f"register_layer({show(kind)}): give a subclass of torch.nn.Module.")
    if initialize is not None and not callable(initialize):
        raise ConfigError(f"initialize={show(initialize)} must be a function of a layer.")
    if kind in _LAYERS and not override:
        raise ConfigError(f"The layer type {kind.__qualname__} is registered already. Replace it with override=True.")

    def register(adapt: Adapt) -> Adapt:
        if not callable(adapt):
            raise ConfigError(f"{show(adapt)} must be a function of a layer.")
        _LAYERS[kind] = LayerRule(adapt, initialize or (_reset if hasattr(kind, "reset_parameters") else None))
        return adapt

    return register


def adapt_layer(layer: nn.Module) -> None:
    """Correct the sizes that a layer stores beside its tensors."""
    rule = _find_rule(layer)
    if rule is not None:
        rule.adapt(layer)


def initialize_layer(layer: nn.Module) -> None:
    """Give a layer new random values if its type is known."""
    rule = _find_rule(layer)
    if rule is not None and rule.initialize is not None:
        rule.initialize(layer)


def _find_rule(layer: nn.Module) -> LayerRule | None:
    """The rule of the layer's type, or of its nearest base class that has one."""
    for kind in type(layer).__mro__:
        rule = _LAYERS.get(kind) or _BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
        if rule is not None:
            return rule
    return None


def _reset(layer: Any) -> None:
    """Call a layer's own reset_parameters(), which some subclasses of PyTorch's layers remove."""
    if callable(layer.reset_parameters):
        layer.reset_parameters()


def keeps_whole_groups(groups: int, width: int) -> bool:
    """Whether a grouped convolution that reads `width` channels in each group loses whole groups, or channels of every group.

    The one of which there are more, so that a network can be narrowed in finer steps. A depthwise one loses groups.
    """
    return groups > width


def _adapt_conv(layer: Any) -> None:
    outputs, per_group = layer.weight.shape[:2]
    if layer.groups > 1 and keeps_whole_groups(layer.groups, layer.in_channels // layer.groups):
        layer.groups = outputs // (layer.out_channels // layer.groups)
    layer.out_channels, layer.in_channels = outputs, per_group * layer.groups


def _adapt_transposed_conv(layer: Any) -> None:
    layer.in_channels, layer.out_channels = layer.weight.shape[0], layer.weight.shape[1] * layer.groups


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


def _adapt_recurrent(layer: Any) -> None:
    layer.input_size = layer.weight_ih_l0.shape[1]
    layer.hidden_size = (layer.weight_hr_l0 if layer.proj_size else layer.weight_hh_l0).shape[1]
    if layer.proj_size:
        layer.proj_size = len(layer.weight_hr_l0)


def _adapt_recurrent_cell(layer: Any) -> None:
    layer.input_size, layer.hidden_size = layer.weight_ih.shape[1], layer.weight_hh.shape[1]


_BUILT_IN: dict[type[nn.Module], Adapt] = {
    nn.Conv1d: _adapt_conv,
    nn.Conv2d: _adapt_conv,
    nn.Conv3d: _adapt_conv,
    nn.modules.conv._ConvTransposeNd: _adapt_transposed_conv,
    nn.Linear: _adapt_linear,
    nn.modules.batchnorm._BatchNorm: _adapt_batch_norm,
    nn.modules.instancenorm._InstanceNorm: _adapt_batch_norm,
    nn.GroupNorm: _adapt_group_norm,
    nn.LayerNorm: _adapt_layer_norm,
    nn.RMSNorm: _adapt_layer_norm,
    nn.PReLU: _adapt_prelu,
    nn.Embedding: _adapt_embedding,
    nn.RNNBase: _adapt_recurrent,
    nn.RNNCellBase: _adapt_recurrent_cell,
}


def _adapt_transformers_conv1d(layer: Any) -> None:
    layer.nx, layer.nf = layer.weight.shape


def _initialize_transformers_conv1d(layer: Any) -> None:
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)


_LAYERS = {kind: LayerRule(adapt, _reset) for kind, adapt in _BUILT_IN.items()}
# Layers of libraries that may not be installed, by the name of the type.
_BY_NAME = {"transformers.pytorch_utils.Conv1D": LayerRule(_adapt_transformers_conv1d, _initialize_transformers_conv1d)}
