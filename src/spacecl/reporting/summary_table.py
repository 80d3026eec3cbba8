"""The report's first table, as in the paper's Table 1. To change what it shows, change `list_columns`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..progress import SHARES, format_duration
from ..runs.costs import ENERGY_MODEL
from ..runs.result import Result
from .arms import Arm, Comparison
from .energy import BATCH, EnergySource, average_relative_energy, choose_source
from .page import Table
from .text import DASH, capitalize


@dataclass(frozen=True)
class Column:
    """A column of the table: the mean over seeds of one value of a run and, if `deviation`, its standard deviation."""

    title: str
    value: Callable[[Result], float | None]  # None: not recorded
    format: Callable[[float], str]
    deviation: bool = True


def list_columns(source: EnergySource, metric: str) -> list[Column]:
    """The columns between the method's name and the number of runs."""
    factor, unit, number = (100, ", %", "{:.2f}".format) if metric in SHARES else (1, "", "{:.4f}".format)
    return [
        Column(f"{metric}{unit}", lambda result: factor * result["average_score"], number),
        Column("network size", lambda result: result["size"], "{:.3f}".format),
        Column(f"energy / STL ({source})", average_relative_energy(source), "{:.3f}".format),
        Column(f"forgetting{unit}", lambda result: factor * result["forgetting"], number),
        Column("training time", _training_seconds, format_duration, deviation=False),
    ]


def make_summary_table(comparison: Comparison) -> Table:
    """The table, with a row for each arm."""
    arms = comparison.arms
    columns = list_columns(choose_source(arms), comparison.metric)
    titles = ["method", *(column.title for column in columns), "runs"]
    rows = [[arm.label, *(_format_cell(arm, column) for column in columns), str(len(arm.results))] for arm in arms]
    return Table("table", "comparison", titles, rows, exact=_make_exact_table(arms, columns))


def explain_summary_table(comparison: Comparison) -> str:
    """The remarks below the table."""
    arms, source = comparison.arms, choose_source(comparison.arms)
    deviation = "Mean ± standard deviation over seeds. " if max(len(arm.results) for arm in arms) > 1 else ""
    several = f", a mean over tasks with {', '.join(comparison.metrics)}" if len(comparison.metrics) > 1 else ""
    origin = f"modelled ({ENERGY_MODEL})" if source == "modelled" else f"measured ({', '.join(_list_meters(arms))})"
    return (
        f"{deviation}{capitalize(comparison.metric)} on {comparison.split} data{several}. Network size: parameters of all "
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


def _training_seconds(result: Result) -> float:
    return result["seconds"]["total"] - result["seconds"].get("test", 0.0)


def _list_meters(arms: Sequence[Arm]) -> list[str]:
    costs = [arm.results[0]["tasks"][0]["costs"]["network"] for arm in arms]
    return sorted({str(cost["measured"]["meter"]) for cost in costs if "measured" in cost})
