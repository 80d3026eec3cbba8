"""A small pretrained network: a CNN that knows the digits 0 to 4 of MNIST learns others from few examples.

    python experiments/pretrained_digits.py --data DIR [--seeds 0,1,2] [--examples 500,60] [--norm] [--recipe auto]

The network is trained on 0 to 4 in plain PyTorch. Task 1 is 5, 6 and 7; task 2, with fewer examples, is 8 and 9. Prints the
accuracy on 1,000 test images per task. Finished rows are saved, and the same command resumes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rows import RowFile, format_table, parse_names, parse_seeds
from teach import METHODS, make_recipe, name_method, parse_options, resume, teach
from torch import Tensor, nn

from spacecl import SpaceWarning, Task
from spacecl.data.sources import load

KNOWN = (0, 1, 2, 3, 4)
TASKS = {"5 6 7": (5, 6, 7), "8 9": (8, 9)}
TEST_IMAGES = 1000  # of each task
SHARED = "-shared"  # ends the name of a method that shares all convolutions between tasks


class Network(nn.Module):
    def __init__(self, norm: bool):
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((1, 16, 32, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=not norm)]
            layers += [nn.BatchNorm2d(outputs)] if norm else []
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        self.convolutions = nn.Sequential(*layers)
        self.hidden, self.head = nn.Linear(64 * 3 * 3, 64), nn.Linear(64, len(KNOWN))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(self.convolutions(x).flatten(1))))


def choose_examples(data: str | None, part: str, digits: Sequence[int], count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw examples of some digits from a part of MNIST. Labels are positions in `digits`."""
    split = getattr(load("mnist", data), part)
    rows = np.flatnonzero(np.isin(split.labels, digits))
    rows = np.random.default_rng([seed, *digits]).permutation(rows)[:count]
    pixels = torch.from_numpy(split.pixels[rows]).float()
    return (pixels / 255 - 0.1307) / 0.3081, torch.from_numpy(np.searchsorted(digits, split.labels[rows]))


def pretrain(network: Network, x: Tensor, y: Tensor, epochs: int, seed: int) -> None:
    """Train a network as any user would, without this library."""
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=order).split(64):
            optimizer.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    network.eval()


def make_network(options: argparse.Namespace, seed: int) -> Network:
    """Make a network, pretrain it, and report its accuracy on the digits that it knows."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    network = Network(options.norm)
    pretrain(network, *choose_examples(options.data, "train", KNOWN, options.images, seed), options.epochs, seed)
    x, y = choose_examples(options.data, "test", KNOWN, TEST_IMAGES, seed)
    with torch.no_grad():
        accuracy = float((network(x).argmax(1) == y).float().mean())
    spent = time.perf_counter() - started
    print(f"pretrained, seed {seed}: {accuracy:.2%} on the digits 0 to 4, {spent:.0f} s", file=sys.stderr, flush=True)
    return network


def load_tasks(options: argparse.Namespace, seed: int) -> list[Task]:
    counts = map(int, options.examples.split(","))
    return [
        Task(
            name,
            choose_examples(options.data, "train", digits, count, seed),
            classes=len(digits),
            test=choose_examples(options.data, "test", digits, TEST_IMAGES, seed),
        )
        for (name, digits), count in zip(TASKS.items(), counts)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained-digits.jsonl"), help="default: %(default)s")
    parser.add_argument("--seeds", type=parse_seeds, default="0", help="such as 0,1,2")
    parser.add_argument(
        "--methods",
        type=parse_names([*METHODS, *(f"{name}{SHARED}" for name in METHODS)]),
        default="space,space-shared,stl,packnet",
        help="default: %(default)s",
    )
    parser.add_argument("--examples", default="500,60", help="of each task (default: %(default)s)")
    parser.add_argument("--images", type=int, default=10_000, help="to pretrain with (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="of pretraining (default: %(default)s)")
    parser.add_argument("--norm", action="store_true", help="a network with batch norm")
    parser.add_argument("--recipe", default="auto", help="auto, the learner's own, or epochs, such as 20+10 (default: auto)")
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="of SPACE, or METHOD.KEY=VALUE")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", SpaceWarning)
    settings = {name: getattr(options, name) for name in ("examples", "images", "epochs", "norm", "recipe")}
    given = parse_options(options.options)
    file, rows = RowFile(options.out), []
    for seed in options.seeds:
        network = None
        for text in options.methods:
            name = text.removesuffix(SHARED)
            method = METHODS[name](**given[name])
            title = name_method(method, given[name]) + (", convolutions shared" if text != name else "")
            row = file.find(title, seed, settings)
            if row is None:
                network = network or make_network(options, seed)
                shared = ["convolutions"] if text != name else []
                folder, example = file.folder(title, seed, settings), torch.zeros(1, 1, 28, 28)
                learner = resume(folder, network, method, example_input=example, shared=shared, seed=seed)
                row = teach(title, learner, load_tasks(options, seed), make_recipe(options.recipe, method), settings, folder)
                file.add(row)
                shutil.rmtree(folder)
            rows.append(row)
    print(format_table(rows))


if __name__ == "__main__":
    main()
