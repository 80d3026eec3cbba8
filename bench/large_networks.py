"""Large networks: memory and step time of a ResNet-50 and a ViT-S of 64 x 64 pixels, beside a bare PyTorch loop.

python bench/large_networks.py
python bench/large_networks.py --network vit-s --batch 64

Peaks are of the whole process (`VmHWM`), each loop in a process of its own; that of the library learns two tasks with SPACE.
Reads /proc, so memory is measured on Linux alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import Row, compute_ratio, time_in_turns
from torch import Tensor, nn
from training import Case

from spacecl import SPACE, Learner, Recipe, SpaceWarning, Task

PIXELS, CLASSES, EXAMPLES = 64, 10, 96
PHASES = ("wrap", "train", "analyse", "retrain")


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm1, self.norm2, self.norm3 = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.BatchNorm2d(4 * width)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    def __init__(self, classes: int = CLASSES):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(depth):
                blocks.append(Bottleneck(inputs, width, stride if number == 0 else 1))
                inputs = 4 * width
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.fc(self.blocks(x).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(rows, tokens, -1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViTS(nn.Module):
    def __init__(self, classes: int = CLASSES, width: int = 384, heads: int = 6, depth: int = 12, patch: int = 8):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, (PIXELS // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"resnet-50": ResNet50, "vit-s": ViTS}


def make_recipe(network: str, batch: int) -> Recipe:
    optimizer, lr = ("adamw", 1e-4) if network == "vit-s" else ("sgd", 1e-2)
    return Recipe(epochs=2, retrain_epochs=1, batch_size=batch, optimizer=optimizer, lr=lr)  # type: ignore[arg-type]


def make_data(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(EXAMPLES) % CLASSES
    return torch.randn(EXAMPLES, 3, PIXELS, PIXELS, generator=generator) + y.reshape(-1, 1, 1, 1) / CLASSES, y


def measure_bare(network: str, batch: int) -> dict[str, float]:
    """The peak of the loop that everyone writes, in MB."""
    from spacecl.learning.optimizers import make_optimizer

    recipe, (x, y) = make_recipe(network, batch), make_data(0)
    module = NETWORKS[network]()
    optimizer = make_optimizer(recipe, module)
    for _ in range(recipe.epochs):
        for rows in torch.randperm(EXAMPLES).split(batch):
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"bare": read_peak()}


def measure_library(network: str, batch: int) -> dict[str, float]:
    """The peaks of the phases of learning two tasks, in MB, and the seconds of the analysis."""
    from spacecl.methods.space import method as space

    peaks: dict[str, float] = {}
    state = {"phase": "wrap", "task": 0}

    def enter(phase: str) -> None:
        name = f"task {state['task']}, {state['phase']}"
        peaks[name] = max(peaks.get(name, 0.0), read_peak())
        print(f"{name}: {peaks[name]:.0f} MB", file=sys.stderr, flush=True)
        reset_peak()
        state["phase"] = phase

    fit, search = space.Search.__init__, space.SPACE._retrain

    def begin_search(self: object, *args: object, **options: object) -> None:
        enter("analyse")
        fit(self, *args, **options)  # type: ignore[arg-type]

    def begin_retraining(self: SPACE, *args: object) -> object:
        enter("retrain")
        return search(self, *args)  # type: ignore[arg-type]

    space.Search.__init__, space.SPACE._retrain = begin_search, begin_retraining  # type: ignore[method-assign,assignment]
    method = SPACE(size=0.5, budget=2, reuse="all")  # without the search, which takes time but no more memory
    learner = Learner(NETWORKS[network](), method, example_input=torch.zeros(1, 3, PIXELS, PIXELS), progress=False)
    enter("train")
    seconds = {}
    for number in (1, 2):
        state["task"] = number
        record = learner.learn(Task(f"task {number}", make_data(number)), make_recipe(network, batch))
        seconds[f"seconds of task {number}"] = sum(record.seconds.values())
        seconds[f"seconds of analysis {number}"] = record.seconds["analyse"]
        enter("train")
    return peaks | seconds


def read_peak() -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measure_memory(network: str, batch: int) -> dict[str, float]:
    """Run both loops in processes of their own."""
    peaks: dict[str, float] = {}
    for loop in ("bare", "library"):
        command = [sys.executable, __file__, "--network", network, "--batch", str(batch), "--loop", loop]
        peaks |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return peaks


def measure_steps(network: str, batch: int, rounds: int = 5) -> dict[str, float]:
    """How many times as long as in a bare loop a step takes: of the first task, and with half of the filters frozen."""
    torch.manual_seed(0)
    recipe = make_recipe(network, batch)
    module, x = NETWORKS[network](), torch.randn(batch, 3, PIXELS, PIXELS)
    channels_last = network == "resnet-50"
    case = Case(network, module, x, Recipe(**{**vars(recipe), "epochs": 1, "keep": "last"}), channels_last, steps=2)
    masks = case.make_masks(0.5)
    works = {
        "bare": lambda: case.fit_bare(channels_last),
        "first": case.fit,
        "later": lambda: case.fit(freeze=masks),
    }
    times = time_in_turns(works, rounds=rounds)
    return {name: compute_ratio(times[name], times["bare"]) for name in ("first", "later")}


def run(networks: list[str] | None = None, batch: int = 32) -> Iterator[Row]:
    for network in networks or list(NETWORKS):
        peaks = measure_memory(network, batch)
        figures = {name: value for name, value in peaks.items() if name.startswith("task")}
        worst = max(figures.values()) / peaks["bare"]
        result = f"{worst:.2f} x; " + ", ".join(f"{name} {value:.0f} MB" for name, value in figures.items())
        what = f"peak memory of {network} at {PIXELS} px, batch {batch}, two tasks"
        yield Row(what, f"a bare PyTorch loop, {peaks['bare']:.0f} MB", "<= 1.3 x", result, worst <= 1.3, peaks)
        ratios = measure_steps(network, batch)
        result = f"{ratios['first']:.2f} x; {ratios['later']:.2f} x with half of the filters frozen"
        what, passed = f"training step of {network} at {PIXELS} px, batch {batch}", max(ratios.values()) <= 1.08
        yield Row(what, "a bare PyTorch loop", "<= 1.08 x", result, passed, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, nargs="+", default=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--loop", choices=["bare", "library"], help="measure only the memory of one loop, as JSON")
    args = parser.parse_args()
    warnings.simplefilter("ignore", SpaceWarning)
    if args.loop:
        work = measure_bare if args.loop == "bare" else measure_library
        print(json.dumps(work(args.network[0], args.batch)))
        return
    for row in run(args.network, args.batch):
        print(f"{row.what}, compared with {row.baseline}: {row.result} (target: {row.target})", flush=True)


if __name__ == "__main__":
    main()
