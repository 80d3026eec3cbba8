"""Steps of training: the loop of the library beside a bare one, the feeding of data, a narrowed network beside a masked one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from timing import Row, ratio, together
from torch import Tensor, nn

from spacecl import Recipe
from spacecl.benchmarks.networks import CNN, MLP
from spacecl.blueprint import laid_out, lay
from spacecl.costs import multiply_adds
from spacecl.images import Images
from spacecl.tasks import Batches, Data
from spacecl.training import Hook, Trainer, hold, make_optimizer, make_schedule

STEPS = 16


@dataclass(frozen=True)
class Case:
    """A network and the batches that it is trained with."""

    name: str
    network: nn.Module
    x: Tensor
    recipe: Recipe
    channels_last: bool

    @property
    def y(self) -> Tensor:
        return torch.arange(len(self.x)) % 2

    def fit(self, train: Batches | None = None, after_step: Hook | None = None, recipe: Recipe | None = None) -> None:
        """One epoch in the library's loop, without validation."""
        from lightning_fabric import Fabric

        trainer = Trainer(Fabric(accelerator="cpu", devices=1), recipe or self.recipe, 0, self.channels_last, show=False)
        data = Data((self.x, self.y), "data")
        trainer.fit(self.network, train or data, data, after_step=after_step, validate=lambda module: (0.0, 0.0))

    def bare(self, channels_last: bool) -> None:
        """The same steps in a loop such as everyone writes."""
        network = lay(self.network, channels_last)
        network.train()
        optimizer = make_optimizer(self.recipe, network)
        schedule = make_schedule(self.recipe, optimizer, STEPS)
        for x, y in zip(laid_out(self.x, channels_last).split(self.recipe.batch_size), self.y.split(self.recipe.batch_size)):
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()

    def held(self, share: float) -> Hook | None:
        """A hook that holds such a share of every layer's filters."""
        masks = {}
        for name, parameter in self.network.named_parameters():
            masks[name] = torch.zeros(parameter.shape, dtype=torch.bool)
            if not name.startswith("head"):
                masks[name][: round(share * len(parameter))] = True
        return hold(self.network, masks)


def cases() -> list[Case]:
    recipe = Recipe(epochs=1, batch_size=64, optimizer="sgd", lr=1e-3, weight_decay=5e-4, keep="last")
    adam = Recipe(epochs=1, batch_size=128, optimizer="adamw", lr=1e-4, keep="last")
    return [
        Case("CNN", CNN(classes=2), torch.randn(STEPS * 64, 3, 32, 32), recipe, True),
        Case("MLP", MLP(784, 2), torch.randn(STEPS * 128, 784), adam, False),
    ]


def core_held(case: Case) -> Iterator[Row]:
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    works = {"bare": lambda: case.bare(case.channels_last)}
    if case.channels_last:
        works["plain"] = lambda: case.bare(False)
    works |= {f"{share:.0%}": lambda hook=case.held(share): case.fit(after_step=hook) for share in shares}  # type: ignore[misc]
    found = together(works)
    times = {f"{share:.0%}": ratio(found[f"{share:.0%}"], found["bare"]) for share in shares}
    worst = max(times.values())
    told = f"{min(times.values()):.2f} to {worst:.2f} x"
    if case.channels_last:
        times["plain"] = ratio(found["50%"], found["plain"])
        told += f"; {times['plain']:.2f} x a loop that is not channels-last"
    what = f"training step of the {case.name} at full width, 0 to 100 % of it core"
    yield Row(what, "a bare PyTorch loop", "<= 1.08 x", told, worst <= 1.08, times)


class _OneBatch:
    """The same batch again and again, ready to be read."""

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


def feeding(case: Case) -> Iterator[Row]:
    from dataclasses import replace

    pixels = np.random.default_rng(0).integers(0, 256, (10_000, 3, 32, 32), dtype=np.uint8)
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file.name, pixels)
        images = Images(np.load(file.name, mmap_mode="r"), np.arange(10_000) % 2)
        rows = np.random.default_rng(1).permutation(10_000)[: len(case.x)]
        size = case.recipe.batch_size
        works = {
            "one batch": lambda: case.fit(_OneBatch(laid_out(case.x[:size], True), case.y[:size], STEPS)),
            "memory-mapped images": lambda: case.fit(Data(images.subset(rows), "data")),
            "flipped and shifted": lambda: case.fit(
                Data(images.subset(rows), "data"), recipe=replace(case.recipe, augment="flip-shift")
            ),
        }
        found = together(works)
    times = {name: ratio(found[name], found["one batch"]) for name in list(works)[1:]}
    told = ", ".join(f"{name} {value:.3f} x" for name, value in times.items())
    yield Row(
        "data feeding: shuffled bytes to batches",
        "the same loop on one cached batch",
        "<= 1.05 x",
        told,
        max(times.values()) <= 1.05,
        times,
    )


def narrowed(case: Case) -> Iterator[Row]:
    widths = {"task 1": (10, 12, 21, 16, 22), "task 5": (16, 26, 57, 55, 105)}  # of the authors' CIFAR-10 runs
    networks = {name: CNN(classes=2, filters=filters) for name, filters in widths.items()}
    masks = {name: torch.rand(p.shape) < 0.5 for name, p in case.network.named_parameters()}
    works = {"masked": lambda: case.fit(after_step=hold(case.network, masks))}
    for name, network in networks.items():
        small = Case(name, network, case.x, case.recipe, case.channels_last)
        works[name] = lambda small=small: small.fit(after_step=small.held(0.5))  # type: ignore[misc]
    found = together(works)
    example, figures, told = case.x[:1], {}, []
    full = multiply_adds(case.network, example)
    for name, network in networks.items():
        time, work = ratio(found[name], found["masked"]), multiply_adds(network, example) / full
        figures |= {f"{name}, time": time, f"{name}, multiply-adds": work, f"{name}, over": time / work}
        told.append(f"{name} of the authors': {time:.2f} of the time with {work:.2f} of the multiply-adds, {time / work:.2f} x")
    worst = max(value for name, value in figures.items() if name.endswith("over"))
    reach = "time within 1.5 x of multiply-adds"
    yield Row(
        "retraining step on the narrowed CNN", "a masked step at full width", reach, "; ".join(told), worst <= 1.5, figures
    )


def rows() -> list[Row]:
    torch.manual_seed(0)
    cnn, mlp = cases()
    return [*core_held(cnn), *core_held(mlp), *feeding(cnn), *narrowed(cnn)]
