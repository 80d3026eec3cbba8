"""Pad a narrowed network with zero filters to widths that runtimes compute fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..structure.blueprint import Blueprint, random_inputs
from ..structure.calling import call_model
from ..structure.channels import Group
from ..structure.tensors import Tensors
from ..structure.validate import is_close


def pad_network(
    blueprint: Blueprint, tensors: Mapping[str, Tensor], units: Tensor, multiple: int
) -> tuple[nn.Module, dict[str, int]]:
    """Build the network of some units, in eval mode, with zero filters that make its widths multiples; return these, too.

    The zero filters take the places of free channels, so a width grows no further than the model's own. Layers whose channels
    a norm or a mean takes together, such as a layer norm, are not padded: zeros would change their outputs.

    Parameters
    ----------
    tensors : the narrowed network's own.
    units : a boolean for every unit of the model.
    """
    full = blueprint.channels.scatter(tensors, units, _empty_tensors(blueprint, tensors))
    plain = blueprint.build(tensors).eval()
    probe = random_inputs(blueprint.example, 3)
    expected = call_model(plain, probe)

    def build(groups: Sequence[Group]) -> tuple[nn.Module, Tensor] | None:
        """The network with some groups padded, if it computes the same."""
        padded = _add_units(blueprint, units, groups, multiple)
        try:
            network = blueprint.build(blueprint.channels.gather(full, padded)).eval()
            return (network, padded) if is_close(call_model(network, probe), expected) else None
        except Exception:  # such as a group norm whose groups no longer divide the channels
            return None

    with torch.no_grad():
        groups = blueprint.channels.groups
        best = build(groups)
        if best is None:
            same: list[Group] = []
            for group in groups:
                same = [*same, group] if build([*same, group]) else same
            best = build(same)
    network, padded = best or (plain, units)
    return network, blueprint.channels.widths(padded)


def _add_units(blueprint: Blueprint, units: Tensor, groups: Sequence[Group], multiple: int) -> Tensor:
    """The units, and the first free ones of some groups that fill their widths up, where there are enough."""
    result = units.clone()
    for group in groups:
        free, step = group.units[~units[group.units]], blueprint.channels.step(group, lambda layer: multiple)
        missing = -(len(group.units) - len(free)) % step
        if missing <= len(free):
            result[free[:missing]] = True
    return result


def _empty_tensors(blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> Tensors:
    """Full tensors without any filters; running statistics are the model's own, so that no norm divides by zero."""
    channels, given = blueprint.channels, blueprint.tensors()
    empty = {}
    for name, tensor in tensors.items():
        shape = channels.shapes[name]
        if channels.is_head(name):
            empty[name] = tensor.new_zeros((len(tensor), *shape[1:]))
        elif name in channels.private and given[name].shape == torch.Size(shape):
            empty[name] = given[name]
        else:
            empty[name] = tensor.new_zeros(shape)
    return empty
