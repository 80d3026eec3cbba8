"""Hard attention to the task (Serra et al. 2018): each task learns a gate for every unit, nearly 0 or 1 in the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from ..data.targets import TARGET_KINDS, TargetKind
from ..learning.context import TaskContext
from ..learning.core import Core
from ..learning.method import Learned, Method
from ..learning.trainer import Loss
from ..options import NonNegativeFloat, option, options
from ..structure.calling import find_scores
from ..structure.channels import Channels


@options
class HAT(Method):
    """Learn gates sigmoid(s e) with the weights, s rising from 1 / s_max to s_max over every epoch; keep the open units.

    When the task is learned, gates are set to 0 or 1 and its network is narrowed to the open units; weights between units of
    a task's network are frozen.

    >>> HAT(compressibility=0.5).s_max
    400.0
    """

    compressibility: NonNegativeFloat = option(default=0.75, help="cost of opening units that no earlier task uses")
    s_max: Annotated[float, Field(ge=1, le=1_000_000)] = option(default=400.0, help="largest slope of the gates")
    embedding_lr: NonNegativeFloat = option(
        default=0.05,
        help="learning rate of the gates, which learn by plain gradient descent whatever the optimizer of the weights",
    )

    target_kinds: ClassVar[Sequence[TargetKind]] = TARGET_KINDS

    def learn(self, core: Core, task: TaskContext) -> Learned:
        trainer, channels = task.trainer, core.channels
        backbone = core.blueprint.build(core.initial_tensors(task.classes))
        gated = Gated(backbone, channels, self.s_max, task.train.steps(trainer.recipe.batch_size))
        free = (~core.committed_units).float()
        frozen = {f"backbone.{name}": mask for name, mask in core.frozen_positions("subnet").items()}

        def make_loss(module: nn.Module) -> Loss:
            unused = free.to(trainer.fabric.device)
            return lambda wrapped, x, y: task.loss(wrapped, x, y) + self.compressibility * gated.cost(unused)

        def before_step() -> None:
            gated.compensate_gradient()
            torch.nn.utils.clip_grad_norm_(gated.parameters(), 10_000)
            gated.descend(self.embedding_lr)

        history = trainer.fit(gated, task.train, task.valid, freeze=frozen, make_loss=make_loss, before_step=before_step)
        units = select_open_units(channels, gated.embedding.detach().cpu()) if history else channels.all_units()
        units = trainer.fabric.broadcast(units)
        return Learned(core.commit(channels.gather(core.blueprint.extract_tensors(backbone), units), units), history)


class Gated(nn.Module):
    """A network whose units pass through gates where they are read, which equals gating the weights that read them."""

    def __init__(self, backbone: nn.Module, channels: Channels, s_max: float, steps: int):
        super().__init__()
        self.backbone, self.s_max, self.steps, self.step = backbone, s_max, steps, 0
        self.embedding = nn.Parameter(torch.randn(channels.units, dtype=next(backbone.parameters()).dtype))
        self.readers = {weight: dim for weight, dim in channels.readers.items() if channels.dims[weight][dim] is not None}
        for n, (weight, dim) in enumerate(self.readers.items()):
            self.register_buffer(f"owner{n}", channels.dims[weight][dim])

    def train(self, mode: bool = True) -> Gated:
        super().train(mode)
        if mode:
            self.step = 0  # annealing starts again with every epoch
        return self

    @property
    def scale(self) -> float:
        """s at this batch of the epoch; s_max in eval mode."""
        share = min(1.0, (self.step - 1) / (self.steps - 1)) if self.steps > 1 else 1.0
        return 1 / self.s_max + (self.s_max - 1 / self.s_max) * max(0.0, share) if self.training else self.s_max

    def gates(self) -> Tensor:
        """Gates at this scale, clamped where the published gradient is: smaller ones would make products denormal and slow."""
        return torch.sigmoid((self.scale * self.embedding).clamp(-50, 50))

    def cost(self, unused: Tensor) -> Tensor:
        """The mean gate of the units that no earlier task uses (equation 2)."""
        return (self.gates() * unused).sum() / unused.sum().clamp(min=1)

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        self.step += self.training
        gates, weights = self.gates(), {}
        parameters = dict(self.backbone.named_parameters())
        for n, (name, dim) in enumerate(self.readers.items()):
            owner = self.get_buffer(f"owner{n}")
            factor = torch.where(owner >= 0, gates[owner.clamp(min=0)], 1.0)
            weight = parameters[name]
            weights[name] = weight * factor.reshape([-1 if d == dim else 1 for d in range(weight.dim())]).to(weight.dtype)
        return find_scores(functional_call(self.backbone, weights, args, kwargs))

    def compensate_gradient(self) -> None:
        """Undo the effect of s on the size of the embedding's gradient (equation 4 of the HAT paper)."""
        if self.embedding.grad is not None:
            e, s = self.embedding.detach(), self.scale
            ratio = (torch.cosh((s * e).clamp(-50, 50)) + 1) / (torch.cosh(e) + 1)
            self.embedding.grad.mul_(self.s_max / s * ratio)

    @torch.no_grad()
    def descend(self, rate: float) -> None:
        """Move the embedding against its gradient and clear that, so that no optimizer sees it."""
        if self.embedding.grad is not None and bool(self.embedding.grad.isfinite().all()):
            self.embedding.sub_(rate * self.embedding.grad).clamp_(-6, 6)
        self.embedding.grad = None


def select_open_units(channels: Channels, embedding: Tensor) -> Tensor:
    """The units whose gates are open, at least one of every group."""
    units = embedding > 0
    for group in channels.groups:
        units[group.units[embedding[group.units].argmax()]] = True
    return units
