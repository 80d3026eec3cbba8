"""Growth: the same core in a network with more channels; committed networks stay the same to the bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..errors import SpaceError
from ..structure.blueprint import repeat_to_shape
from ..structure.channels import Channels
from ..structure.probe import check_narrowing
from ..structure.trace import trace
from .core import Core


def grow(core: Core, factor: float) -> Core:
    """The same core in a network with `factor` times as many units in every group, rounded up."""
    return resize(core, [math.ceil(len(group.units) * factor) for group in core.channels.groups])


def resize(core: Core, sizes: Sequence[int], expected: Mapping[str, Sequence[int]] | None = None) -> Core:
    """The same core in a network whose groups have `sizes` units, none fewer than now.

    `expected` has shapes that shared weights must have in the larger network; if one would differ, nothing is made.
    """
    old, blueprint = core.channels, core.blueprint
    shapes = _resized_shapes(core, sizes)
    unexpected = [name for name, shape in (expected or {}).items() if tuple(shape) != shapes[name]]
    if unexpected:
        raise SpaceError(f"The network cannot grow: {unexpected[0]} would have the shape {list(shapes[unexpected[0]])}.")
    initial = {name: repeat_to_shape(tensor, shapes[name]) for name, tensor in blueprint.tensors().items()}
    module = blueprint.build(initial)
    module.eval()
    channels = trace(module, blueprint.example, blueprint.head, blueprint.shared, blueprint.rules)
    channels = check_narrowing(module, blueprint.example, channels)
    channels = replace(channels, sizes=old.sizes, resizes=old.resizes)  # for networks made from the user's own module
    units_of = {group.key: group.units for group in channels.groups}
    keys = [group.key for group in old.groups]
    if any(len(units_of.get(key, ())) != size for key, size in zip(keys, sizes)) or len(units_of) != len(keys):
        raise SpaceError("The network cannot grow: with more channels its layers would be tied in another way.")
    positions = _match_units(old, channels)
    before = torch.zeros(channels.units, dtype=torch.bool)
    before[positions] = True
    masks = (blueprint.known_units, *(task.units for task in core.tasks))
    units = [torch.zeros_like(before).index_put((positions,), mask) for mask in masks]
    tasks = [replace(task, units=mask) for task, mask in zip(core.tasks, units[1:])]
    shared = channels.scatter(core.shared, before, {name: torch.zeros_like(initial[name]) for name in core.shared})
    blueprint = replace(blueprint, channels=channels, given_units=units[0])
    grown = replace(core, blueprint=blueprint, shared=shared, tasks=tuple(tasks))
    if any(grown.digest(number) != core.digest(number) for number in range(len(core.tasks))):
        raise SpaceError("The network cannot grow: a committed task's weights would not stay in place.")
    return grown


def widen(core: Core) -> Core:
    """The same core beside the whole network that the user gave: a wider network, in which that many units are free.

    What is learned in it is committed by `commit_into`. A network that cannot be made wider is returned as it is.
    """
    given, committed = core.blueprint.known_units, core.committed_units
    counts = {group.key: int(given[group.units].sum()) for group in core.channels.groups}
    sizes = []
    for group in core.channels.groups:
        free = int((~committed[group.units]).sum())
        sizes.append(len(group.units) - free + max(free, counts[group.key]))
    try:
        wide = resize(core, sizes)
    except SpaceError:
        return core
    units = torch.zeros(wide.channels.units, dtype=torch.bool)
    for group in wide.channels.groups:
        units[group.units[~wide.committed_units[group.units]][: counts[group.key]]] = True
    return replace(wide, blueprint=replace(wide.blueprint, given_units=units))


def commit_into(core: Core, wide: Core, small: Mapping[str, Tensor], units: Tensor) -> Core:
    """Commit a network that was learned in the wider network of a core to the core itself.

    `small` has its tensors and `units` its units, both in the wider network. Units that only the wider network has move to
    free units of the core, which must have enough of them.
    """
    if wide is core:
        return core.commit(small, units)
    channels, there = wide.channels, _match_units(core.channels, wide.channels)
    narrow = torch.zeros_like(units).index_fill(0, there, True)
    source = torch.arange(channels.units)
    for group in channels.groups:
        outside = group.units[(units & ~narrow)[group.units]]
        vacant = group.units[(narrow & ~units & ~wide.committed_units)[group.units]][: len(outside)]
        source[vacant], source[outside] = outside, vacant
    into = {name: tensor.new_zeros(channels.shapes[name]) for name, tensor in small.items()}
    into |= {name: small[name].new_zeros((len(small[name]), *channels.shapes[name][1:])) for name in channels.heads}
    moved = channels.permute(channels.scatter(small, units, into), source)
    return core.commit(channels.gather(moved, units[source]), units[source][there])


def _match_units(old: Channels, new: Channels) -> Tensor:
    """For every unit of a network, its number in a larger one, where a group's old units are the first."""
    units_of = {group.key: group.units for group in new.groups}
    return torch.cat([units_of[group.key][: len(group.units)] for group in old.groups])


def _resized_shapes(core: Core, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor when the groups have other sizes."""
    channels = core.channels
    ratios = {number: size / len(group.units) for number, (group, size) in enumerate(zip(channels.groups, sizes))}
    group_of = torch.cat([torch.full((len(group.units),), number) for number, group in enumerate(channels.groups)])
    return {
        name: tuple(
            size if owner is None else size + _added(owner, group_of, ratios) for size, owner in zip(shape, channels.dims[name])
        )
        for name, shape in channels.shapes.items()
    }


def _added(owner: Tensor, group_of: Tensor, ratios: Mapping[int, float]) -> int:
    """How many positions a dimension gains when every group that owns part of it grows by its ratio."""
    owners = group_of[owner[owner >= 0]]
    return sum(round(int((owners == number).sum()) * (ratio - 1)) for number, ratio in ratios.items())
