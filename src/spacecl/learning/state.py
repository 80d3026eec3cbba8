"""What a learner knows, as one value that is replaced in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from ..data.targets import Targets
from ..data.task_data import Data
from ..errors import TaskError
from ..validation import show
from .core import Core
from .method import Method
from .objective import Objective
from .record import TaskRecord
from .saved import SavedTask
from .seal import Seal


@dataclass(frozen=True, eq=False)
class State:
    """All that a learner knows at one moment.

    A learner replaces its state in one assignment, and whoever queries it takes the state once, at the start. So neither a
    thread nor an interrupt can meet the tasks of one moment with the networks of another.
    """

    method: Method
    core: Core
    records: Mapping[str, TaskRecord] = field(default_factory=dict)  # in the order of learning
    data: Mapping[str, tuple[Data, Data]] = field(default_factory=dict)  # of learned tasks, for a method that needs them
    objectives: Mapping[str, Objective] = field(default_factory=dict)  # of tasks whose data this process has seen
    seal: Seal | None = None  # of all tasks; None if it has not been made, or if learning changes earlier tasks
    # Built on demand from this core, and gone with it: `dataclasses.replace` begins with none.
    networks: dict[str, nn.Module] = field(default_factory=dict, init=False)
    saved: dict[str, SavedTask] = field(default_factory=dict, init=False)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.records)}

    def number(self, task: str) -> int:
        """The place of a task in the order of learning."""
        if not isinstance(task, str) or task not in self.records:
            raise TaskError(f"No such task: {show(task)}. {self.list_tasks()}")
        return self._numbers[task]

    def list_tasks(self) -> str:
        """A sentence that names the tasks, for error messages."""
        return f"The tasks are: {', '.join(self.records)}." if self.records else "No task has been learned yet."

    def network(self, task: str, device: torch.device) -> nn.Module:
        """A task's network, built when it is first needed; two threads that need it at once get the same one."""
        if not isinstance(task, str) or task not in self.networks:
            return self.networks.setdefault(task, self.core.network(self.number(task)).to(device))
        return self.networks[task]

    def objective(self, task: str) -> Objective:
        """What a task's network was trained for. A loss or metric of the user's own is unknown in another process."""
        number, record = self.number(task), self.records[task]
        targets = Targets(record.target_kind, record.classes, record.flat)
        return self.objectives.get(task, Objective(targets, self.core.tasks[number].scaling))

    def with_networks_of(self, other: State) -> State:
        """Take over the networks of another state that are the same to the bit, by their digests, and what is saved of them.

        Returns this state.
        """
        self.saved.update(other.saved)  # whoever reads them compares the tasks
        for name, network in dict(other.networks).items():
            if name in self.records and self.records[name].digest == other.records[name].digest:
                self.networks[name] = network
        return self
