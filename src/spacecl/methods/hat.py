"""Hard attention to the task (Serra et al. 2018): each task learns a gate for every unit, nearly 0 or 1 in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..learning.core import Core
from ..learning.freezing import make_freeze_hook
from ..learning.recipe import Recipe
from ..learning.record import TaskContext, told
from ..learning.trainer import cross_entropy
from ..structure.channels import Channels
from ..validation import number, settle


@dataclass(frozen=True)
class HAT:
    """Learn gates sigmoid(s e) with the weights, s rising from 1 / s_max to s_max over every epoch; keep what is open.

    `compressibility` is the price of opening units that no earlier task has. When the task is learned, gates are set to 0
    or 1 and its network is narrowed to the open units; weights between units of a task's network are fixed.

    >>> HAT(compressibility=0.5).s_max
    400.0
    """

    compressibility: float = 0.75
    s_max: float = 400.0
    embedding_lr: float = 0.05  # of the plain descent by which gates learn, whatever the weights' optimiser

    forgets: ClassVar[bool] = False
    needs_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        rules = {
            "compressibility": number(lambda v: v >= 0, "at least 0"),
            "s_max": number(lambda v: 1 <= v <= 1e6, "from 1 to 1,000,000"),
            "embedding_lr": number(lambda v: v >= 0, "at least 0"),
        }
        settle(self, rules)

    def check(self, channels: Channels) -> None:
        pass

    def plan(self, recipe: Recipe, number: int) -> dict[str, int]:
        return {"train": recipe.epochs}

    def learn(self, core: Core, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        trainer, channels = job.trainer, core.channels
        backbone = core.blueprint.build(core.start(job.classes))
        gated = Gated(backbone, channels, self.s_max, job.train.steps(trainer.recipe.batch_size))
        new = (~core.committed).float().to(trainer.fabric.device)
        put_back = make_freeze_hook(gated, {f"backbone.{name}": mask for name, mask in core.held("subnet").items()})

        def loss(running: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(running, x, y) + self.compressibility * gated.price(new)

        def before_step(module: nn.Module) -> None:
            gated.compensate_gradient()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 10_000)
            gated.descend(self.embedding_lr)

        def after_step(module: nn.Module) -> None:
            if put_back is not None:
                put_back(module)

        history = trainer.fit(gated, job.train, job.valid, loss=loss, before_step=before_step, after_step=after_step)
        keep = opened(channels, gated.embedding.detach().cpu()) if history else channels.all_units()
        keep = trainer.fabric.broadcast(keep)
        return core.commit(channels.gather(core.blueprint.extract_tensors(backbone), keep), keep), told(history)


class Gated(nn.Module):
    """A network whose units pass through gates where they are read, which is the same as gating the weights that read them."""

    def __init__(self, backbone: nn.Module, channels: Channels, s_max: float, steps: int):
        super().__init__()
        self.backbone, self.s_max, self.steps, self.step = backbone, s_max, steps, 0
        self.embedding = nn.Parameter(torch.randn(channels.units, dtype=next(backbone.parameters()).dtype))
        self.readers = list(dict.fromkeys(place.weight for place in channels.readings))
        for n, weight in enumerate(self.readers):
            self.register_buffer(f"owner{n}", channels.dims[weight][1])

    def train(self, mode: bool = True) -> Gated:
        super().train(mode)
        if mode:
            self.step = 0  # every epoch anneals anew
        return self

    @property
    def scale(self) -> float:
        """s at this batch of the epoch, and s_max outside of training."""
        share = min(1.0, (self.step - 1) / (self.steps - 1)) if self.steps > 1 else 1.0
        return 1 / self.s_max + (self.s_max - 1 / self.s_max) * max(0.0, share) if self.training else self.s_max

    def gates(self) -> Tensor:
        """Gates at this scale, cut where the published gradient is: smaller ones would make denormal, slow products."""
        return torch.sigmoid((self.scale * self.embedding).clamp(-50, 50))

    def price(self, new: Tensor) -> Tensor:
        """The mean gate of the units that are new, which no earlier task has (equation 2)."""
        return (self.gates() * new).sum() / new.sum().clamp(min=1)

    def forward(self, x: Tensor) -> Tensor:
        self.step += self.training
        gates, weights = self.gates(), {}
        own = dict(self.backbone.named_parameters())
        for n, name in enumerate(self.readers):
            owner = self.get_buffer(f"owner{n}")
            factor = torch.where(owner >= 0, gates[owner.clamp(min=0)], 1.0)
            weights[name] = own[name] * factor.reshape(1, -1, *[1] * (own[name].dim() - 2)).to(own[name].dtype)
        return functional_call(self.backbone, weights, (x,))

    def compensate_gradient(self) -> None:
        """Undo what s does to the size of the embedding's gradient (equation 4 of the HAT paper)."""
        if self.embedding.grad is not None:
            e, s = self.embedding.detach(), self.scale
            ratio = (torch.cosh((s * e).clamp(-50, 50)) + 1) / (torch.cosh(e) + 1)
            self.embedding.grad.mul_(self.s_max / s * ratio)

    @torch.no_grad()
    def descend(self, rate: float) -> None:
        """Move the embedding against its gradient, which is then spent: no optimiser sees it."""
        if self.embedding.grad is not None and bool(self.embedding.grad.isfinite().all()):
            self.embedding.sub_(rate * self.embedding.grad).clamp_(-6, 6)
        self.embedding.grad = None


def opened(channels: Channels, embedding: Tensor) -> Tensor:
    """The units whose gates are open, at least one of every group."""
    keep = embedding > 0
    for group in channels.groups:
        keep[group.units[embedding[group.units].argmax()]] = True
    return keep
