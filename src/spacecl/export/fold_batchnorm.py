"""Fold batch norms into the layers before them: the same network with fewer tensors and fewer operations."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from ..structure.blueprint import random_inputs
from ..structure.calling import Inputs, call_model
from ..structure.graph import export_graph, layers_of, module_of
from ..structure.validate import is_close

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fold_batchnorm(module: nn.Module, example: Inputs) -> tuple[nn.Module, dict[str, str]]:
    """Copy a network in eval mode with its batch norms folded where possible.

    Returns the copy, and the layer that each norm was folded into. A norm can be folded if it alone reads the output of a
    convolution or linear layer, and both are used once.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> small, layers = fold_batchnorm(network, torch.zeros(1, 3, 8, 8))
    >>> layers, small[1]
    ({'1': '0'}, Identity())
    """
    network, layers = copy.deepcopy(module).eval(), {}
    for layer, norm in _find_pairs(network, example):
        first, second = network.get_submodule(layer), _add_affine(network.get_submodule(norm))
        fuse: Any = fuse_linear_bn_eval if isinstance(first, nn.Linear) else fuse_conv_bn_eval
        network.set_submodule(layer, fuse(first, second))
        network.set_submodule(norm, nn.Identity())
        layers[norm] = layer
    if layers and not _is_equal(module, network, example):  # forward() uses a norm in other ways than calling it
        return copy.deepcopy(module).eval(), {}
    return network, layers


def _find_pairs(module: nn.Module, example: Inputs) -> list[tuple[str, str]]:
    """Find layers and the batch norms behind them, by their dotted names."""
    program = export_graph(module, example)
    names = program.graph_signature.inputs_to_parameters
    layers, pairs = dict(module.named_modules()), []
    for node in program.graph.nodes:
        if node.target is not torch.ops.aten.batch_norm.default or not layers_of(node):
            continue
        norm, read = layers_of(node)[-1][0], node.args[0]
        weights = [argument for argument in read.args[1:2] if getattr(argument, "name", None) in names]
        has_statistics = getattr(layers.get(norm), "running_mean", None) is not None  # else it normalises by its own batch
        foldable = isinstance(layers.get(norm), nn.modules.batchnorm._BatchNorm) and has_statistics
        if not foldable or len(read.users) > 1 or not weights:
            continue
        layer = module_of(names[weights[0].name])
        parameters = [n for n, name in names.items() if module_of(name) in (layer, norm)]
        once = all(len(argument.users) == 1 for argument in program.graph.nodes if argument.name in parameters)
        kind = layers.get(layer)
        # With more dimensions, the outputs of a linear layer are not the norm's channels.
        flat = isinstance(kind, nn.Linear) and node.meta["val"].dim() == 2
        if once and names[weights[0].name] == f"{layer}.weight" and (flat or isinstance(kind, _CONVOLUTIONS)):
            pairs.append((layer, norm))
    return pairs


def _add_affine(norm: Any) -> nn.Module:
    """Copy a batch norm, with a weight of ones and a bias of zeros if it has none."""
    result = copy.deepcopy(norm)
    result.weight = nn.Parameter(torch.ones_like(norm.running_mean)) if norm.weight is None else norm.weight
    result.bias = nn.Parameter(torch.zeros_like(norm.running_mean)) if norm.bias is None else norm.bias
    return result


def _is_equal(module: nn.Module, other: nn.Module, example: Inputs) -> bool:
    """Whether two networks compute the same, up to rounding."""
    x = random_inputs(example, 2)
    with torch.no_grad():
        try:
            return is_close(call_model(other, x), call_model(module, x))
        except Exception:
            return False
