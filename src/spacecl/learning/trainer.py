"""The only training loop: `Trainer.fit`, and `evaluate`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..data.images import augment
from ..data.task_data import Batches, Data
from ..errors import ConfigError, StoreError, TrainingError
from ..progress import Progress, track
from ..structure.calling import Inputs, call_model, map_tensors, move_tensors
from ..structure.memory_format import protect_gradients, run_model, set_memory_format, to_memory_format
from ..structure.tensors import named_tensors
from .checkpoints import Checkpointer, Epoch, undo
from .distributed import all_sum, gather_values, shards, synchronize
from .freezing import make_freeze_hook
from .objective import Objective
from .optimizers import clip_gradients, make_optimizer, make_schedule
from .phase import Phase
from .recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Loss = Callable[[nn.Module, Inputs, Tensor], Tensor]  # of the module, inputs and targets
MakeLoss = Callable[[nn.Module], Loss]  # a loss that refers to parameters of the module, which is on its device by then
Penalty = Callable[[nn.Module], Tensor]  # of the module's parameters, added to the loss
Validate = Callable[[nn.Module], tuple[float, float]]  # score and loss


@dataclass(frozen=True)
class Trainer:
    """What every phase of learning a task shares: objective, devices, recipe, seed, progress bars and checkpoints."""

    fabric: Fabric
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0
    channels_last: bool = False  # the memory format to train in
    title: str = ""
    progress: Progress = None
    checkpointer: Checkpointer | None = None
    on_epoch: Callable[[Epoch], None] | None = None
    objective: Objective = field(default_factory=Objective)

    def loss(self, module: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """The loss of the task on a batch."""
        return self.objective.loss(call_model(module, x), y)

    def fit(
        self,
        module: nn.Module,
        train: Batches,
        valid: Data,
        *,
        phase: str = "train",
        recipe: Recipe | None = None,
        freeze: Mapping[str, Tensor] | None = None,
        make_loss: MakeLoss | None = None,
        penalty: Penalty | None = None,
        no_decay: Collection[str] = (),
        before_step: Callable[[], None] | None = None,
        after_step: Callable[[], None] | None = None,
        validate: Validate | None = None,
    ) -> list[Epoch]:
        """Train a module in place and return an entry per epoch.

        `freeze` has masks of positions that may not change, by tensor name. `make_loss(module)` returns the loss, by
        default that of the task. `penalty(module)`, if given, is added to it in every step. Parameters in `no_decay` have no
        weight decay. `before_step` runs when gradients are available, before they are clipped; `after_step` when the optimizer
        has changed the parameters. `validate` returns the score and loss by which the best epoch is chosen, by default
        those on `valid`.

        With a checkpointer, every finished epoch is saved, and the same call in another process resumes after the last
        one and ends with the same bits.
        """
        recipe = recipe or self.recipe
        fabric, steps = self.fabric, train.steps(recipe.batch_size)
        if recipe.epochs == 0:
            module.to(fabric.device)
            return []
        set_memory_format(module, self.channels_last)
        optimizer = make_optimizer(recipe, module, no_decay)
        wrapped, stepper = fabric.setup(module, optimizer)
        restore_frozen = make_freeze_hook(module, freeze or {})
        loss = self.loss if make_loss is None else make_loss(module)
        order = torch.Generator().manual_seed(self.seed)
        state = Phase(module, optimizer, make_schedule(recipe, optimizer, steps), [order, *train.generators()], self.seed)
        if self.checkpointer is not None:
            self._resume(self.checkpointer, phase, state)
        dtype = next(module.parameters()).dtype

        def prepare(x: Tensor) -> Tensor:
            return to_memory_format(x.detach().to(dtype) if x.is_floating_point() else x, self.channels_last)

        def compute(x: Inputs, y: Tensor) -> Tensor:
            value = loss(wrapped, x, y)
            return value if penalty is None else value + penalty(module)

        title = f"{self.title} {phase}".strip()
        progress = self.progress if fabric.is_global_zero else False
        settled = fabric.world_size == 1
        started = time.perf_counter()  # an epoch's seconds are all since the one before, saving the checkpoint included
        metric = self.objective.metric
        with track(title, recipe.epochs * steps, progress, done=len(state.history) * steps, metric=metric) as advance:
            while not state.done and len(state.history) < recipe.epochs:
                epoch = len(state.history) + 1
                total, count = torch.zeros((), device=fabric.device), 0
                module.train()
                for x, y in shards(train.batches(recipe.batch_size, order), fabric):
                    x = map_tensors(prepare, _augment(train.finish(x), recipe, title))
                    with protect_gradients(module):
                        if not settled:
                            _settle_sums(fabric, module, stepper, partial(compute, x, y))
                            settled = True
                        value = compute(x, y)
                        fabric.backward(value)
                    if before_step is not None or recipe.clip is not None:
                        fabric.strategy.precision.unscale_gradients(stepper)  # of 16-bit floats
                    if before_step is not None:
                        before_step()
                    if recipe.clip is not None:  # what before_step leaves to the optimizer
                        clip_gradients(module, recipe.clip)
                    stepper.step()
                    stepper.zero_grad()
                    if after_step is not None:
                        after_step()
                    if restore_frozen is not None:
                        restore_frozen()
                    if recipe.schedule != "plateau":
                        state.schedule.step()
                    total += value.detach() * len(y)
                    count += len(y)
                    advance(f"epoch {epoch}/{recipe.epochs}", value.detach(), state.score)
                mean = float(all_sum(fabric, total)) / float(all_sum(fabric, torch.tensor(float(count))))
                if not math.isfinite(mean) or not all(bool(torch.isfinite(p).all()) for p in module.parameters()):
                    raise TrainingError(
                        f"{title}: training diverged in epoch {epoch} of {recipe.epochs}, with a loss of {mean:.4g}. "
                        "Nothing was committed; the learner is unchanged. "
                        f"Lower the learning rate (lr={recipe.lr}) or check the scale of the inputs."
                    )
                synchronize(fabric, module)
                if validate is not None:
                    score, error = validate(module)
                else:
                    score, error = evaluate_with_loss(module, valid, fabric, self.channels_last, self.objective)
                rate = optimizer.param_groups[0]["lr"]
                if recipe.schedule == "plateau":
                    state.schedule.step(error)  # type: ignore[call-arg,arg-type]
                    state.done = optimizer.param_groups[0]["lr"] < recipe.stop_lr
                now = time.perf_counter()
                row = Epoch(
                    phase=phase,
                    epoch=epoch,
                    loss=mean,
                    score=score,
                    **({"accuracy": score} if self.objective.is_accuracy else {}),  # type: ignore[typeddict-item]
                    valid_loss=error,
                    lr=float(rate),
                    seconds=now - started,
                    **({"processes": fabric.world_size} if fabric.world_size > 1 else {}),  # type: ignore[typeddict-item]
                )
                state.finish_epoch(row, recipe)
                started = now
                self._report(row)
                if self.checkpointer is not None:
                    content = state.to_checkpoint(fabric)
                    if fabric.is_global_zero:
                        self.checkpointer.save(phase, *content)
                    fabric.barrier()  # nobody begins another epoch before this one is on disk
        kept = state.average if recipe.keep == "average" else state.best
        with torch.no_grad():
            for name, tensor in named_tensors(module).items():
                if kept is not None:
                    tensor.copy_(kept[name])
            if restore_frozen is not None:
                restore_frozen()
        set_memory_format(module, channels_last=False)
        return state.history

    def _resume(self, checkpointer: Checkpointer, phase: str, state: Phase) -> None:
        """Take over the last checkpoint of a phase, if there is one; all processes must find the same."""
        saved = checkpointer.load(phase)
        epochs = gather_values(self.fabric, len(saved[0].history) if saved is not None else 0)
        if len(set(epochs)) > 1:
            raise StoreError(
                f"{checkpointer.folder} holds checkpoints of {', '.join(map(str, epochs))} epochs, as the processes see it. "
                "All processes must use one folder: give one on a file system that all machines share."
            )
        if saved is not None:
            state.restore(*saved, self.fabric)
            for row in state.history:
                self._report(row)

    def _report(self, row: Epoch) -> None:
        if self.on_epoch is not None and self.fabric.is_global_zero:
            self.on_epoch(row)


def _settle_sums(fabric: Fabric, module: nn.Module, optimizer: torch.optim.Optimizer, compute: Callable[[], Tensor]) -> None:
    """Take a step and undo it, before the first one of several processes, in a resumed run as in a new one.

    In its first step, DistributedDataParallel decides in what order it adds gradients; another order has other bits.
    """
    with undo(module, fabric.device):
        fabric.backward(compute())
    optimizer.zero_grad()
    module.train()  # which methods that count steps begin again with


def _augment(x: Inputs, recipe: Recipe, title: str) -> Inputs:
    if recipe.augment == "none":
        return x
    if not isinstance(x, Tensor):
        raise ConfigError(
            f'{title}: augment="{recipe.augment}" is for models with one input. Use "none", and transforms in the dataset.'
        )
    if recipe.augment == "mask" and not x.is_floating_point():
        raise ConfigError(f'{title}: augment="mask" is for floating-point inputs; these are {x.dtype}. Use "none".')
    if recipe.augment != "mask" and x.dim() != 4:
        shape = tuple(x.shape[1:])
        raise ConfigError(f'{title}: augment="{recipe.augment}" is for images, but inputs have shape {shape}. Use "none".')
    return augment(x, recipe.augment)


def evaluate(
    module: nn.Module, data: Data, fabric: Fabric, channels_last: bool = False, objective: Objective | None = None
) -> float:
    """The score of a module in eval mode, by the metric of its task; by default accuracy, from 0 to 1."""
    return evaluate_with_loss(module, data, fabric, channels_last, objective)[0]


@torch.no_grad()
def evaluate_with_loss(
    module: nn.Module,
    data: Data,
    fabric: Fabric,
    channels_last: bool = False,
    objective: Objective | None = None,
    outputs: slice = slice(None),
) -> tuple[float, float]:
    """The score of a module in eval mode, by the metric of its task, and its mean loss; by default of classes.

    `outputs` selects those of the module that belong to the task, if not all do. Of several processes each counts its share
    of correct classes; any other metric needs all answers, so each process computes it from all data.
    """
    objective = Objective() if objective is None else objective
    training, world = module.training, fabric.world_size if objective.is_accuracy else 1
    module.eval()
    sums = torch.zeros(3, dtype=torch.float64)  # correct classes, loss, examples
    collected: list[tuple[Tensor, Tensor]] = []  # outputs and targets, for metrics other than accuracy
    for number, (x, y) in enumerate(data.batches(256)):
        if number % world == fabric.global_rank % world:
            answers = run_model(module, data.finish(move_tensors(x, fabric.device)), channels_last)[:, outputs].float()
            y = objective.prepare(y.to(answers.device))
            error = objective.loss_of_prepared(answers, y, reduction="sum")
            right = (answers.argmax(1) == y).sum() if objective.is_accuracy else torch.zeros_like(error)
            count = torch.tensor(float(len(y)), device=error.device)
            sums += torch.stack([part.cpu().double() for part in (right, error, count)])
            if not objective.is_accuracy:
                collected.append((answers.cpu(), y.cpu()))
    module.train(training)
    sums = all_sum(fabric, sums) if objective.is_accuracy else sums
    score = float(sums[0] / sums[2]) if objective.is_accuracy else objective.score(*map(torch.cat, zip(*collected)))
    return score, float(sums[1] / sums[2])
