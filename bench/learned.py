"""A learner with tasks of given widths and random weights: what speed depends on, without the training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from spacecl import SPACE, Learner, TaskRecord

AUTHORS = ((16, 18, 27, 18, 63), (23, 64, 128, 110, 216))  # filters of the first and last task of their CIFAR-100 run


def learner(model: nn.Module, widths: Sequence[Sequence[int]]) -> Learner:
    made = Learner(model, SPACE(), example_input=torch.zeros(1, 3, 32, 32))
    core, records = made._core, {}
    for number, filters in enumerate(widths):
        keep = core.committed.clone()
        for group, count in zip(core.channels.groups, filters):
            keep[group.units[:count]] = True
        core = core.commit(core.channels.gather(core.start(10), keep), keep)
        name = f"task {number + 1}"
        records[name] = TaskRecord(name, 10, None, 0.0, core.digest(number), core.channels.widths(keep), 0, core.size())
    made._state = core, records
    return made
