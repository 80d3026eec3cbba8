"""One trained model made physically smaller, without any of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .data.task import Source, Task
from .learner import Learner
from .learning.core import Core
from .learning.recipe import Recipe
from .learning.record import TaskContext, TaskRecord
from .methods import SPACE
from .progress import Progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def compress(
    model: nn.Module,
    data: Source,
    variance: float | Mapping[str, float] = 0.99,
    *,
    example_input: Tensor,
    valid: Source | None = None,
    recipe: Recipe | None = None,
    head: str | None = None,
    shared: Sequence[str] = (),
    seed: int = 0,
    fabric: Fabric | None = None,
    progress: Progress = None,
    **options: Any,
) -> tuple[nn.Module, TaskRecord]:
    """Make a trained classifier physically smaller (section 3.2): analyse, narrow in one shot, retrain once.

    The model is not changed. `recipe.retrain_epochs` says how long to retrain; `options` are those of `SPACE`.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> x = torch.randn(500, 4)
    >>> small, record = compress(model, (x, (x[:, 0] > 0).long()), variance=0.9, example_input=x[:1])
    >>> small[0].out_features < 64
    True
    """
    method = SPACE(variance=variance, **options)
    learner = Learner(
        model, method, example_input=example_input, head=head, shared=shared, seed=seed, fabric=fabric, progress=progress
    )
    given = learner._core.blueprint.tensors()

    def narrow(core: Core, job: TaskContext) -> tuple[Core, dict[str, Any]]:
        return method.compress(core, core.blueprint.build(given).to(learner.fabric.device), job)

    classes = len(given[f"{learner._core.blueprint.head}.weight"])
    record = learner._commit(Task("model", data, valid, classes), recipe, narrow)
    return learner.subnet("model"), record
