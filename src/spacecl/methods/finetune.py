"""Plain fine-tuning: every task trains the whole network further. Nothing protects earlier tasks: the lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..data.targets import TARGET_KINDS, TargetKind
from ..learning.context import TaskContext
from ..learning.core import Core
from ..learning.method import Learned, Method
from ..options import options


@options
class FineTune(Method):
    """Train the whole network on each task in turn, with a head and norms for each. Earlier tasks are forgotten.

    >>> FineTune().forgets
    True
    """

    forgets: ClassVar[bool] = True
    target_kinds: ClassVar[Sequence[TargetKind]] = TARGET_KINDS

    def learn(self, core: Core, task: TaskContext) -> Learned:
        module = core.blueprint.build(core.initial_tensors(task.classes))
        history = task.trainer.fit(module, task.train, task.valid)
        return Learned(core.replace_weights(core.blueprint.extract_tensors(module)), history)
