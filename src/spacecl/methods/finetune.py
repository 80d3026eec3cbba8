"""Plain fine-tuning: every task trains the whole network on. Nothing protects earlier tasks: the floor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..channels import Channels
from ..core import Core
from ..record import Job, spent


@dataclass(frozen=True)
class FineTune:
    """Train the whole network on each task in turn, with a head and norms for each. Earlier tasks are forgotten.

    >>> FineTune().forgets
    True
    """

    forgets: ClassVar[bool] = True
    phases: ClassVar[tuple[str, ...]] = ("train",)

    def check(self, channels: Channels) -> None:
        pass

    def learn(self, core: Core, job: Job) -> tuple[Core, dict[str, Any]]:
        channels = core.channels
        module = core.blueprint.build(core.start(job.classes))
        history = job.trainer.fit(module, job.train, job.valid)
        found = core.blueprint.taken(module)
        own = {name: found[name] for name in sorted(channels.own)}
        tensors = {name: found[name] for name in core.tensors}
        keeps = (channels.everything(),) * (len(core.own) + 1)
        return replace(core, tensors=tensors, keeps=keeps, own=(*core.own, own)), {
            "history": tuple(history),
            "seconds": {"train": spent(history)},
        }
