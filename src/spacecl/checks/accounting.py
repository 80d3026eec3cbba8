"""Checks that sizes and operations are those of the networks themselves, counted again here."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..learner import Learner
from ..runs.costs import multiply_adds
from .models import Family
from .subject import Subject, require


def check_sizes(subject: Subject, family: Family, folder: Path) -> None:
    """The parameters of records, `learner.size` and the operations are those of the networks that the learner returns."""
    learner, full = subject.teach(family), subject.begin(family).full()
    whole = multiply_adds(full, family.example)
    for task, record in learner.records.items():
        network = learner.subnet(task)
        count, operations = sum(p.numel() for p in network.parameters()), multiply_adds(network, family.example)
        require(record.parameters == count, f"task {task} has {count} parameters, but its record has {record.parameters}")
        is_full = list(record.widths.values()) == list(learner.widths.values())
        what = "as many as" if is_full else "fewer than"
        require(
            operations == whole if is_full else operations < whole,
            f"the network of task {task} has {operations} multiply-adds; {what} the full network, {whole}, are expected",
        )
    size = count_size(learner)
    require(abs(learner.size - size) < 1e-9, f"learner.size is {learner.size}; counted by hand it is {size}")
    parts = {"weights", "own", "masks", "memory", "signatures"}
    require(set(learner.storage) == parts, f"learner.storage has {', '.join(learner.storage)}, not {', '.join(sorted(parts))}")


def count_size(learner: Learner) -> float:
    """The size of a learner, counted from the networks of its tasks, position by position."""
    core, networks = learner.core, [learner.subnet(task) for task in learner.tasks]
    sizes = {n: p.numel() for n, p in learner.full().named_parameters() if not n.startswith(f"{learner.head}.")}
    used = 0
    for name, size in sizes.items():
        positions = {name: torch.arange(size).reshape(core.channels.shapes[name])}
        private: list[Tensor] = []
        shared: set[int] = set()
        for number, network in enumerate(networks):
            weight = network.get_parameter(name).detach()
            if name in core.tasks[number].private:
                private += [] if any(torch.equal(weight, other) for other in private) else [weight]
                continue
            where = core.channels.gather(positions, core.tasks[number].units)[name]
            require(where.shape == weight.shape, f"{name} of task {number} has other positions than its units")
            ones = {name: torch.ones(core.channels.shapes[name])}
            has = core.channels.gather(core.ownership.view(ones, number), core.tasks[number].units)[name].bool()
            shared |= set(where[has].tolist())
        used += len(shared) + sum(weight.numel() for weight in private)
    return used / sum(sizes.values())
