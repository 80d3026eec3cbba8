"""Small networks and small tasks, on which methods are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.targets import TargetKind


class Family(NamedTuple):
    """A kind of model: a function that builds one, an input for it, and the layers that all tasks share."""

    make: Callable[[], nn.Module]
    example: Tensor
    shared: Sequence[str] = ()


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 3))


class ConvNet(nn.Module):
    """Convolutions, batch norm, dropout, flatten into Linear."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.drop = nn.Dropout(0.2)
        self.hidden = nn.Linear(width * 16, 12)
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = self.drop(F.relu(self.conv2(x)))
        return self.fc(F.relu(self.hidden(x.flatten(1))))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y)


class ResNet(nn.Module):
    """Residual sums with identity and projection shortcuts; with base 40 and two blocks a stage, the paper's ResNet-18."""

    def __init__(self, base: int = 6, stages: int = 2, blocks: int = 2, classes: int = 3):
        super().__init__()
        self.conv = nn.Conv2d(3, base, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(base)
        layers, width = [], base
        for stage in range(stages):
            for block in range(blocks):
                outputs = base * 2**stage
                layers.append(Block(width, outputs, 2 if stage and not block else 1))
                width = outputs
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.norm(self.conv(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


FAMILIES = {
    "chain": Family(chain, torch.zeros(1, 6)),
    "convnet": Family(ConvNet, torch.zeros(1, 3, 8, 8)),
    "resnet": Family(ResNet, torch.zeros(1, 3, 8, 8)),
}


def make_tasks(example: Tensor, count: int = 3, examples: int = 90, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Small tasks that can be learned: the labels of each follow its own random direction."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for _ in range(count):
        shape = (examples, *example.shape[1:])
        if example.is_floating_point():
            x = torch.randn(shape, generator=generator)
            scores = x.flatten(1) @ torch.randn(x[0].numel(), 3, generator=generator)
        else:
            x = torch.randint(0, 20, shape, generator=generator)
            scores = torch.randn(20, 3, generator=generator)[x].sum(1)
        result.append((x, scores.argmax(1)))
    return result


def make_targets(example: Tensor, kind: TargetKind, count: int = 2, examples: int = 300) -> list[tuple[Tensor, Tensor]]:
    """Small tasks of labels or values that follow random directions of the inputs; values are in an odd unit."""
    generator = torch.Generator().manual_seed(0)
    result = []
    for _ in range(count):
        x = torch.randn(examples, *example.shape[1:], generator=generator)
        scores = x.flatten(1) @ torch.randn(x[0].numel(), 2, generator=generator)
        result.append((x, (scores > 0).long() if kind == "labels" else 1e4 + 1e3 * scores))
    return result
