"""Training steps: the library's loop compared with a bare one, data feeding, and a narrowed network with a masked one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from timing import Row, Work, compute_ratio, time_in_turns
from torch import Tensor, nn

from spacecl import Recipe
from spacecl.data.benchmarks.networks import CNN, MLP
from spacecl.data.images import Images
from spacecl.data.task_data import Batches, Data
from spacecl.learning.optimizers import make_optimizer, make_schedule
from spacecl.learning.trainer import Trainer
from spacecl.runs.costs import multiply_adds
from spacecl.structure.memory_format import set_memory_format, to_memory_format
from spacecl.structure.trace import trace

Masks = dict[str, Tensor]  # by tensor name, True where a position is frozen


class OneBatch:
    """The same batch over and over, ready in memory."""

    def __init__(self, x: Tensor, y: Tensor, steps: int):
        self.batch, self.count = (x, y), steps

    def batches(self, size: int, order: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        return iter([self.batch] * self.count)

    def finish(self, x: Tensor) -> Tensor:
        return x

    def steps(self, size: int) -> int:
        return self.count

    def generators(self) -> list[torch.Generator]:
        return []


@dataclass(frozen=True)
class Case:
    """A network, the batch that it is trained with, and the number of steps."""

    name: str
    network: nn.Module
    x: Tensor
    recipe: Recipe
    channels_last: bool
    steps: int

    @property
    def y(self) -> Tensor:
        return torch.arange(len(self.x)) % 2

    def fit(self, train: Batches | None = None, freeze: Masks | None = None, recipe: Recipe | None = None) -> None:
        """Run one epoch in the library's loop, without validation."""
        from lightning_fabric import Fabric

        trainer = Trainer(Fabric(accelerator="cpu", devices=1), recipe or self.recipe, 0, self.channels_last, progress=False)
        data = Data((self.x, self.y), "data")
        train = train or OneBatch(to_memory_format(self.x, self.channels_last), self.y, self.steps)
        trainer.fit(self.network, train, data, freeze=freeze, validate=lambda module: (0.0, 0.0))

    def fit_bare(self, channels_last: bool) -> None:
        """Run the same steps in the loop that everyone writes."""
        network = set_memory_format(self.network, channels_last)
        network.train()
        optimizer = make_optimizer(self.recipe, network)
        schedule = make_schedule(self.recipe, optimizer, self.steps)
        x, y = to_memory_format(self.x, channels_last), self.y
        for _ in range(self.steps):
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()

    def make_masks(self, share: float) -> Masks:
        """Return masks that freeze a random share of every layer's filters, and the weights between them."""
        channels = trace(self.network.eval(), self.x[:1])
        core = channels.all_units()
        for group in channels.groups:
            core[group.units] = torch.randperm(len(group.units)) < round(share * len(group.units))
        return {name: channels.mask(name, core) for name in channels.shared}


def make_cases() -> list[Case]:
    recipe = Recipe(epochs=1, batch_size=64, optimizer="sgd", lr=1e-3, weight_decay=5e-4, keep="last")
    adam = Recipe(epochs=1, batch_size=128, optimizer="adamw", lr=1e-4, keep="last")
    return [
        Case("CNN", CNN(classes=2), torch.randn(64, 3, 32, 32), recipe, True, steps=48),
        Case("MLP", MLP(784, 2), torch.randn(128, 784), adam, False, steps=128),
    ]


def measure_freezing(case: Case) -> Iterator[Row]:
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    works: dict[str, Work] = {"bare": partial(case.fit_bare, case.channels_last)}
    if case.channels_last:
        works["plain"] = partial(case.fit_bare, False)
    works |= {f"{share:.0%}": partial(case.fit, freeze=case.make_masks(share)) for share in shares}
    times = time_in_turns(works, rounds=5)
    ratios = {f"{share:.0%}": compute_ratio(times[f"{share:.0%}"], times["bare"]) for share in shares}
    worst = max(ratios.values())
    result = f"{min(ratios.values()):.2f} to {worst:.2f} x"
    if case.channels_last:
        ratios["plain"] = compute_ratio(times["50%"], times["plain"])
        result += f"; {ratios['plain']:.2f} x a loop without channels-last"
    what = f"training step of the {case.name} at full width, 0 to 100 % of it core"
    yield Row(what, "a bare PyTorch loop", "<= 1.08 x", result, worst <= 1.08, ratios)


def measure_feeding(case: Case) -> Iterator[Row]:
    pixels = np.random.default_rng(0).integers(0, 256, (10_000, 3, 32, 32), dtype=np.uint8)
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file.name, pixels)
        images = Images(np.load(file.name, mmap_mode="r"), np.arange(10_000) % 2)
        rows = np.random.default_rng(1).permutation(10_000)[: case.steps * len(case.x)]
        data, augmented = Data(images.subset(rows), "data"), replace(case.recipe, augment="flip-shift")
        works: dict[str, Work] = {
            "one batch": case.fit,
            "memory-mapped images": partial(case.fit, data),
            "flipped and shifted": partial(case.fit, data, recipe=augmented),
        }
        times = time_in_turns(works, rounds=11)
    ratios = {name: compute_ratio(times[name], times["one batch"]) for name in list(works)[1:]}
    result = ", ".join(f"{name} {value:.3f} x" for name, value in ratios.items())
    what, baseline = "data feeding: shuffled bytes to batches", "the same loop on one cached batch"
    yield Row(what, baseline, "<= 1.05 x", result, max(ratios.values()) <= 1.05, ratios)


def measure_narrowing(case: Case) -> Iterator[Row]:
    widths = {"task 1": (10, 12, 21, 16, 22), "task 5": (16, 26, 57, 55, 105)}  # of the authors' CIFAR-10 runs
    networks = {name: CNN(classes=2, filters=filters) for name, filters in widths.items()}
    masks = {name: torch.rand(p.shape) < 0.5 for name, p in case.network.named_parameters()}
    works: dict[str, Work] = {"masked": partial(case.fit, freeze=masks)}
    for name, network in networks.items():
        small = replace(case, name=name, network=network)
        works[name] = partial(small.fit, freeze=small.make_masks(0.5))
    times = time_in_turns(works)
    example, figures, results = case.x[:1], {}, []
    full = multiply_adds(case.network, example)
    for name, network in networks.items():
        time, work = compute_ratio(times[name], times["masked"]), multiply_adds(network, example) / full
        figures |= {f"{name}, time": time, f"{name}, multiply-adds": work, f"{name}, over": time / work}
        results.append(
            f"{name} of the authors': {time:.2f} of the time with {work:.2f} of the multiply-adds, {time / work:.2f} x"
        )
    worst = max(value for name, value in figures.items() if name.endswith("over"))
    what, baseline, target = (
        "retraining step on the narrowed CNN",
        "a masked step at full width",
        "time within 1.5 x of multiply-adds",
    )
    yield Row(what, baseline, target, "; ".join(results), worst <= 1.5, figures)


def run() -> list[Row]:
    torch.manual_seed(0)
    cnn, mlp = make_cases()
    return [*measure_freezing(cnn), *measure_freezing(mlp), *measure_feeding(cnn), *measure_narrowing(cnn)]
