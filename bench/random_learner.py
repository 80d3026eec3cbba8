"""A learner with tasks of given widths and random weights: enough to measure speed, and it needs no training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from spacecl import SPACE, Learner, TaskRecord


def make_learner(model: nn.Module, example: Tensor, widths: Sequence[Sequence[int]], classes: int = 10) -> Learner:
    """Return a learner with a task for each entry of `widths`, which has the number of units of every group."""
    learner = Learner(model, SPACE(), example_input=example)
    core, records = learner.core, {}
    for number, filters in enumerate(widths):
        keep = core.committed_units.clone()
        for group, count in zip(core.channels.groups, filters):
            keep[group.units[:count]] = True
        core = core.commit(core.channels.gather(core.initial_tensors(classes), keep), keep)
        name = f"task {number + 1}"
        records[name] = TaskRecord(
            name, classes, None, 0.0, 0.0, core.digest(number), core.channels.widths(keep), 0, core.size()
        )
    learner._state = replace(learner._state, core=core, records=records)
    return learner
