"""The only training loop: `fit`, and `evaluate`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.images import augment
from ..data.task_data import Batches, Data
from ..errors import ConfigError, StoreError, TrainingError, first_line
from ..progress import Progress, track
from ..structure.blueprint import named_tensors
from ..structure.memory_format import protect_gradients, run_model, set_memory_format, to_memory_format
from .checkpoints import Checkpointer, Epoch, PhaseState, randomness, restore_randomness, select_prefix
from .distributed import all_sum, shards
from .optimizers import make_optimizer, make_schedule
from .recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
Hook = Callable[[nn.Module], None]
Row = Epoch


@dataclass(frozen=True)
class Trainer:
    """What every phase of a task's learning shares: devices, recipe, seed, what to show, where to keep checkpoints."""

    fabric: Fabric
    recipe: Recipe
    seed: int
    channels_last: bool = False  # the memory format to train in
    title: str = ""
    show: Progress = None
    keeper: Checkpointer | None = None
    on_epoch: Callable[[Row], None] | None = None

    def fit(
        self,
        module: nn.Module,
        train: Batches,
        valid: Data,
        *,
        phase: str = "train",
        recipe: Recipe | None = None,
        loss: Loss | None = None,
        before_step: Hook | None = None,
        after_step: Hook | None = None,
        validate: Callable[[nn.Module], tuple[float, float]] | None = None,
    ) -> list[Row]:
        """Train a module in place and return a row per epoch.

        `loss(module, x, y)` is cross-entropy by default. `before_step` runs when gradients are there, `after_step` when
        the optimiser has changed the parameters; both get the module. `validate` gives accuracy and loss that choose the
        epoch, by default those on `valid`. With a keeper, every finished epoch is kept, and the same call in another
        process goes on after the last one, to the same bits.
        """
        recipe = recipe or self.recipe
        fabric, steps = self.fabric, train.steps(recipe.batch_size)
        if recipe.epochs == 0:
            module.to(fabric.device)
            return []
        set_memory_format(module, self.channels_last)
        optimizer = make_optimizer(recipe, module)
        running, stepper = fabric.setup(module, optimizer)
        order = torch.Generator().manual_seed(self.seed)
        state = _Phase(module, optimizer, make_schedule(recipe, optimizer, steps), [order, *train.generators()])
        kept = self.keeper.load(phase) if self.keeper is not None else None
        if kept is not None:
            state.restore(*kept, fabric.device)
            for row in state.history:
                self._tell(row)
        dtype = next(module.parameters()).dtype
        title = f"{self.title} {phase}".strip()
        show = self.show if fabric.is_global_zero else False
        started = time.perf_counter()  # an epoch's seconds are all that passed since the one before, checkpoint included
        with track(title, recipe.epochs * steps, show, done=len(state.history) * steps) as tell:
            while not state.done and len(state.history) < recipe.epochs:
                epoch = len(state.history) + 1
                total, seen = torch.zeros((), device=fabric.device), 0
                module.train()
                for x, y in shards(train.batches(recipe.batch_size, order), fabric):
                    x = _augmented(train.finish(x), recipe, title)
                    x = to_memory_format(x.detach().to(dtype) if x.is_floating_point() else x, self.channels_last)
                    with protect_gradients(module):
                        value = (loss or cross_entropy)(running, x, y)
                        fabric.backward(value)
                    if before_step is not None:
                        fabric.strategy.precision.unscale_gradients(stepper)  # of 16-bit floats
                        before_step(module)
                    stepper.step()
                    stepper.zero_grad()
                    if after_step is not None:
                        after_step(module)
                    if recipe.schedule != "plateau":
                        state.schedule.step()
                    total += value.detach() * len(x)
                    seen += len(x)
                    tell(f"epoch {epoch}/{recipe.epochs}", value.detach(), state.accuracy)
                mean = float(all_sum(fabric, total)) / float(all_sum(fabric, torch.tensor(float(seen))))
                if not math.isfinite(mean) or not all(bool(torch.isfinite(p).all()) for p in module.parameters()):
                    raise TrainingError(
                        f"{title}: diverged in epoch {epoch} of {recipe.epochs}, with a loss of {mean:.4g}. "
                        "Nothing was committed; the learner is as it was. "
                        f"Lower the learning rate (lr={recipe.lr}) or check the scale of the inputs."
                    )
                accuracy, error = (
                    validate(module) if validate else evaluate_with_loss(module, valid, fabric, self.channels_last)
                )
                rate = optimizer.param_groups[0]["lr"]
                if recipe.schedule == "plateau":
                    state.schedule.step(error)  # type: ignore[call-arg,arg-type]
                    state.done = optimizer.param_groups[0]["lr"] < recipe.stop_lr
                now = time.perf_counter()
                row = Epoch(
                    phase=phase,
                    epoch=epoch,
                    loss=mean,
                    accuracy=accuracy,
                    valid_loss=error,
                    lr=float(rate),
                    seconds=now - started,
                )
                state.finish(row, recipe.keep == "best")
                started = now
                self._tell(state.history[-1])
                if self.keeper is not None:
                    self.keeper.save(phase, *state.saved(fabric.device))
        with torch.no_grad():
            for name, tensor in named_tensors(module).items():
                if state.best is not None:
                    tensor.copy_(state.best[name])
                if fabric.world_size > 1:  # running statistics are each process's own
                    tensor.copy_(fabric.broadcast(tensor))
        set_memory_format(module, channels_last=False)
        return state.history

    def _tell(self, row: Row) -> None:
        if self.on_epoch is not None and self.fabric.is_global_zero:
            self.on_epoch(row)


