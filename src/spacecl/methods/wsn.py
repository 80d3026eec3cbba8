"""WSN (Kang et al. 2022): each task selects the weights with the highest scores, also among those of earlier tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from ..data.targets import TARGET_KINDS, TargetKind
from ..learning.context import TaskContext
from ..learning.core import Core
from ..learning.method import Learned, Method
from ..learning.ownership import SubnetOwnership
from ..options import option, options
from ..structure.calling import find_scores
from ..structure.tensors import Tensors


@options
class WSN(Method):
    """Learn a score for every weight together with the weights; a task's network has the highest scores of each layer.

    A network may have weights of earlier tasks, which are frozen, and leave out others, at full width: masks of single
    weights save no operations. Norms are private to each task; biases are learned with the first task and then frozen.

    >>> WSN(density=0.1).forgets
    False
    """

    density: Annotated[float, Field(gt=0, le=1)] = option(
        default=0.5, help="fraction of the weights that a task's network has, per layer"
    )
    scores: Literal["magnitude", "random"] = option(
        default="magnitude",
        help="what scores begin with at the first task: the magnitudes of the weights, or random numbers as published",
    )

    target_kinds: ClassVar[Sequence[TargetKind]] = TARGET_KINDS

    def learn(self, core: Core, task: TaskContext) -> Learned:
        blueprint = core.blueprint
        core = core if core.tasks else replace(core, ownership=SubnetOwnership())
        backbone = blueprint.build(core.initial_tensors(task.classes))
        weights = {name: backbone.get_parameter(name).detach() for name in sorted(core.prunable_weights)}
        begin = torch.abs if self.scores == "magnitude" else draw_scores
        scores = {name: core.memory[name] if name in core.memory else begin(weight) for name, weight in weights.items()}
        subnet = Subnet(backbone, scores, self.density)
        frozen = {f"backbone.{name}": mask for name, mask in core.frozen_positions("subnet").items()}
        history = task.trainer.fit(subnet, task.train, task.valid, freeze=frozen, no_decay=subnet.score_names)

        tensors, scores = blueprint.extract_tensors(backbone), subnet.extract_scores()
        selected = {name: torch.ones_like(core.shared[name], dtype=torch.bool) for name in core.shared}
        selected |= {name: select_highest(score, self.density) for name, score in scores.items()}
        committed = core.commit(tensors, core.channels.all_units(), selected)
        return Learned(replace(committed, memory=scores), history)


class Subnet(nn.Module):
    """A network with a score for every weight that can be left out, which runs with the weights of the highest scores."""

    def __init__(self, backbone: nn.Module, scores: Mapping[str, Tensor], density: float):
        super().__init__()
        self.backbone, self.density = backbone, density
        self.keys = {name: str(number) for number, name in enumerate(scores)}  # parameters' names may not contain dots
        first = {self.keys[name]: score.to(backbone.get_parameter(name), copy=True) for name, score in scores.items()}
        self.scores = nn.ParameterDict({key: nn.Parameter(score) for key, score in first.items()})

    @property
    def score_names(self) -> list[str]:
        """The parameters that are scores, by their names in this module."""
        return [f"scores.{key}" for key in self.scores]

    def extract_scores(self) -> Tensors:
        """Copies of the scores in main memory, by the names of the weights in the network."""
        return {name: self.scores[key].detach().to("cpu", copy=True) for name, key in self.keys.items()}

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        weights = {
            name: _Mask.apply(self.backbone.get_parameter(name), self.scores[key], self.density)
            for name, key in self.keys.items()
        }
        return find_scores(functional_call(self.backbone, weights, args, kwargs))


class _Mask(torch.autograd.Function):
    """Zero the weights whose scores are not among the highest; to the scores the mask passes its gradient straight through."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, score: Tensor, density: float) -> Tensor:
        mask = select_highest(score, density)
        ctx.save_for_backward(weight, score, mask)
        return weight * mask

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, score, mask = ctx.saved_tensors
        return gradient * mask, gradient * weight * score.sign(), None


def select_highest(score: Tensor, density: float) -> Tensor:
    """The positions of the scores that are highest in magnitude: the fraction `density` of them, and at least one.

    >>> select_highest(torch.tensor([0.1, -0.4, 0.3, 0.2]), 0.5)
    tensor([False,  True,  True, False])
    """
    magnitude = score.detach().abs()
    rank = 1 + round((1 - density) * (magnitude.numel() - 1))  # of the lowest that is kept, from 1
    return magnitude >= _find_lowest(magnitude.flatten(), rank)


def _find_lowest(values: Tensor, rank: int) -> Tensor:
    """The value of this rank, from 1 for the lowest. On CPUs, NumPy takes a tenth of the time that PyTorch does."""
    if values.device.type != "cpu":
        return values.kthvalue(rank).values
    numbers = values.to(torch.promote_types(values.dtype, torch.float32)).numpy()  # NumPy has no bfloat16
    return torch.as_tensor(np.partition(numbers, rank - 1)[rank - 1]).to(values.dtype)


def draw_scores(weight: Tensor) -> Tensor:
    """Draw the first scores of a weight as PyTorch draws the weights of a linear layer.

    >>> draw_scores(torch.zeros(2, 4)).abs().max() <= 0.5
    tensor(True)
    """
    bound = weight[0].numel() ** -0.5
    return torch.empty_like(weight).detach().uniform_(-bound, bound)
