"""The costs of an inference: energy per task, and a table of everything that was counted or measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...runs.result import Costs, Result
from ..arms import Arm
from ..energy import BATCH, EnergySource, choose_source, get_energy, get_latency, get_relative_energy, get_relative_latency
from ..figures import Figure, Panel, Series
from ..page import Section, Table
from ..text import DASH

BUSY = 0.2  # cores that other processes may use while latency is measured


@dataclass(frozen=True)
class CostColumn:
    """A column of the tables of costs."""

    title: str
    value: Callable[[Costs], float | None]  # None: not recorded
    unit: float  # that the title names, in the result's unit
    format: str


def make_costs_section(arms: Sequence[Arm]) -> Section:
    source = choose_source(arms)
    series = [line for arm in arms for line in _make_series(arm, source)]
    figures = []
    latencies = [line for arm in arms for line in _make_latency_series(arm)]
    if latencies:
        panel = Panel("", "task", "relative to STL", latencies, integer_ticks=True, floor=0)
        figures.append(Figure("latency", "Latency of one inference per task, measured, relative to STL", [panel]))
    if series:
        panel = Panel("", "task", "relative to STL", series, integer_ticks=True, floor=0)
        figures.append(Figure("energy", f"Inference energy per task, {source}, relative to STL", [panel]))
    labels = {line.label for line in series}
    without = [arm.label for arm in arms if arm.label not in labels]
    notes = [
        f"Energy of one inference at batch {BATCH}, {source}, over that of the full network, which is what STL runs. SPACE and "
        "HAT run networks that are physically narrowed. Methods that mask single weights (PackNet, WSN) run the full network "
        "and are charged for it; masks are applied when a task is loaded and not counted.",
        "The table has the costs of each task's network, averaged over tasks and seeds. Parameters, multiply-adds, bytes moved "
        "and peak memory are counted; latency is measured (median and quartiles of many single inferences) on "
        f"{_list_machines(arms)}; energy is modelled or measured as labelled.",
        *_warn_if_busy(arms),
        *([f"The results of {', '.join(without)} do not have energy: an earlier version wrote them."] if without else []),
    ]
    return Section("energy", "Costs of an inference", notes, figures, [_make_table(arms), _make_table_by_task(arms)])


def _make_series(arm: Arm, source: EnergySource) -> list[Series]:
    """The arm's relative energies; nothing if they were not recorded."""
    values = arm.mean_by_task(lambda result, n: get_relative_energy(result, n, source))
    joules = arm.mean_by_task(lambda result, n: get_energy(result["tasks"][n]["costs"]["network"], source))
    tips = [
        f"{arm.label}, {task}: {value:.3f} of STL's, {1e6 * joule:.3g} µJ ({source})"
        for task, value, joule in zip(arm.tasks, values, joules)
    ]
    return [Series(arm.label, range(1, len(values) + 1), values, tips, arm.look)] if values else []


def _make_latency_series(arm: Arm) -> list[Series]:
    """The arm's latencies at batch 1 over those of the full network; nothing if they were not measured."""

    def relative(result: Result, task: int) -> float | None:
        return get_relative_latency(result["tasks"][task]["costs"])

    values = arm.mean_by_task(relative)
    tips = [f"{arm.label}, {task}: {value:.2f} of STL's (measured)" for task, value in zip(arm.tasks, values)]
    return [Series(arm.label, range(1, len(values) + 1), values, tips, arm.look)] if values else []


def _warn_if_busy(arms: Sequence[Arm]) -> list[str]:
    """A note if other processes were running while latency was measured."""
    busy = {
        arm.label: max(
            (cost["measured"].get("others") or 0.0)
            for result in arm.results
            for task in result["tasks"]
            for cost in (task["costs"]["network"], task["costs"]["dense"])
            if "measured" in cost
        )
        for arm in arms
        if get_latency(arm.results[0]["tasks"][0]["costs"]["network"]) is not None
    }
    names = [label for label, cores in busy.items() if cores > BUSY]
    if not names:
        return []
    return [
        f"Other processes kept up to {max(busy.values()):.1f} cores busy while the latency of {', '.join(names)} was measured: "
        "these latencies are too high, and differences between methods may be chance."
    ]


def _weights_read(costs: Costs) -> float | None:
    return costs["traffic"]["weights"] if costs["traffic"] else None


def _activations_moved(costs: Costs) -> float | None:
    return costs["traffic"]["activations"] if costs["traffic"] else None


def _peak_memory(batch: str) -> Callable[[Costs], float | None]:
    return lambda costs: costs["peak_memory"][batch] if costs["peak_memory"] else None


def _energy(batch: str, source: EnergySource) -> Callable[[Costs], float | None]:
    return lambda costs: get_energy(costs, source, batch)


def _median(batch: str) -> Callable[[Costs], float | None]:
    return lambda costs: costs["measured"]["latency"][batch]["median"] if "measured" in costs else None


