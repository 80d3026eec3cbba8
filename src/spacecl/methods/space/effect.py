"""The effect of channels on the loss: in what order to keep them, and what leaving out the rest costs.

With the residual covariance S of what a layer reads (see `spectrum`) and the second moment G of the loss's gradient there,

    tr(G S) / 2

is, to second order, the rise of the loss when all residual channels are replaced by their best estimate from the core. Keeping
channel j lowers it by (S G S)_jj / S_jj, half of that, and deflates S.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_NEGLIGIBLE = 1e-5  # of the first cost


def rank_by_effect(places: Sequence[tuple[Tensor, Tensor]]) -> tuple[list[int], Tensor]:
    """Order channels by what keeping them saves, most first, and return the costs of keeping 0, 1, 2, ... of them.

    `places` has S and G of every place that reads the channels; their costs add up.

    >>> residual, gradient = torch.diag(torch.tensor([4.0, 1.0, 9.0])), torch.diag(torch.tensor([1.0, 8.0, 0.0]))
    >>> order, costs = rank_by_effect([(residual, gradient)])
    >>> order, costs.tolist()
    ([1, 0, 2], [6.0, 2.0, 0.0, 0.0])
    """
    residuals = [residual.double().clone() for residual, _ in places]
    products = [gradient.double() @ residual for (_, gradient), residual in zip(places, residuals)]  # G S
    floors = [1e-10 * float(residual.diagonal().amax()) if len(residual) else 0.0 for residual in residuals]
    order: list[int] = []
    costs = [_total(products)]
    left = torch.arange(len(residuals[0]))  # channels that the matrices still have; chosen ones have zeros there
    chosen = torch.zeros(len(left), dtype=torch.bool)
    while not bool(chosen.all()) and costs[-1] > _NEGLIGIBLE * costs[0]:
        gain = torch.zeros(len(left), dtype=torch.float64)
        for residual, product, floor in zip(residuals, products, floors):
            peaks = residual.diagonal()
            gain += torch.where(peaks > floor, (residual * product).sum(0) / peaks.clamp(min=1e-300), 0.0)
        best = int(torch.where(chosen, -1.0, gain).argmax())
        order.append(int(left[best]))
        chosen[best] = True
        for residual, product, floor in zip(residuals, products, floors):
            peak = float(residual[best, best])
            if peak > floor:
                column = residual[:, best] / peak
                product.addr_(product[:, best].clone(), column, alpha=-1)
                residual.addr_(residual[:, best].clone(), column, alpha=-1)
        costs.append(min(costs[-1], max(0.0, _total(products))))
        if 8 * int(chosen.sum()) > len(chosen):  # smaller matrices are faster
            left, residuals, products = left[~chosen], _drop(residuals, chosen), _drop(products, chosen)
            chosen = torch.zeros(len(left), dtype=torch.bool)
    rest = left[~chosen].tolist()
    return order + rest, torch.tensor(costs + [costs[-1]] * len(rest), dtype=torch.float64)


def _drop(matrices: Sequence[Tensor], some: Tensor) -> list[Tensor]:
    return [matrix[~some][:, ~some].contiguous() for matrix in matrices]


def _total(products: Sequence[Tensor]) -> float:
    return sum(float(product.diagonal().sum()) for product in products) / 2
