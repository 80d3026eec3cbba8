"""Streams of tasks for the experiments here, of some images each, from the data folder that SPACECL_DATA names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import spacecl
from spacecl.data.benchmarks.networks import CNN, MLP
from spacecl.data.sources import load

Split = tuple[Tensor, Tensor]


def cifar10() -> tuple[Split, Split]:
    mean, std = torch.tensor([0.491, 0.482, 0.447])[:, None, None], torch.tensor([0.247, 0.243, 0.262])[:, None, None]
    found = load("cifar10")
    parts = [(torch.tensor(pixels).float() / 255, torch.from_numpy(labels)) for pixels, labels in (found.train, found.test)]
    return tuple(((x - mean) / std, y) for x, y in parts)


def mnist() -> tuple[Split, Split]:
    found = load("mnist")
    parts = [
        (torch.tensor(pixels).flatten(1).float() / 255, torch.from_numpy(labels))
        for pixels, labels in (found.train, found.test)
    ]
    return tuple(((x - 0.1307) / 0.3081, y) for x, y in parts)


def stream(benchmark: str, tasks: int, images: int, seed: int) -> list[tuple[spacecl.Task, Split]]:
    """Tasks with a tenth of the training images for validation, and a test set each that chooses nothing."""
    generator = torch.Generator().manual_seed(seed)
    (x, y), (tx, ty) = cifar10() if benchmark == "split-cifar10" else mnist()
    found = []
    for number in range(tasks):
        if benchmark == "split-cifar10":
            pick, test = [((labels // 2) == number).nonzero()[:, 0] for labels in (y, ty)]
            pick = pick[torch.randperm(len(pick), generator=generator)[:images]]
            train, held = (x[pick], y[pick] % 2), (tx[test], ty[test] % 2)
        else:
            order = torch.randperm(784, generator=generator)
            pick = torch.randperm(len(x), generator=generator)[:images]
            train, held = (x[pick][:, order], y[pick]), (tx[:, order], ty)
        cut = len(train[0]) // 10
        valid = train[0][:cut], train[1][:cut]
        found.append((spacecl.Task(f"task-{number + 1}", (train[0][cut:], train[1][cut:]), valid), held))
    return found


def network(benchmark: str, widths: tuple[int, ...] = (32, 32, 64, 64, 128), classes: int = 2) -> nn.Module:
    """The paper's five-layer CNN (section S2.1), or its MLP with two hidden layers of 1,000."""
    return MLP(784, 10) if benchmark == "p-mnist" else CNN((3, 32, 32), classes, widths)
