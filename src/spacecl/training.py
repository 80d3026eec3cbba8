"""The only training loop, and how to train: `Recipe`, `fit`, `evaluate`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blueprint import ask, tensors_of
from .errors import ConfigError, TrainingError
from .processes import shards, summed
from .progress import track
from .tasks import Data

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
Hook = Callable[[nn.Module], None]

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("one-cycle", "cosine", "steps", "constant")


@dataclass(frozen=True)
class Recipe:
    """How to train a task. The defaults train a small network well; `retrain_*` left at None follow the training's values.

    >>> Recipe(epochs=5, optimizer="sgd", lr=0.05).for_retraining().epochs
    3
    """

    epochs: int = 20
    batch_size: int = 64
    optimizer: str = "adamw"  # "sgd", "adam" or "adamw"
    lr: float = 2e-3
    momentum: float = 0.9  # of SGD
    weight_decay: float = 0.0
    schedule: str = "one-cycle"  # "one-cycle", "cosine", "steps" or "constant"
    milestones: tuple[int, ...] = ()  # epochs after which the rate is divided by ten, for schedule="steps"
    keep: str = "best"  # the epoch to end with: "best" on the validation data, or "last"
    retrain_epochs: int | None = None  # half of `epochs`, rounded up
    retrain_lr: float | None = None
    retrain_schedule: str | None = None
    retrain_milestones: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        whole = [
            name
            for name in ("epochs", "batch_size", "retrain_epochs")
            if not isinstance(getattr(self, name), (int, type(None)))
        ]
        if whole:
            raise ConfigError(f"This recipe cannot be used: {', '.join(whole)} must be whole numbers.")
        wrong = [
            f"{name}={value!r} must be {what}"
            for name, value, good, what in (
                ("epochs", self.epochs, self.epochs >= 0, "at least 0"),
                ("batch_size", self.batch_size, self.batch_size >= 1, "at least 1"),
                ("lr", self.lr, self.lr > 0, "above 0"),
                ("momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)"),
                ("weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0"),
                ("optimizer", self.optimizer, self.optimizer in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}"),
                ("schedule", self.schedule, self.schedule in SCHEDULES, f"one of {', '.join(SCHEDULES)}"),
                ("keep", self.keep, self.keep in ("best", "last"), "best or last"),
                ("retrain_epochs", self.retrain_epochs, (self.retrain_epochs or 0) >= 0, "at least 0"),
                ("retrain_lr", self.retrain_lr, self.retrain_lr is None or self.retrain_lr > 0, "above 0"),
                (
                    "retrain_schedule",
                    self.retrain_schedule,
                    self.retrain_schedule in (None, *SCHEDULES),
                    f"one of {', '.join(SCHEDULES)}",
                ),
            )
            if not good
        ]
        if wrong:
            raise ConfigError(f"This recipe cannot be used: {'; '.join(wrong)}.")

    def for_retraining(self) -> Recipe:
        """The recipe of the second phase, in which the narrowed network is trained."""
        own = {field.name: getattr(self, f"retrain_{field.name}", None) for field in fields(self)}
        own["epochs"] = -(-self.epochs // 2) if self.retrain_epochs is None else self.retrain_epochs
        return replace(self, **{name: value for name, value in own.items() if value is not None})


@dataclass(frozen=True)
class Trainer:
    """What every phase of a task's learning shares: devices, recipe, seed, and whether to show progress."""

    fabric: Fabric
    recipe: Recipe
    seed: int
    title: str = ""
    show: bool | None = None

    def fit(
        self,
        module: nn.Module,
        train: Data,
        valid: Data,
        *,
        phase: str = "train",
        recipe: Recipe | None = None,
        loss: Loss | None = None,
        before_step: Hook | None = None,
        after_step: Hook | None = None,
    ) -> list[dict[str, Any]]:
        """Train a module in place and return a row per epoch.

        `loss(module, x, y)` is cross-entropy by default. `before_step` runs when gradients are there, `after_step` when
        the optimiser has changed the parameters; both get the module.
        """
        recipe = recipe or self.recipe
        fabric, steps = self.fabric, train.steps(recipe.batch_size)
        history: list[dict[str, Any]] = []
        if recipe.epochs == 0:
            module.to(fabric.device)
            return history
        optimizer = make_optimizer(recipe, module)
        schedule = make_schedule(recipe, optimizer, steps)
        running, stepper = fabric.setup(module, optimizer)
        dtype = next(module.parameters()).dtype
        order = torch.Generator().manual_seed(self.seed)
        best: tuple[float, dict[str, Tensor]] | None = None
        title = f"{self.title} {phase}".strip()
        with track(title, recipe.epochs * steps, self.show if fabric.is_global_zero else False) as tell:
            accuracy = float("nan")
            for epoch in range(recipe.epochs):
                started, total, seen = time.perf_counter(), torch.zeros((), device=fabric.device), 0
                module.train()
                for x, y in shards(train.batches(recipe.batch_size, order), fabric):
                    x = x.detach().to(dtype) if x.is_floating_point() else x
                    value = (loss or cross_entropy)(running, x, y)
                    fabric.backward(value)
                    if before_step is not None:
                        before_step(module)
                    stepper.step()
                    stepper.zero_grad()
                    if after_step is not None:
                        after_step(module)
                    schedule.step()
                    total += value.detach() * len(x)
                    seen += len(x)
                    tell(f"epoch {epoch + 1}/{recipe.epochs}", value.detach(), accuracy)
                mean = float(summed(fabric, total)) / float(summed(fabric, torch.tensor(float(seen))))
                if not math.isfinite(mean) or not all(bool(torch.isfinite(p).all()) for p in module.parameters()):
                    raise TrainingError(
                        f"{title}: diverged in epoch {epoch + 1} of {recipe.epochs}, with a loss of {mean:.4g}. "
                        "Nothing was committed; the learner is as it was. "
                        f"Lower the learning rate (lr={recipe.lr}) or check the scale of the inputs."
                    )
                accuracy = evaluate(module, valid, fabric, recipe.batch_size)
                seconds = time.perf_counter() - started
                history.append({"phase": phase, "epoch": epoch + 1, "loss": mean, "accuracy": accuracy, "seconds": seconds})
                if recipe.keep == "best" and (best is None or accuracy >= best[0]):
                    best = accuracy, {name: tensor.clone() for name, tensor in tensors_of(module).items()}
        with torch.no_grad():
            for name, tensor in tensors_of(module).items():
                if best is not None:
                    tensor.copy_(best[1][name])
                if fabric.world_size > 1:  # running statistics are each process's own
                    tensor.copy_(fabric.broadcast(tensor))
        return history