def _lower_quartile(batch: str) -> Callable[[Costs], float | None]:
    return lambda costs: costs["measured"]["latency"][batch]["low"] if "measured" in costs else None


def _upper_quartile(batch: str) -> Callable[[Costs], float | None]:
    return lambda costs: costs["measured"]["latency"][batch]["high"] if "measured" in costs else None


COLUMNS = [  # of the files; the page shows the first of them that a reader needs
    CostColumn("latency at batch 1, ms (measured)", _median("1"), 1e-3, ".3g"),
    CostColumn("lower quartile at 1", _lower_quartile("1"), 1e-3, ".3g"),
    CostColumn("upper quartile at 1", _upper_quartile("1"), 1e-3, ".3g"),
    CostColumn("latency at batch 64, ms (measured)", _median("64"), 1e-3, ".3g"),
    CostColumn("lower quartile at 64", _lower_quartile("64"), 1e-3, ".3g"),
    CostColumn("upper quartile at 64", _upper_quartile("64"), 1e-3, ".3g"),
    CostColumn("parameters", lambda costs: costs["parameters"], 1, ",.0f"),
    CostColumn("multiply-adds", lambda costs: costs["multiply_adds"], 1, ",.0f"),
    CostColumn("weights read, kB", _weights_read, 1e3, ",.1f"),
    CostColumn("activations moved, kB", _activations_moved, 1e3, ",.1f"),
    CostColumn("peak memory at batch 1, kB", _peak_memory("1"), 1e3, ",.1f"),
    CostColumn("peak memory at batch 64, kB", _peak_memory("64"), 1e3, ",.1f"),
    CostColumn("energy at batch 1, µJ (modelled)", _energy("1", "modelled"), 1e-6, ".4g"),
    CostColumn("energy at batch 64, µJ (modelled)", _energy("64", "modelled"), 1e-6, ".4g"),
    CostColumn("energy at batch 1, µJ (measured)", _energy("1", "measured"), 1e-6, ".4g"),
    CostColumn("energy at batch 64, µJ (measured)", _energy("64", "measured"), 1e-6, ".4g"),
]


def _make_table(arms: Sequence[Arm]) -> Table:
    """A row for each arm, and one for the full network."""
    tasks = {arm.label: [task["costs"] for result in arm.results for task in result["tasks"]] for arm in arms}
    rows = [([label], [costs["network"] for costs in entries]) for label, entries in tasks.items()]
    rows.append((["full network"], [costs["dense"] for entries in tasks.values() for costs in entries]))
    return _format_table("costs", ["method"], rows)


def _make_table_by_task(arms: Sequence[Arm]) -> Table:
    rows = [
        ([arm.label, task], [result["tasks"][n]["costs"]["network"] for result in arm.results])
        for arm in arms
        for n, task in enumerate(arm.tasks)
    ]
    return _format_table("costs-by-task", ["method", "task"], rows, folded=True)


def _format_table(name: str, titles: list[str], rows: list[tuple[list[str], list[Costs]]], folded: bool = False) -> Table:
    """Make a table from rows of names and the networks whose costs are averaged.

    On the page, quartiles stand behind their median, and columns without any value are left out; the file has all.
    """
    means = [[_mean(networks, column) for column in COLUMNS] for _, networks in rows]
    numbers = [[*names, *("" if mean is None else repr(mean) for mean in row)] for (names, _), row in zip(rows, means)]
    exact = Table(name, name.replace("-", " "), [*titles, *(column.title for column in COLUMNS)], numbers)
    shown = [
        place
        for place, column in enumerate(COLUMNS)
        if "quartile" not in column.title and any(row[place] is not None for row in means)
    ]
    texts = [[*names, *(_format_cell(row, place) for place in shown)] for (names, _), row in zip(rows, means)]
    return Table(name, exact.caption, [*titles, *(COLUMNS[place].title for place in shown)], texts, folded, exact=exact)


def _format_cell(row: Sequence[float | None], place: int) -> str:
    """A mean, with the quartiles that follow it if there are any."""
    mean, style = row[place], COLUMNS[place].format
    if mean is None:
        return DASH
    quartiles = [row[n] for n in (place + 1, place + 2) if n < len(COLUMNS) and "quartile" in COLUMNS[n].title]
    present = [format(value, style) for value in quartiles if value is not None]
    return format(mean, style) + (f" ({' to '.join(present)})" if present else "")


def _mean(networks: Sequence[Costs], column: CostColumn) -> float | None:
    """The mean of one cost over some networks; None if it is not recorded for all of them."""
    values = [column.value(costs) for costs in networks]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) / column.unit if len(known) == len(values) else None


def _list_machines(arms: Sequence[Arm]) -> str:
    costs = [task["costs"]["network"] for arm in arms for result in arm.results for task in result["tasks"]]
    measurements = [cost["measured"] for cost in costs if "measured" in cost]
    machines = sorted({f"{entry['machine']}, {entry['threads']} threads" for entry in measurements})
    return " and ".join(machines) or "no machine yet (spacecl compare --resume --out ... measures it)"
