"""Projection-subtraction and PCA on covariances (section 3.3, algorithms 2 and 3): how many filters are new, and which.

With the covariance C of a layer's channels, split into the core f and the residual r,

    P = C_rf pinv(C_ff) C_fr        what of the residual the core explains    (equations 1 and 2)
    S = C_rr - P                    what is new, a Schur complement           (equation 3)

the eigenvalues of S are the squared singular values that the paper takes from the activation matrix itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ZERO = 1e-10  # eigenvalues below this fraction of the largest are zero: only non-zero singular values count (S1.1)
_SLACK = 1e-9  # a sum that misses the threshold by rounding alone has reached it
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)  # whose cost records show


@dataclass(frozen=True)
class Spectrum:
    """The variance of a residual: the part that the core explains, and the spectrum of the new part."""

    core_explained: float  # fraction of the residual's variance that the core explains: v_r^proj / v_r
    explained_variance_ratio: Tensor  # (residual,) fractions along the new directions, largest first
    new: Tensor  # (residual, residual) S over v_r: what pivoting works on
    variance: float  # v_r, of the residual

    def needed(self, variance: float) -> int:
        """The least number of new filters with which the threshold is reached (algorithm 3, line 23 on)."""
        total = self.core_explained + torch.cat([torch.zeros(1, dtype=torch.float64), self.explained_variance_ratio.cumsum(0)])
        reached = (total >= variance - _SLACK).nonzero()
        return int(reached[0]) if len(reached) else len(self.explained_variance_ratio)

    def explained(self, count: int) -> float:
        """The fraction of the residual's variance that the core and `count` new directions explain."""
        return min(1.0, self.core_explained + float(self.explained_variance_ratio[:count].sum()))

    def costs(self) -> Tensor:
        """The share of variance that the core and 0, 1, 2, ... new directions leave unexplained."""
        explained = torch.cat([torch.zeros(1, dtype=torch.float64), self.explained_variance_ratio.cumsum(0)])
        return (1 - self.core_explained - explained).clamp(min=0)

    def summarize(self, points: int = 60) -> dict[str, Any]:
        """The spectrum for a record: the variance that numbers of filters explain, and the filters that thresholds need.

        The numbers of filters are spaced evenly on a logarithmic scale.
        """
        most = len(self.explained_variance_ratio)
        filters = [0, *sorted({round(most ** (n / (points - 1))) for n in range(points)})] if most else [0]
        while len(filters) > 1 and self.explained(filters[-2]) > 0.9999:
            filters.pop()
        return {
            "filters": filters,
            "explained": [round(self.explained(count), 5) for count in filters],
            "needed": {str(threshold): self.needed(threshold) for threshold in THRESHOLDS},
        }


def analyze_residual(covariance: Tensor, core: Tensor, projection: bool = True) -> Spectrum:
    """Analyze the channels outside `core`, a boolean for every channel, by projection-subtraction and PCA.

    Two channels of which the second is twice the first need nothing beyond the first:

    >>> covariance = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    >>> analyze_residual(covariance, core=torch.tensor([True, False])).needed(0.99)
    0
    >>> analyze_residual(covariance, core=torch.tensor([False, False])).needed(0.99)
    1
    """
    covariance = covariance.double()
    residual = covariance[~core][:, ~core]  # C_rr
    variance = float(residual.diagonal().sum())  # v_r
    if not variance > 0:  # a dead layer: nothing to explain
        return Spectrum(1.0, torch.zeros(len(residual), dtype=torch.float64), torch.zeros_like(residual), 0.0)
    explained = torch.zeros_like(residual)
    if projection and bool(core.any()):
        cross = covariance[~core][:, core]  # C_rf
        explained = cross @ pseudo_inverse(covariance[core][:, core]) @ cross.mT  # P
    new = residual - explained  # S
    new = (new + new.mT) / 2
    eigenvalues = torch.linalg.eigvalsh(new).flip(0).clamp(min=0)
    core_explained = min(1.0, max(0.0, float(explained.diagonal().sum()) / variance))
    return Spectrum(core_explained, eigenvalues / variance, new / variance, variance)


def explained_fraction(covariance: Tensor, some: Tensor) -> float:
    """The fraction of all channels' variance that some of them explain, their own included.

    >>> covariance = torch.tensor([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 5.0]])
    >>> round(explained_fraction(covariance, torch.tensor([True, False, False])), 6)
    0.5
    """
    covariance = covariance.double()
    total = float(covariance.diagonal().sum())
    if not total > 0:
        return 1.0
    if not bool(some.any()):
        return 0.0
    across = covariance[:, some]
    explained = (across @ pseudo_inverse(covariance[some][:, some]) * across).sum()
    return min(1.0, max(0.0, float(explained) / total))


def pivot(spectra: Sequence[Spectrum], count: int) -> list[int]:
    """Choose the channels that explain most of the new variance, one after another: pick, deflate, repeat.

    Several spectra of the same channels, from several places that read them, count together.
    """
    matrices = [spectrum.new.clone() for spectrum in spectra]
    free = torch.ones(len(matrices[0]), dtype=torch.bool)
    chosen: list[int] = []
    for _ in range(count):
        gain = torch.zeros(len(free), dtype=torch.float64)
        for matrix in matrices:
            diagonal = matrix.diagonal()
            alive = diagonal > _ZERO * diagonal.max().clamp(min=1e-300)
            gain += torch.where(alive, matrix.square().sum(0) / diagonal.clamp(min=1e-300), 0.0)
        best = int(torch.where(free, gain, -1.0).argmax())
        chosen.append(best)
        free[best] = False
        for matrix in matrices:
            peak = matrix[best, best].clone()
            if peak > 0:
                column = matrix[:, best].clone()
                matrix -= torch.outer(column, column) / peak
    return chosen


def pseudo_inverse(matrix: Tensor) -> Tensor:
    """The inverse of a symmetric matrix on the directions in which it is not zero."""
    values, vectors = torch.linalg.eigh(matrix)
    used = values > _ZERO * values.max().clamp(min=1e-300)
    return (vectors[:, used] / values[used]) @ vectors[:, used].mT


def regress(second: Tensor, removed: Tensor, kept: Tensor) -> Tensor:
    """Regress removed channels on kept ones: the matrix M that minimizes E|x_R - M x_K|^2, (removed, kept)."""
    block, cross = second[kept][:, kept], second[removed][:, kept]
    ridge = 1e-6 * block.diagonal().mean()
    if not ridge > 0:  # dead channels explain nothing
        return torch.zeros_like(cross)
    block = block + ridge * torch.eye(len(block), dtype=block.dtype)
    factor, problem = torch.linalg.cholesky_ex(block)
    if problem:  # by rounding it has negative eigenvalues
        return cross @ pseudo_inverse(block)
    return torch.cholesky_solve(cross.mT, factor).mT
