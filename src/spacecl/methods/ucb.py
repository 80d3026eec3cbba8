"""Uncertainty-guided continual Bayesian networks (Ebrahimi et al. 2020): what is certain learns slowly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from ..data.targets import TARGET_KINDS, TargetKind
from ..learning.context import TaskContext
from ..learning.core import Core
from ..learning.method import Learned, Method
from ..learning.trainer import Loss
from ..options import NonNegativeFloat, PositiveFloat, PositiveInt, option, options
from ..structure.calling import Inputs, call_model, find_scores


@options
class UCB(Method):
    """Learn a mean and a deviation for every weight; after the first task, a mean's rate is scaled by its deviation.

    The loss is that of Bayes by Backprop: the task's on sampled weights plus, per training example, the divergence from
    a prior that mixes a wide and a narrow normal distribution. Predictions use the means.

    >>> UCB(samples=2).rho
    -3.0
    """

    samples: PositiveInt = option(default=10, help="draws of the weights per step")
    rho: Annotated[float, Field(ge=-20, le=5)] = option(
        default=-3.0, help="initial rho; the deviation of a weight is log(1 + exp(rho))"
    )
    kl: NonNegativeFloat = option(default=0.02, help="weight of the divergence from the prior")
    prior_share: Annotated[float, Field(gt=0, lt=1)] = option(default=0.25, help="fraction of the wide part in the prior")
    prior_wide: PositiveFloat = option(default=1.0, help="standard deviation of the wide part of the prior")
    prior_narrow: Annotated[float, Field(ge=1e-6)] = option(
        default=math.exp(-6), help="standard deviation of the narrow part of the prior"
    )

    forgets: ClassVar[bool] = True
    target_kinds: ClassVar[Sequence[TargetKind]] = TARGET_KINDS

    def learn(self, core: Core, task: TaskContext) -> Learned:
        backbone = core.blueprint.build(core.initial_tensors(task.classes))
        heads = core.channels.heads
        names = [n for n, p in backbone.named_parameters() if p.requires_grad and (n in core.shared or n in heads)]
        bayesian = Bayesian(backbone, names, self.rho, core.memory, self.samples)
        before: dict[str, Tensor] = {}  # means before the step
        deviations: dict[str, Tensor] = {}  # of weights that earlier tasks have learned

        def make_loss(module: nn.Module) -> Loss:
            device = task.trainer.fabric.device
            deviations.update({name: F.softplus(rho).to(device) for name, rho in core.memory.items()})
            return loss

        def loss(wrapped: nn.Module, x: Inputs, y: Tensor) -> Tensor:
            outputs = call_model(wrapped, x).flatten(0, 1)  # (samples * rows, outputs)
            divergence = self.kl / len(task.train) * self._divergence(bayesian)
            return task.objective.loss(outputs, y.repeat(self.samples, *[1] * (y.dim() - 1))) + divergence

        def before_step() -> None:
            before.update({name: bayesian.mean(name).detach().clone() for name in deviations})

        @torch.no_grad()
        def after_step() -> None:
            for name, old in before.items():  # whatever the optimizer, its step times the deviation
                mean = bayesian.mean(name)
                mean.copy_(torch.addcmul(old, deviations[name].to(mean), mean - old))
            bayesian.clear()

        history = task.trainer.fit(
            bayesian,
            task.train,
            task.valid,
            make_loss=make_loss,
            no_decay=bayesian.rho_names,  # decay would make every weight uncertain
            before_step=before_step,
            after_step=after_step,
        )
        memory = {name: bayesian.rhos[key].detach().to("cpu", copy=True) for name, key in bayesian.keys.items()}
        core = core.replace_weights(core.blueprint.extract_tensors(backbone))
        return Learned(replace(core, memory={name: rho for name, rho in memory.items() if name in core.shared}), history)

    def _divergence(self, bayesian: Bayesian) -> Tensor:
        """E log q(w), which is exact, minus log p(w), the mean over the weights that were drawn last."""
        total = torch.zeros((), device=next(bayesian.parameters()).device)
        for name, drawn in bayesian.drawn.items():  # (samples, ...)
            entropy = (bayesian.spread[name].log() + 0.5 * math.log(2 * math.pi * math.e)).sum()
            total = total - entropy - self._log_prior(drawn).sum() / self.samples
        return total

    def _log_prior(self, weight: Tensor) -> Tensor:
        """log of the mixture as log wide + log(1 + narrow / wide), clamped before it makes denormal, slow numbers."""
        square = weight.square()
        wide, narrow = 0.5 / self.prior_wide**2, 0.5 / self.prior_narrow**2
        ratio = (1 - self.prior_share) * self.prior_wide / (self.prior_share * self.prior_narrow)
        first = math.log(self.prior_share / (self.prior_wide * math.sqrt(2 * math.pi)))
        return first - wide * square + F.softplus((math.log(ratio) + (wide - narrow) * square).clamp(min=-30))


class Bayesian(nn.Module):
    """A network that draws its weights several times in every forward pass of training, and has their means otherwise."""

    def __init__(self, backbone: nn.Module, names: list[str], rho: float, known: Mapping[str, Tensor], samples: int):
        super().__init__()
        self.backbone, self.samples = backbone, samples
        self.keys = {name: str(number) for number, name in enumerate(names)}  # parameters' names may not contain dots
        first = {
            name: known[name].to(mean) if name in known else torch.full_like(mean, rho) for name, mean in self.means.items()
        }
        self.rhos = nn.ParameterDict({self.keys[name]: nn.Parameter(values.clone()) for name, values in first.items()})
        self.drawn: dict[str, Tensor] = {}  # weights of the last forward pass, (samples, ...)
        self.spread: dict[str, Tensor] = {}  # their deviations

    @property
    def means(self) -> dict[str, nn.Parameter]:
        """The parameters that are drawn, by their names in the network. A move to some devices replaces them."""
        return {name: p for name, p in self.backbone.named_parameters() if name in self.keys}

    @property
    def rho_names(self) -> list[str]:
        """The parameters of the deviations, by their names in this module."""
        return [f"rhos.{key}" for key in self.rhos]

    def clear(self) -> None:
        """Forget the weights of the last forward pass, and with them the graph of that step."""
        self.drawn, self.spread = {}, {}

    def mean(self, name: str) -> Tensor:
        return self.backbone.get_parameter(name)

    def deviation(self, name: str) -> Tensor:
        return F.softplus(self.rhos[self.keys[name]])

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """Outputs of shape (rows, outputs), in training (samples, rows, outputs)."""
        if not self.training:
            return find_scores(self.backbone(*args, **kwargs))
        for name, mean in self.means.items():
            noise = torch.randn(self.samples, *mean.shape, dtype=mean.dtype, device=mean.device)
            self.spread[name] = self.deviation(name)
            self.drawn[name] = torch.addcmul(mean, self.spread[name], noise)
        parts = [{name: drawn[sample] for name, drawn in self.drawn.items()} for sample in range(self.samples)]
        return torch.stack([find_scores(functional_call(self.backbone, part, args, kwargs)) for part in parts])
