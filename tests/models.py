"""Small models of every supported family, and small tasks for them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spacecl.checks.models import FAMILIES as CHECKED
from spacecl.checks.models import ConvNet as ConvNet
from spacecl.checks.models import ResNet as ResNet
from spacecl.checks.models import chain as chain
from spacecl.checks.models import make_tasks as tasks  # noqa: F401


class DenseNet(nn.Module):
    """Every layer reads all layers before it."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(6 + 4 * i), nn.ReLU(), nn.Conv2d(6 + 4 * i, 4, 3, padding=1)) for i in range(3)
        )
        self.norm = nn.BatchNorm2d(18)
        self.fc = nn.Linear(18, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.fc(F.relu(self.norm(x)).mean((2, 3)))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.down = nn.Conv2d(channels, 4, 1)
        self.up = nn.Conv2d(4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class MobileNet(nn.Module):
    """Inverted residuals: pointwise, depthwise, a gate, pointwise; one depthwise layer has two outputs per input."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.Hardswish())
        self.expand = nn.Sequential(nn.Conv2d(6, 14, 1, bias=False), nn.BatchNorm2d(14), nn.ReLU6())
        self.depthwise = nn.Sequential(nn.Conv2d(14, 14, 3, 1, 1, groups=14, bias=False), nn.BatchNorm2d(14), nn.ReLU6())
        self.gate = SqueezeExcite(14)
        self.project = nn.Sequential(nn.Conv2d(14, 6, 1, bias=False), nn.BatchNorm2d(6))
        self.doubling = nn.Conv2d(6, 12, 3, groups=6)
        self.slope = nn.PReLU(12)
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.project(self.gate(self.depthwise(self.expand(x))))
        return self.fc(self.slope(self.doubling(x)).amax((2, 3)))


class NormNet(nn.Module):
    """Group norm and layer norm, which average over channels, and instance norm."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, padding=1)
        self.group = nn.GroupNorm(3, 12)
        self.conv2 = nn.Conv2d(12, 8, 3, padding=1)
        self.instance = nn.InstanceNorm2d(8, affine=True)
        self.hidden = nn.Linear(8, 16)
        self.layer = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.group(self.conv1(x)))
        x = F.gelu(self.instance(self.conv2(x))).mean((2, 3))
        return self.fc(F.gelu(self.layer(self.hidden(x))))


class Shuffle(nn.Module):
    """Two branches, nested concats, a channel shuffle, halves that go different ways."""

    def __init__(self):
        super().__init__()
        self.left = nn.Conv2d(3, 6, 3, padding=1)
        self.right = nn.Conv2d(3, 6, 1)
        self.inner = nn.Conv2d(12, 8, 1)
        self.branch = nn.Conv2d(4, 4, 3, padding=1)
        self.outer = nn.Conv2d(20, 7, 1)
        self.fc = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.left(x), self.right(x)], 1)
        batch, channels, height, width = both.shape
        both = both.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)
        first, second = F.relu(self.inner(F.relu(both))).chunk(2, 1)
        x = torch.cat([torch.cat([first, F.relu(self.branch(second))], 1), both], 1)
        return self.fc(F.relu(self.outer(x)).mean((2, 3)))


class Twice(nn.Module):
    """A layer used twice, tied channels after a pixel shuffle, a learned scale per channel."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.again = nn.Conv2d(3, 3, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(3, 1, 1))
        self.hidden = nn.Linear(3, 9)
        self.register_buffer("table", torch.linspace(1, 2, 9))
        self.fc = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pixel_shuffle(self.stem(x), 2)
        x = self.again(F.relu(self.again(x))) * self.scale
        return self.fc(F.relu(self.hidden(x.mean((2, 3)))) * self.table)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))


class VisionBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width, 4)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.pos = nn.Parameter(torch.randn(1, 5, width) * 0.1)
        self.blocks = nn.ModuleList([VisionBlock(width), VisionBlock(width)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


VISION_SHARED = ["patch", "blocks.*.attn", "blocks.*.fc2"]


class Text(nn.Module):
    """An embedding, a one-dimensional convolution and a norm over features."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.conv = nn.Conv1d(8, 10, 3, padding=1)
        self.fc = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(self.embed(x).transpose(1, 2))).amax(2))


class Grouped(nn.Module):
    """Grouped convolutions of few channels, which lose whole groups, and of many, which lose channels of every group."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.groups = nn.Conv2d(12, 18, 3, padding=1, groups=6)
        self.norm = nn.BatchNorm2d(18)
        self.middle = nn.Conv2d(18, 12, 1)
        self.lanes = nn.Conv2d(12, 16, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(16, 10, 2, 2)
        self.fc = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.groups(F.relu(self.stem(x)))))
        return self.fc(F.relu(self.up(F.relu(self.lanes(F.relu(self.middle(x)))))).mean((2, 3)))


class Distilled(nn.Module):
    """Two heads whose scores are averaged, one of them a convolution."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 9, 3)
        self.head = nn.Linear(9, 3)
        self.map = nn.Conv2d(9, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return (self.head(x.mean((2, 3))) + self.map(x).amax((2, 3))) / 2


class Recurrent(nn.Module):
    """Embedded tokens, read in both directions by two layers of an LSTM, then by a GRU and, step by step, by a cell."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 7, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(14, 6, batch_first=True)
        self.cell = nn.LSTMCell(6, 5)
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.gru(self.lstm(self.embed(x))[0])
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.fc(state[0])


class Product(nn.Module):
    """Products with matrices of the model's own, which have a row for every channel that they read."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, 12) * 0.4)
        self.second, self.bias = nn.Parameter(torch.randn(12, 9) * 0.3), nn.Parameter(torch.zeros(9))
        self.fc = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(torch.addmm(self.bias, F.relu(x @ self.first), self.second)))


IMAGE = torch.zeros(1, 3, 8, 8)
VECTOR = torch.zeros(1, 6)
FAMILIES = {  # name -> (model, example input, shared layers)
    **CHECKED,
    "densenet": (DenseNet, IMAGE, ()),
    "mobilenet": (MobileNet, IMAGE, ()),
    "norms": (NormNet, IMAGE, ()),
    "shuffle": (Shuffle, IMAGE, ()),
    "twice": (Twice, IMAGE, ()),
    "vision transformer": (VisionTransformer, IMAGE, VISION_SHARED),
    "whole transformer": (VisionTransformer, IMAGE, ()),
    "text": (Text, torch.zeros(1, 7, dtype=torch.int64), ()),
    "grouped": (Grouped, IMAGE, ()),
    "distilled": (Distilled, IMAGE, ()),
    "recurrent": (Recurrent, torch.zeros(1, 7, dtype=torch.int64), ()),
    "product": (Product, VECTOR, ()),
}


WORDS, LENGTH = 20, 5  # of captions


class Captioned(nn.Module):
    """Reads a picture's features and the masked words of its caption."""

    def __init__(self):
        super().__init__()
        self.words, self.pixels = nn.Embedding(WORDS, 12), nn.Linear(6, 12)
        self.norm, self.mix, self.head = nn.BatchNorm1d(24), nn.Linear(24, 40), nn.Linear(40, 3)

    def forward(self, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        caption = (self.words(ids) * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        both = torch.cat([torch.relu(self.pixels(pixels)), caption], 1)
        return self.head(torch.relu(self.mix(self.norm(both))))


CAPTIONED = {
    "pixels": torch.zeros(1, 6),
    "ids": torch.ones(1, LENGTH, dtype=torch.int64),
    "mask": torch.ones(1, LENGTH, dtype=torch.int64),
}
