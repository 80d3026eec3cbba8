"""Layer types: what numbers a layer keeps beside its tensors. The only module that knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


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
