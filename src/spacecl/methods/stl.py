"""Single-task learning: a full network for every task. Nothing is shared and nothing is forgotten, at the price of size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..data.targets import TARGET_KINDS, TargetKind
from ..learning.context import TaskContext
from ..learning.core import Core
from ..learning.method import Learned, Method
from ..learning.ownership import CommittedTask
from ..options import options


@options
class STL(Method):
    """Train a full network of its own for every task, each from the weights that the learner was given.

    >>> STL().forgets
    False
    """

    target_kinds: ClassVar[Sequence[TargetKind]] = TARGET_KINDS

    def learn(self, core: Core, task: TaskContext) -> Learned:
        blueprint, channels = core.blueprint, core.channels
        initial = {**core.shared, **core.memory} if core.tasks else blueprint.tensors()  # every task begins with these
        module = blueprint.build(initial | blueprint.new_head(blueprint.tensors(), task.classes))
        history = task.trainer.fit(module, task.train, task.valid)
        committed = CommittedTask(channels.all_units(), private=blueprint.extract_tensors(module))
        core = core.add(
            committed,
            shared={name: initial[name] for name in core.shared},
            memory={name: initial[name] for name in sorted(channels.private - channels.heads)},
        )
        return Learned(core, history)