def hold(module: nn.Module, held: Mapping[str, Tensor]) -> Hook | None:
    """A step hook that puts held positions back to what they are now, to the bit, whatever the optimiser did."""
    saved = {name: tensor.clone() for name, tensor in tensors_of(module).items() if name in held and bool(held[name].any())}
    if not saved:
        return None
    places: list[tuple[Tensor, Tensor, Tensor]] = []

    def put_back(module: nn.Module) -> None:
        if not places:  # only now do the tensors lie where training has moved them
            found = tensors_of(module)
            places.extend((found[n], held[n].to(found[n].device), value.to(found[n])) for n, value in saved.items())
        for tensor, mask, value in places:
            torch.where(mask, value, tensor, out=tensor)

    return put_back


def cross_entropy(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y)


@torch.no_grad()
def evaluate(module: nn.Module, data: Data, fabric: Fabric, batch_size: int = 256) -> float:
    """The share of examples that a module labels rightly, in eval mode."""
    training = module.training
    module.eval()
    counts = torch.zeros(2, dtype=torch.float64)
    for number, (x, y) in enumerate(data.batches(max(batch_size, 256))):
        if number % fabric.world_size == fabric.global_rank:
            hits = ask(module, x).argmax(1).cpu() == y.to("cpu", torch.int64)
            counts += torch.tensor([float(hits.sum()), float(len(y))], dtype=torch.float64)
    module.train(training)
    counts = summed(fabric, counts)
    return float(counts[0] / counts[1])


def make_optimizer(recipe: Recipe, module: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, recipe.lr, weight_decay=recipe.weight_decay)


def make_schedule(recipe: Recipe, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate over a phase, moved on after every step."""
    schedules = torch.optim.lr_scheduler
    total = max(1, recipe.epochs * steps)
    if recipe.schedule == "one-cycle":
        length = max(total + 1, 8)  # shorter ones leave no step for the rise
        return schedules.OneCycleLR(optimizer, recipe.lr, total_steps=length, pct_start=0.25, cycle_momentum=False)
    if recipe.schedule == "cosine":
        return schedules.CosineAnnealingLR(optimizer, total)
    milestones = [epoch * steps for epoch in recipe.milestones] if recipe.schedule == "steps" else []
    return schedules.MultiStepLR(optimizer, milestones, gamma=0.1)
