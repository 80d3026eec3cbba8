"""What convolutions do to owner ids: ordinary, grouped and depthwise ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .graph import layer_of, matches
from .layers import keeps_whole_groups
from .operation import Operation
from .rules import rule
from .rules_linear import map_transposed


@rule("conv1d", "conv2d", "conv3d")
def convolution(op: Operation) -> Tensor:
    groups = op.arguments["groups"]
    if groups == 1:
        return op.map_channels(dim=1)
    if op.parameter_name("weight") is None:
        return op.reject_computed_weight()
    channels = op.channel_ids(op.ids("input"), 1).reshape(groups, -1)
    if op.owners.rules < 2 and channels.shape[1] > 1:
        return op.reject(f"grouped convolution, groups={groups}")
    whole = keeps_whole_groups(groups, channels.shape[1])
    return _remove_groups(op, channels) if whole else _remove_lanes(op, channels)


def _remove_groups(op: Operation, channels: Tensor) -> Tensor:
    """Each group is a unit, what it reads and what it puts out; in a depthwise convolution, a channel."""
    weight, groups = op.parameter_name("weight"), len(channels)
    assert weight is not None
    outputs = op.channel_ids(channels, 0).repeat_interleave(op.output.shape[1] // groups)
    op.assign_owner("weight", 0, outputs)
    op.assign_owner("bias", 0, outputs)
    op.owners.depthwise[weight] = outputs
    if matches(layer_of(weight), op.shared):
        op.owners.mark_unprunable(outputs, None)
    return op.spread(outputs, 1)


def _remove_lanes(op: Operation, channels: Tensor) -> Tensor:
    """All groups stay, with equally many channels: those at the same place in every group are one unit."""
    weight = op.parameter_name("weight")
    assert weight is not None
    op.assign_owner("weight", 1, op.channel_ids(channels, 1))
    result = op.create_channels("weight", 0, 1)
    outputs = torch.arange(*op.owners.outputs[weight])
    op.assign_owner("bias", 0, outputs)
    lanes = outputs.reshape(len(channels), -1)
    op.tie(lanes, lanes[:1])
    op.owners.readers[weight] = op.owners.output_dims[weight] = 1
    return result


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(op: Operation) -> Any:
    """As an ordinary convolution, with a row of the weight for every channel that it reads, and a column for every output."""
    weight = op.parameter_name("weight")
    if weight is None or op.arguments["groups"] > 1 or op.owners.rules < 2:
        return op.reject("transposed convolution in groups, or with a weight that is computed")
    return map_transposed(op, "input", "weight", "bias", 1)
