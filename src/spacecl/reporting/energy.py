"""Energy and latency of inferences in results. Energy is measured where every run was measured, otherwise modelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from ..runs.result import Costs, Latency, Result, TaskCosts
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

    return lambda result: _average(get_relative_energy(result, task, source) for task in range(len(result["tasks"])))


def get_latency(costs: Costs, batch: str = "1") -> Latency | None:
    """The measured seconds of one inference; None if not measured."""
    return costs["measured"]["latency"][batch] if "measured" in costs else None


def average_relative_latency(result: Result) -> float | None:
    """The latency of a task's network at batch 1 over that of the full network, as a mean over tasks; None if not measured."""
    return _average(get_relative_latency(task["costs"]) for task in result["tasks"])


def get_relative_latency(costs: TaskCosts) -> float | None:
    """The latency of a task's network at batch 1 over that of the full network; None if not measured."""
    own, full = get_latency(costs["network"]), get_latency(costs["dense"])
    return None if own is None or full is None else own["median"] / full["median"]


def _average(values: Iterable[float | None]) -> float | None:
    """The mean of some values; None if one of them is missing."""
    numbers = list(values)
    present = [number for number in numbers if number is not None]
    return sum(present) / len(present) if len(present) == len(numbers) else None


def _is_measured(costs: Costs) -> bool:
    return "measured" in costs and bool(costs["measured"]["energy"])
