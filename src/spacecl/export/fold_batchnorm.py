"""Batch norms folded into the layers before them: the same network with fewer tensors and fewer operations."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from ..structure.blueprint import random_inputs
from ..structure.graph import export_graph, layers_of, module_of
from ..structure.validate import is_close

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def folded(module: nn.Module, example: Tensor) -> tuple[nn.Module, dict[str, str]]:
    """A copy of a network in eval mode, norms folded where they can be, and which norm went into which layer.

    A norm can be folded where it alone reads what a convolution or linear layer gives, and both are used once.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    >>> small, into = folded(network, torch.zeros(1, 3, 8, 8))
    >>> into, small[1]
    ({'1': '0'}, Identity())
    """
    found, into = copy.deepcopy(module).eval(), {}
    for layer, norm in _pairs(found, example):
        one, other = found.get_submodule(layer), _whole(found.get_submodule(norm))
        fuse: Any = fuse_linear_bn_eval if isinstance(one, nn.Linear) else fuse_conv_bn_eval
        found.set_submodule(layer, fuse(one, other))
        found.set_submodule(norm, nn.Identity())
        into[norm] = layer
    if into and not _same(module, found, example):  # forward() does something with a norm beside calling it
        return copy.deepcopy(module).eval(), {}
    return found, into


def _pairs(module: nn.Module, example: Tensor) -> list[tuple[str, str]]:
    """Layers and the batch norms behind them, by their dotted names."""
    program = export_graph(module, example)
    names = program.graph_signature.inputs_to_parameters
    layers, pairs = dict(module.named_modules()), []
    for node in program.graph.nodes:
        if node.target is not torch.ops.aten.batch_norm.default or not layers_of(node):
            continue
        norm, read = layers_of(node)[-1][0], node.args[0]
        weights = [argument for argument in read.args[1:2] if getattr(argument, "name", None) in names]
        kept = getattr(layers.get(norm), "running_mean", None) is not None  # else it normalises by what it is given
        known = isinstance(layers.get(norm), nn.modules.batchnorm._BatchNorm) and kept
        if not known or len(read.users) > 1 or not weights:
            continue
        layer = module_of(names[weights[0].name])
        own = [n for n, name in names.items() if module_of(name) in (layer, norm)]
        once = all(len(argument.users) == 1 for argument in program.graph.nodes if argument.name in own)
        kind = layers.get(layer)
        flat = isinstance(kind, nn.Linear) and node.meta["val"].dim() == 2  # with more, channels are not what it puts out
        if once and names[weights[0].name] == f"{layer}.weight" and (flat or isinstance(kind, _CONVOLUTIONS)):
            pairs.append((layer, norm))
    return pairs


def _whole(norm: Any) -> nn.Module:
    """A batch norm that has a weight and a bias, whether or not it was made with them."""
    found = copy.deepcopy(norm)
    found.weight = nn.Parameter(torch.ones_like(norm.running_mean)) if norm.weight is None else norm.weight
    found.bias = nn.Parameter(torch.zeros_like(norm.running_mean)) if norm.bias is None else norm.bias
    return found


def _same(module: nn.Module, other: nn.Module, example: Tensor) -> bool:
    x = random_inputs(example, 2)
    with torch.no_grad():
        try:
            return is_close(other(x), module(x))
        except Exception:
            return False
