"""The energy of inferences in results: measured where every run was measured, otherwise modelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ..runs.result import Costs, Result
from .arms import Arm

BATCH = "64"  # as in the paper
EnergySource = Literal["modelled", "measured"]


def choose_source(arms: Sequence[Arm]) -> EnergySource:
    """Say whether energy can be shown as measured: only if it was measured in every run."""
    tasks = [task["costs"] for arm in arms for result in arm.results for task in result["tasks"]]
    costs = [cost for task in tasks for cost in (task["network"], task["dense"])]
    return "measured" if all(_is_measured(cost) for cost in costs) else "modelled"


def get_energy(costs: Costs, source: EnergySource, batch: str = BATCH) -> float | None:
    """Joules of one inference; None if not recorded."""
    if source == "modelled":
        energies = costs["energy_modelled"]
    else:
        energies = costs["measured"]["energy"] if "measured" in costs else None
    return energies[batch] if energies else None


def get_relative_energy(result: Result, task: int, source: EnergySource) -> float | None:
    """The energy of a task's network over that of the full network with the task's head, which is what STL runs."""
    costs = result["tasks"][task]["costs"]
    energy, full = get_energy(costs["network"], source), get_energy(costs["dense"], source)
    return energy / full if energy is not None and full is not None else None


def average_relative_energy(source: EnergySource) -> Callable[[Result], float | None]:
    """Return a function for the mean over tasks of a run's relative energy."""

    def average(result: Result) -> float | None:
        energies = [get_relative_energy(result, task, source) for task in range(len(result["tasks"]))]
        present = [energy for energy in energies if energy is not None]
        return sum(present) / len(present) if len(present) == len(energies) else None

    return average


def _is_measured(costs: Costs) -> bool:
    return "measured" in costs and bool(costs["measured"]["energy"])
