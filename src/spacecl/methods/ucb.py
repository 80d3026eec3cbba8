"""Uncertainty-guided continual Bayesian networks (Ebrahimi et al. 2020): what is certain learns slowly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ..learning.core import Core
from ..learning.recipe import Recipe
from ..learning.record import TaskContext, told
from ..structure.channels import Channels
from ..validation import integer, number, settle


@dataclass(frozen=True)
class UCB:
    """Learn a mean and a deviation for every weight; after the first task, a mean's rate is scaled by its deviation.

    The loss is that of Bayes by Backprop: cross-entropy on sampled weights plus `kl` times the divergence from a prior
    that mixes a wide and a narrow normal distribution, per training example. Predictions use the means.

    >>> UCB(samples=2).rho
    -3.0
    """

    samples: int = 10  # draws of the weights per step
    rho: float = -3.0  # the deviation is log(1 + exp(rho)); this is where it begins
    kl: float = 0.02
    prior_share: float = 0.25  # of the wide part
    prior_wide: float = 1.0  # deviation of the wide part
    prior_narrow: float = math.exp(-6)

    forgets: ClassVar[bool] = True
    needs_data: ClassVar[bool] = False

    def __post_init__(self) -> None:
        rules = {
            "samples": integer(1),
            "rho": number(lambda v: -20 <= v <= 5, "from -20 to 5"),
            "kl": number(lambda v: v >= 0, "at least 0"),
            "prior_share": number(lambda v: 0 < v < 1, "between 0 and 1"),
            "prior_wide": number(lambda v: v > 0, "above 0"),
            "prior_narrow": number(lambda v: v >= 1e-6, "at least 0.000001"),
        }
        settle(self, rules)

    def check(self, channels: Channels) -> None:
        pass

    def plan(self, recipe: Recipe, number: int) -> dict[str, int]:
        return {"train": recipe.epochs}

    def learn(self, core: Core, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        backbone = core.blueprint.build(core.start(job.classes))
        heads = core.channels.heads
        names = [n for n, p in backbone.named_parameters() if p.requires_grad and (n in core.tensors or n in heads)]
        bayesian = Bayesian(backbone, names, self.rho, core.memory, self.samples)
        slow = {name: F.softplus(rho).to(job.trainer.fabric.device) for name, rho in core.memory.items()}  # none at first
        before: dict[str, Tensor] = {}

        def loss(running: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            logits = running(x).flatten(0, 1)  # (samples * rows, classes)
            return F.cross_entropy(logits, y.repeat(self.samples)) + self.kl / len(job.train) * self._divergence(bayesian)

        def before_step(module: nn.Module) -> None:
            before.update({name: bayesian.mean(name).detach().clone() for name in slow})

        @torch.no_grad()
        def after_step(module: nn.Module) -> None:
            for name, old in before.items():  # whatever the optimiser, its step times the deviation
                mean = bayesian.mean(name)
                mean.copy_(torch.addcmul(old, slow[name].to(mean), mean - old))
            bayesian.drawn, bayesian.spread = {}, {}  # and with them the graph of this step

        history = job.trainer.fit(bayesian, job.train, job.valid, loss=loss, before_step=before_step, after_step=after_step)
        memory = {name: bayesian.rhos[key].detach().to("cpu", copy=True) for name, key in bayesian.keys.items()}
        done = core.rewrite(core.blueprint.extract_tensors(backbone))
        return replace(done, memory={n: rho for n, rho in memory.items() if n in core.tensors}), told(history)

    def _divergence(self, bayesian: Bayesian) -> Tensor:
        """E log q(w), which is exact, less log p(w), the mean over the weights that were drawn last."""
        total = torch.zeros((), device=next(bayesian.parameters()).device)
        for name, drawn in bayesian.drawn.items():  # (samples, ...)
            entropy = (bayesian.spread[name].log() + 0.5 * math.log(2 * math.pi * math.e)).sum()
            total = total - entropy - self._log_prior(drawn).sum() / self.samples
        return total

    def _log_prior(self, weight: Tensor) -> Tensor:
        """log of the mixture as log wide + log(1 + narrow / wide), cut before it makes denormal, slow numbers."""
        square = weight.square()
        wide, narrow = 0.5 / self.prior_wide**2, 0.5 / self.prior_narrow**2
        ratio = (1 - self.prior_share) * self.prior_wide / (self.prior_share * self.prior_narrow)
        first = math.log(self.prior_share / (self.prior_wide * math.sqrt(2 * math.pi)))
        return first - wide * square + F.softplus((math.log(ratio) + (wide - narrow) * square).clamp(min=-30))


class Bayesian(nn.Module):
    """A network whose weights are drawn anew, several times, in every forward pass of training; else it has their means."""

    def __init__(self, backbone: nn.Module, names: list[str], rho: float, known: Mapping[str, Tensor], samples: int):
        super().__init__()
        self.backbone, self.samples = backbone, samples
        self.means = {name: p for name, p in backbone.named_parameters() if name in names}
        self.keys = {name: str(number) for number, name in enumerate(names)}  # parameters' names may not hold dots
        first = {
            name: known[name].to(mean) if name in known else torch.full_like(mean, rho) for name, mean in self.means.items()
        }
        self.rhos = nn.ParameterDict({self.keys[name]: nn.Parameter(values.clone()) for name, values in first.items()})
        for rho in self.rhos.values():
            rho.undecayed = True  # type: ignore[attr-defined]  # decay would make every weight uncertain
        self.drawn: dict[str, Tensor] = {}  # weights of the last forward pass, (samples, ...)
        self.spread: dict[str, Tensor] = {}  # their deviations

    def mean(self, name: str) -> Tensor:
        return self.means[name]

    def deviation(self, name: str) -> Tensor:
        return F.softplus(self.rhos[self.keys[name]])

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (rows, classes), in training (samples, rows, classes)."""
        if not self.training:
            return self.backbone(x)
        for name, mean in self.means.items():
            noise = torch.randn(self.samples, *mean.shape, dtype=mean.dtype, device=mean.device)
            self.spread[name] = self.deviation(name)
            self.drawn[name] = torch.addcmul(mean, self.spread[name], noise)
        parts = [{name: drawn[sample] for name, drawn in self.drawn.items()} for sample in range(self.samples)]
        return torch.stack([functional_call(self.backbone, part, (x,)) for part in parts])
