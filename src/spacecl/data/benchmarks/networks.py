"""The paper's networks (section S2.1), with layers named as the paper names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Fully connected layers with ReLU, and a classifier. The paper's has two hidden layers of 1,000 neurons."""

    def __init__(self, inputs: int, classes: int, hidden: Sequence[int] = (1000, 1000)):
        super().__init__()
        sizes = [inputs, *hidden]
        for number, (a, b) in enumerate(pairwise(sizes), 1):
            self.add_module(f"hidden{number}", nn.Linear(a, b))
        self.depth = len(hidden)
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for number in range(1, self.depth + 1):
            x = F.relu(getattr(self, f"hidden{number}")(x))
        return self.head(x)


class CNN(nn.Module):
    """Five convolutions, the last one 2 x 2, and a classifier. The paper uses 32-32-64-64-128 filters, or twice as many.

    The paper does not say whether convolutions are padded. Here they are, and pooling takes the maximum. With `padded=False`,
    they are not, and the last pooling takes the average, as in the authors' scripts: with images of 32 x 32 pixels, 1.75 times
    fewer multiply-adds, and as many parameters except for the classifier.
    """

    def __init__(
        self,
        shape: Sequence[int] = (3, 32, 32),
        classes: int = 10,
        filters: Sequence[int] = (32, 32, 64, 64, 128),
        dropout: float = 0.15,
        padded: bool = True,
    ):
        super().__init__()
        channels, height, width = shape
        a, b, c, d, e = filters
        border = 1 if padded else 0
        self.conv1, self.conv2 = nn.Conv2d(channels, a, 3, padding=border), nn.Conv2d(a, b, 3, padding=border)
        self.conv3, self.conv4 = nn.Conv2d(b, c, 3, padding=border), nn.Conv2d(c, d, 3, padding=border)
        self.conv5 = nn.Conv2d(d, e, 2)
        self.pool, self.dropout = nn.MaxPool2d(2), nn.Dropout(dropout)
        self.last_pool = nn.MaxPool2d(2) if padded else nn.AvgPool2d(2)
        lost = 0 if padded else 4  # pixels by two convolutions of 3 x 3
        high, wide = (((size - lost) // 2 - lost) // 2 - 1 for size in (height, width))
        self.head = nn.Linear(e * (high // 2) * (wide // 2), classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout(self.pool(x))
        x = F.relu(self.conv4(F.relu(self.conv3(x))))
        x = self.dropout(self.pool(x))
        x = self.last_pool(F.relu(self.conv5(x)))
        return self.head(x.flatten(1))


class Block(nn.Module):
    """Two 3 x 3 convolutions with batch norms and a shortcut, which has a 1 x 1 convolution where the shape changes."""

    def __init__(self, inputs: int, filters: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """A reduced ResNet-18 for small images: four stages of two blocks. The paper uses 40 base filters."""

    def __init__(self, shape: Sequence[int] = (3, 32, 32), classes: int = 10, base: int = 40):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], base, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(base)
        self.conv2_x = nn.Sequential(Block(base, base, 1), Block(base, base, 1))
        self.conv3_x = nn.Sequential(Block(base, 2 * base, 2), Block(2 * base, 2 * base, 1))
        self.conv4_x = nn.Sequential(Block(2 * base, 4 * base, 2), Block(4 * base, 4 * base, 1))
        self.conv5_x = nn.Sequential(Block(4 * base, 8 * base, 2), Block(8 * base, 8 * base, 1))
        self.head = nn.Linear(8 * base, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.conv5_x(self.conv4_x(self.conv3_x(self.conv2_x(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


NETWORKS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {
    "mlp": lambda shape, classes: MLP(prod(shape), classes),
    "mlp-small": lambda shape, classes: MLP(prod(shape), classes, (100, 100)),  # the network of UCB: 0.1 M parameters on MNIST
    "cnn": lambda shape, classes: CNN(shape, classes),
    "cnn-wide": lambda shape, classes: CNN(shape, classes, (64, 64, 128, 128, 256)),
    "cnn-valid": lambda shape, classes: CNN(shape, classes, padded=False),  # the CNNs of the authors' scripts
    "cnn-wide-valid": lambda shape, classes: CNN(shape, classes, (64, 64, 128, 128, 256), padded=False),
    "resnet18": lambda shape, classes: ResNet18(shape, classes),
    "resnet18-small": lambda shape, classes: ResNet18(shape, classes, 20),  # that of GEM (Lopez-Paz, Ranzato 2017)
}