@dataclass
class _Phase:
    """All that the rest of a phase depends on."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    generators: list[torch.Generator]  # of the order of the examples
    history: list[Row] = field(default_factory=list)
    best: dict[str, Tensor] | None = None
    highest: float = float("-inf")
    done: bool = False

    @property
    def accuracy(self) -> float:
        return self.history[-1]["accuracy"] if self.history else float("nan")

    def finish(self, row: Row, keep_best: bool) -> None:
        """Note an epoch, and its weights if they are the best so far."""
        self.history.append(row)
        if keep_best and row["accuracy"] >= self.highest:
            self.highest = row["accuracy"]
            self.best = {name: tensor.clone() for name, tensor in named_tensors(self.module).items()}

    def saved(self, device: torch.device) -> tuple[PhaseState, dict[str, dict[str, Tensor]]]:
        """The state as plain values and files of tensors."""
        drawn, generators = randomness(device)
        schedule = {key: value for key, value in self.schedule.state_dict().items() if key in _SCHEDULED}
        rates = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
        body = PhaseState(tuple(self.history), self.highest, self.done, rates, schedule, drawn)
        numbers = self.optimizer.state_dict()["state"]
        files = {
            "module": named_tensors(self.module),
            "optimizer": {f"{p}.{name}": value for p, values in numbers.items() for name, value in values.items()},
            "random": generators | {f"order{n}": found.get_state() for n, found in enumerate(self.generators)},
        }
        return body, files | ({"best": self.best} if self.best is not None else {})

    def restore(self, body: PhaseState, tensors: dict[str, Tensor], device: torch.device) -> None:
        """Take over a state that was saved; one that does not fit what is trained now is refused."""
        try:
            self._restore(body, tensors, device)
        except (KeyError, IndexError, ValueError, TypeError, RuntimeError, AttributeError) as error:
            raise StoreError(
                f"The checkpoint does not fit what is trained: {type(error).__name__}: {first_line(error)}. "
                "Remove its folder to train this task from the start."
            ) from error

    @torch.no_grad()
    def _restore(self, body: PhaseState, tensors: dict[str, Tensor], device: torch.device) -> None:
        module, best, generators = (select_prefix(tensors, name) for name in ("module", "best", "random"))
        for name, tensor in named_tensors(self.module).items():
            tensor.copy_(module[name])
        numbers: dict[int, dict[str, Tensor]] = {}
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for key, value in select_prefix(tensors, "optimizer").items():
            index, name = key.split(".", 1)
            like = parameters[int(index)]
            if value.shape == like.shape:
                value = torch.empty_like(like, dtype=value.dtype).copy_(value)  # in the parameter's memory format
            numbers.setdefault(int(index), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        for group, rate in zip(groups, body.rates):
            group["lr"] = rate
        self.optimizer.load_state_dict({"state": numbers, "param_groups": groups})
        self.schedule.load_state_dict(body.schedule)
        self.history, self.highest, self.done = list(body.history), body.highest, body.done
        unlike = [name for name, tensor in named_tensors(self.module).items() if best and best[name].shape != tensor.shape]
        if unlike:
            raise ValueError(f"the best weights so far of {unlike[0]} have another shape")
        self.best = {name: tensor.to(device) for name, tensor in best.items()} or None
        for number, generator in enumerate(self.generators):
            generator.set_state(generators[f"order{number}"])
        restore_randomness(body.random, generators, device)


_SCHEDULED = {"last_epoch", "_step_count", "_last_lr", "best", "num_bad_epochs"}  # what changes as a schedule goes on


def _augmented(x: Tensor, recipe: Recipe, title: str) -> Tensor:
    if recipe.augment != "none" and x.dim() != 4:
        shape = tuple(x.shape[1:])
        raise ConfigError(f'{title}: augment="{recipe.augment}" is for images, but inputs have shape {shape}. Use "none".')
    return augment(x, recipe.augment)


def cross_entropy(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y)


def evaluate(module: nn.Module, data: Data, fabric: Fabric, channels_last: bool = False) -> float:
    """The share of examples that a module labels rightly, in eval mode."""
    return evaluate_with_loss(module, data, fabric, channels_last)[0]


@torch.no_grad()
def evaluate_with_loss(
    module: nn.Module, data: Data, fabric: Fabric, channels_last: bool = False, classes: slice = slice(None)
) -> tuple[float, float]:
    """The share of examples that a module labels rightly and its mean cross-entropy, in eval mode.

    `classes` are those of the module's classes that the labels number, if not all.
    """
    training = module.training
    module.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for number, (x, y) in enumerate(data.batches(256)):
        if number % fabric.world_size == fabric.global_rank:
            logits = run_model(module, data.finish(x.to(fabric.device)), channels_last)[:, classes].float()
            y = y.to(logits.device, torch.int64)
            hits, errors = (logits.argmax(1) == y).sum(), F.cross_entropy(logits, y, reduction="sum")
            sums += torch.stack(
                [hits.double(), errors.double(), torch.tensor(float(len(y)), device=hits.device).double()]
            ).cpu()
    module.train(training)
    sums = all_sum(fabric, sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])
