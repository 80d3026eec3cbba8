"""Compensation: layers that read removed channels get their best linear estimate from the channels that stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ...structure.channels import Channels, Place
from ...structure.tensors import Tensors
from .moments import Statistics
from .spectrum import regress


def compensate(
    channels: Channels,
    tensors: Mapping[str, Tensor],
    statistics: Mapping[Place, Statistics],
    keep: Tensor,
    core: Tensor,
    frozen: Mapping[str, Tensor],
    untrained: Collection[str] = (),
) -> Tensors:
    """Full tensors in which every reader has W_K += W_R M and b += W_R (mu_R - M mu_K), M the regression of R on K.

    R are the removed and K the kept channels. Positions that are True in `frozen` do not change: a filter of the core
    changes only on channels newer than it, and its bias not at all. Nor do the tensors named in `untrained`.
    """
    result = dict(tensors)
    uses = Counter(bias for biases in channels.biases.values() for bias in biases)
    for place in channels.readings:
        kept = keep[place.units]
        if bool(kept.all()) or place.weight in untrained:
            continue
        weight = result[place.weight].clone()
        mean, covariance = statistics[place].mean, statistics[place].covariance
        removed = weight[:, place.columns[:, ~kept]].double()  # (filters, occurrences, removed, ...)
        fixed = torch.zeros(len(weight), dtype=torch.bool)
        if place.weight in frozen:
            fixed = frozen[place.weight].flatten(1).any(1)
        free = (~fixed).nonzero()[:, 0]
        matrix = regress(covariance, ~kept, kept)
        _add(weight, free, place.columns[:, kept], torch.einsum("for...,rk->fok...", removed[free], matrix))
        offset = torch.einsum("for...,r->f", removed[free], mean[~kept] - matrix @ mean[kept])
        for bias in channels.biases.get(place.weight, ()):
            if uses[bias] == 1 and bias not in untrained:  # one that several weights share cannot follow them all
                result[bias] = result[bias].index_add(0, free, offset.to(result[bias]))
        newer = kept & ~core[place.units]
        if bool(fixed.any()) and bool(newer.any()):  # no bias to change: the fit goes through the origin
            second = covariance + torch.outer(mean, mean)
            rows = fixed.nonzero()[:, 0]
            gain = torch.einsum("for...,rk->fok...", removed[rows], regress(second, ~kept, newer))
            _add(weight, rows, place.columns[:, newer], gain)
        result[place.weight] = weight
    return result


def _add(weight: Tensor, rows: Tensor, columns: Tensor, gain: Tensor) -> None:
    """Add (rows, occurrences, columns, ...) to a weight in place."""
    weight[rows[:, None, None], columns[None]] += gain.to(weight)
