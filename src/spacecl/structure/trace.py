"""From the owners that a walk through a model has found to its channels: units by number, groups, and places to observe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .calling import Inputs
from .channels import Channels, Group, Place, drop_empty
from .graph import layer_of, module_of
from .owners import NO_OWNER, RULES, Owners
from .sizes import index_by_units
from .walk import find_owners


def trace(
    model: nn.Module, example: Inputs, head: str | None = None, shared: Sequence[str] = (), rules: int = RULES
) -> Channels:
    """Find the channels of a model by owner ids. It is not checked whether they are right: see `validate_model`."""
    owners = find_owners(model, example, head, shared, rules)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    reasons: dict[int, str | None] = {}
    for index, reason in owners.unprunable.items():
        unit = int(owners.units[index])
        reasons[unit] = reasons.get(unit, reason) and reason  # None, for what the user shared, counts most
    free, groups = _form_groups(owners, set(reasons))

    def unit_of(ids: Tensor) -> Tensor:
        flat = torch.where(ids >= 0, torch.from_numpy(free)[torch.from_numpy(owners.units)[ids.clamp(min=0)]], NO_OWNER)
        return flat.to(torch.int64)

    dims = {name: tuple(None if d is None else unit_of(d) for d in by_dim) for name, by_dim in owners.dims.items()}
    for name, ids in owners.elements.items():
        if name not in dims:
            dims[name] = _find_dimension(unit_of(ids))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    dims = {name: tuple(drop_empty(d) for d in dims.get(name, (None,) * len(shape))) for name, shape in shapes.items()}

    by_units = index_by_units(dims)
    layers, unprunable = {}, {}
    for weight, (start, stop) in owners.outputs.items():
        if layer_of(weight) not in owners.heads:
            layers[layer_of(weight)] = unit_of(torch.arange(start, stop))
            units = owners.units[start:stop].tolist()
            if all(free[unit] < 0 for unit in units):
                why = next((reasons[unit] for unit in units if reasons.get(unit)), None)
                tied = len(set(units)) < len(units) and not any(unit in reasons for unit in units)
                unprunable[layer_of(weight)] = "all its channels are tied to each other" if tied else why
    unprunable |= owners.computed
    layers |= {layer_of(weight): unit_of(ids) for weight, ids in owners.depthwise.items()}
    readings = [place for w, dim in owners.input_dims.items() for place in _list_places(w, "input", dim, dims[w][1])]
    outputs = [
        place for w, dim in owners.output_dims.items() for place in _list_places(w, "output", dim, dims[w][owners.filters[w]])
    ]
    in_head = {name for name in tensors if module_of(name) in owners.heads} | _list_score_tensors(owners)
    norm_modules = {module_of(name) for name in owners.norms} - {""}
    norms = {name for name in tensors if module_of(name) in norm_modules} | owners.norms
    return Channels(
        dims=dims,
        shapes=shapes,
        groups=tuple(groups),
        layers=layers,
        readings=tuple(readings),
        outputs=tuple(outputs),
        readers=owners.readers,
        biases=owners.biases,
        filters=owners.filters,
        private=frozenset((norms - owners.outputs.keys()) | in_head),
        unprunable=unprunable,
        sizes=owners.sizes.follow_numbers(unit_of, by_units),
        resizes=owners.sizes.follow_resizes(unit_of, by_units),
        statistics=frozenset(owners.sizes.statistics),
        operations=tuple(owners.operations),
        head=owners.head,
        heads=frozenset(in_head),
    )


def _list_score_tensors(owners: Owners) -> set[str]:
    """Names of tensors whose first dimension has an index for every score, such as a norm's or a scale's behind the head."""
    scores = owners.units[slice(*owners.outputs[f"{owners.head}.weight"])]
    first = {name: dims[0] for name, dims in owners.dims.items() if dims}
    first |= {name: ids for name, ids in owners.elements.items() if ids.dim() == 1 and name not in first}
    owned = {name: ids for name, ids in first.items() if ids is not None and len(ids) == len(scores) and bool((ids >= 0).all())}
    return {name for name, ids in owned.items() if np.array_equal(owners.units[ids.numpy()], scores)}


def _form_groups(owners: Owners, unprunable: set[int]) -> tuple[np.ndarray, list[Group]]:
    """Number the units that can be pruned, and sort them into groups by their layers."""
    layers_of_unit: dict[int, list[str]] = {}
    for weight, (start, stop) in owners.outputs.items():
        layer = layer_of(weight)
        for unit in owners.units[start:stop].tolist():
            layers_of_unit.setdefault(unit, []).append(layer)
    through: dict[int, list[str]] = {}  # depthwise convolutions, each of which must keep a channel
    for weight, ids in owners.depthwise.items() if owners.rules >= 4 else ():
        for unit in owners.units_of(ids):
            through.setdefault(unit, []).append(weight)
    by_layers: dict[tuple[tuple[str, ...], ...], list[int]] = {}
    for unit, creators in layers_of_unit.items():
        if unit not in unprunable:
            by_layers.setdefault((tuple(creators), tuple(through.get(unit, ()))), []).append(unit)
    free = np.full(int(owners.units.max(initial=-1)) + 1, NO_OWNER)
    groups: list[Group] = []
    next_unit = 0
    for (names, _), units in by_layers.items():
        if len(units) > 1:  # a single unit could never be removed
            free[units] = np.arange(next_unit, next_unit + len(units))
            layers = tuple(dict.fromkeys(names))
            number = sum(group.layers == layers for group in groups)
            groups.append(Group(layers, torch.arange(next_unit, next_unit + len(units)), number))
            next_unit += len(units)
    return free, groups


def _find_dimension(units: Tensor) -> tuple[Tensor | None, ...]:
    """The units along the one dimension of a tensor in which they vary; none if they vary in several.

    Elements without an owner, such as unused rows of a position embedding, do not count.
    """
    for dim in range(units.dim()):
        columns = units.movedim(dim, -1).reshape(-1, units.shape[dim])
        owner = columns.max(0).values
        if bool(((columns == owner) | (columns == NO_OWNER)).all()) and len(torch.unique(owner)) > 1:
            return tuple(owner if d == dim else None for d in range(units.dim()))
    return (None,) * units.dim()


def _list_places(weight: str, side: str, dim: int, owner: Tensor | None) -> list[Place]:
    """The places of a layer's input or output: one for all units that have the same number of indices there."""
    if owner is None:
        return []
    units, counts = torch.unique(owner[owner >= 0], return_counts=True)
    by_unit = owner.argsort(stable=True)[int((owner < 0).sum()) :]  # the indices of the first unit, of the second, ...
    first = counts.cumsum(0) - counts
    places = []
    for count in torch.unique(counts).tolist():
        chosen = counts == count
        columns = by_unit[first[chosen] + torch.arange(count)[:, None]]  # (occurrences, units)
        places.append(Place(weight, side, dim, columns, units[chosen]))
    return places
