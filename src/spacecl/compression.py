"""Make one trained model physically smaller: SPACE for a single task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from .data.targets import TargetKind
from .data.task import Source, Task
from .learner import Learner
from .learning.context import TaskContext
from .learning.core import Core, unscale_head
from .learning.method import Learned
from .learning.objective import Metric, OwnLoss
from .learning.recipe import Recipe
from .learning.record import TaskRecord
from .methods.space import SPACE
from .progress import Progress
from .structure.calling import Inputs

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def compress(
    model: nn.Module,
    data: Source,
    variance: float | Mapping[str, float] | None = None,
    *,
    example_input: Inputs,
    valid: Source | None = None,
    recipe: Recipe | None = None,
    head: str | None = None,
    shared: Sequence[str] = (),
    seed: int = 0,
    fabric: Fabric | None = None,
    progress: Progress = None,
    target: TargetKind | None = None,
    loss: OwnLoss | None = None,
    metric: Metric | None = None,
    **options: Any,
) -> tuple[nn.Module, TaskRecord]:
    """Make a trained model physically smaller (section 3.2): analyze it, prune it in one shot, retrain once.

    How small follows from a `tolerance`, a `size` or a `variance`, as with `SPACE`, whose options are those here; by default,
    0.02 of the information in the model's answers may be lost before retraining. Returns the small model and the record of its
    compression; the model given is not changed. `recipe.retrain_epochs` says how long to retrain. `target`, `loss` and
    `metric` are those of a `Task`.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> x = torch.randn(500, 4)
    >>> small, record = compress(model, (x, (x[:, 0] > 0).long()), example_input=x[:1])
    >>> small[0].out_features < 64
    True
    """
    options = {"budget": 1} | options
    learner = Learner(
        model,
        _Compression(variance=variance, **options),
        example_input=example_input,
        head=head,
        shared=shared,
        seed=seed,
        fabric=fabric,
        progress=progress,
    )
    classes = len(learner.core.blueprint.tensors()[f"{learner.head}.weight"])
    record = learner.learn(Task("model", data, valid, classes, target=target, loss=loss, metric=metric), recipe)
    return learner.subnet("model"), record


class _Compression(SPACE):
    """SPACE that compresses the model as it is, without training it first."""

    def learn(self, core: Core, task: TaskContext, trained: nn.Module | None = None) -> Learned:
        tensors, scaling = core.blueprint.tensors(), task.objective.scaling
        if scaling is not None:  # the model returns values in the user's unit
            tensors |= unscale_head(tensors, core.blueprint.head, scaling)
        network = core.blueprint.build(tensors).to(task.trainer.fabric.device)
        return super().learn(core, task, network)

    def plan(self, recipe: Recipe, tasks_before: int) -> dict[str, int]:
        return {"retrain": recipe.for_retraining().epochs}
