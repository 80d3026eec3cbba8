"""The report's first table, as in the paper's Table 1. To change what it shows, change `list_columns`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..progress import SHARES, format_duration
from ..runs.costs import ENERGY_MODEL
from ..runs.result import Result
from .arms import REFERENCES, Arm, Comparison
from .energy import BATCH, EnergySource, average_relative_energy, average_relative_latency, choose_source
from .labels import title_method
from .page import Table
from .text import DASH, capitalize

SEEDS = 3  # with fewer, no figure is marked as the best


@dataclass(frozen=True)
class Column:
    """A column of the table: the mean over seeds of one value of a run and, if `deviation`, its standard deviation."""

    title: str
    value: Callable[[Result], float | None]  # None: not recorded
    format: Callable[[float], str]
    deviation: bool = True
    better: int = 0  # 1 if more is better, -1 if less is; 0 if the best is not marked


def list_columns(source: EnergySource, metric: str) -> list[Column]:
    """The columns between the method's name and the number of runs."""
    factor, unit, number = (100, ", %", "{:.2f}".format) if metric in SHARES else (1, "", "{:.4f}".format)
    return [
        Column(f"{metric}{unit}", lambda result: factor * result["average_score"], number, better=1),
        Column("network size", lambda result: result["size"], "{:.3f}".format, better=-1),
        Column("latency / STL (measured)", average_relative_latency, "{:.2f}".format, better=-1),
        Column(f"energy / STL ({source})", average_relative_energy(source), "{:.3f}".format, better=-1),
        Column(f"forgetting{unit}", lambda result: factor * result["forgetting"], number),
        Column("task inferred, %", _get_inferred, "{:.2f}".format, better=1),
        Column("training time", _training_seconds, format_duration, deviation=False),
    ]


def make_summary_table(comparison: Comparison) -> Table:
    """The table, with a row for each arm; columns of which no run has a value are left out."""
    arms = comparison.arms
    columns = [
        column
        for column in list_columns(choose_source(arms), comparison.metric)
        if any(arm.mean(column.value) is not None for arm in arms)
    ]
    titles = ["method", *(column.title for column in columns), "runs"]
    rows = [[arm.label, *(_format_cell(arm, column) for column in columns), str(len(arm.results))] for arm in arms]
    best = {(row, number) for number, column in enumerate(columns, 1) if column.better for row in find_best(arms, column)}
    return Table("table", "comparison", titles, rows, best=frozenset(best), exact=_make_exact_table(arms, columns))


def find_best(arms: Sequence[Arm], column: Column) -> list[int]:
    """The rows whose value is the best, or whose difference from it is within the deviation over seeds.

    Only arms with three seeds or more count, and no reference methods. Differences are paired: of runs with the same seed.
    """
    values = {
        row: {result["seed"]: column.value(result) for result in arm.results}
        for row, arm in enumerate(arms)
        if len(arm.results) >= SEEDS and arm.method not in REFERENCES
    }
    known = {row: {s: v for s, v in by_seed.items() if v is not None} for row, by_seed in values.items()}
    known = {row: by_seed for row, by_seed in known.items() if len(by_seed) >= SEEDS}
    if len(known) < 2:
        return []
    first = max(known, key=lambda row: column.better * statistics.fmean(known[row].values()))
    return [row for row in known if row == first or _is_close(known[first], known[row])]


def _is_close(best: Mapping[int, float], other: Mapping[int, float]) -> bool:
    differences = [best[seed] - other[seed] for seed in best if seed in other]
    if len(differences) < SEEDS:
        return False
    return abs(statistics.fmean(differences)) <= statistics.stdev(differences)


def explain_summary_table(comparison: Comparison) -> str:
    """The remarks below the table."""
    arms, source = comparison.arms, choose_source(comparison.arms)
    deviation = "Mean ± standard deviation over seeds. " if max(len(arm.results) for arm in arms) > 1 else ""
    several = f", a mean over tasks with {', '.join(comparison.metrics)}" if len(comparison.metrics) > 1 else ""
    marked = (
        f"Bold: the best mean over {SEEDS} seeds or more, and means whose difference from it, paired over seeds, is within one "
        f"standard deviation of the differences; {', '.join(title_method(name) for name in REFERENCES)} are references. "
        if make_summary_table(comparison).best
        else f"Nothing is marked as the best: that takes {SEEDS} seeds. "
        if len(arms) > 1
        else ""
    )
    measured = (
        "Latency: of one inference at batch 1, measured, over that of the full network. "
        if any(arm.mean(average_relative_latency) is not None for arm in arms)
        else ""
    )
    inferred = (
        "Task inferred: accuracy if the task of each example is not given but inferred. "
        if any(arm.mean(_get_inferred) is not None for arm in arms)
        else ""
    )
    origin = f"modelled ({ENERGY_MODEL})" if source == "modelled" else f"measured ({', '.join(_list_meters(arms))})"
    return (
        f"{deviation}{marked}{capitalize(comparison.metric)} on {comparison.split} data{several}, {_count_examples(arms)}. "
        f"{inferred}{measured}Network size: parameters of all "
        f"tasks' networks together over those of one full backbone. Energy: of one inference at batch {BATCH}, {origin}, over "
        "that of the full network, which STL "
        "runs; mean over tasks. Training time: of each run, which may have shared the machine with others."
    )


def _format_cell(arm: Arm, column: Column) -> str:
    mean, deviation = arm.mean(column.value), arm.deviation(column.value)
    if mean is None:
        return DASH
    return column.format(mean) + (f" ± {column.format(deviation)}" if column.deviation and deviation is not None else "")


def _make_exact_table(arms: Sequence[Arm], columns: Sequence[Column]) -> Table:
    """The same table for programs: means and standard deviations in columns of their own, times in seconds."""
    titles, rows = [], []
    for column in columns:
        titles += [f"{column.title}, mean", f"{column.title}, standard deviation"][: 1 + column.deviation]
    for arm in arms:
        numbers = []
        for column in columns:
            numbers += [arm.mean(column.value), arm.deviation(column.value)][: 1 + column.deviation]
        rows.append([arm.label, *("" if number is None else repr(number) for number in numbers), str(len(arm.results))])
    return Table("table", "comparison", ["method", *titles, "runs"], rows)


def _count_examples(arms: Sequence[Arm]) -> str:
    counts = {sum(task["test"] for task in result["tasks"]) for arm in arms for result in arm.results}
    return f"{min(counts):,} examples in all" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,} examples in all"


def _get_inferred(result: Result) -> float | None:
    accuracy = result["inferred"]["row"]["accuracy"] if result["inferred"] is not None else None
    return None if accuracy is None else 100 * accuracy


def _training_seconds(result: Result) -> float:
    return result["seconds"]["total"] - result["seconds"].get("test", 0.0)


def _list_meters(arms: Sequence[Arm]) -> list[str]:
    costs = [arm.results[0]["tasks"][0]["costs"]["network"] for arm in arms]
    return sorted({str(cost["measured"]["meter"]) for cost in costs if "measured" in cost})
