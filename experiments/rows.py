"""Rows of results: saved one by one, so that an interrupted script resumes, and printed as a table in Markdown."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from spacecl.runs.json_lines import read_json_lines


@dataclass(frozen=True)
class Row:
    """The outcome of one method with one seed."""

    method: str
    seed: int
    accuracy: dict[str, float]  # test accuracy by task
    size: list[float]  # of the network that all tasks so far use, after each task
    seconds: list[float] = field(default_factory=list)  # of learning each task
    settings: dict[str, Any] = field(default_factory=dict)  # everything else that the row depends on
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)  # what else was measured of each task

    @property
    def mean(self) -> float:
        """The mean accuracy over all tasks."""
        return mean(self.accuracy.values())


class RowFile:
    """A file with one row per line."""

    def __init__(self, file: Path):
        self.file = file
        self.rows, whole = read_json_lines(file, Row)
        if file.exists() and file.stat().st_size > whole:  # a line that was cut off
            with file.open("r+b") as stream:
                stream.truncate(whole)

    def find(self, method: str, seed: int, settings: dict[str, Any]) -> Row | None:
        """Return the row that was measured with these settings, if there is one."""
        settings = json.loads(json.dumps(settings))
        matches = (row for row in self.rows if (row.method, row.seed, row.settings) == (method, seed, settings))
        return next(matches, None)

    def folder(self, method: str, seed: int, settings: dict[str, Any]) -> Path:
        """Where the learner of a row that is not finished is saved."""
        key = json.dumps([method, seed, settings])
        return self.file.with_name(f"{self.file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}")

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab") as stream:
            stream.write(json.dumps(asdict(row)).encode() + b"\n")


def format_table(rows: Sequence[Row], reference: str = "STL") -> str:
    """Format rows as a Markdown table with one line per method, in per cent; of several seeds, mean and standard deviation.

    The column after the size has the mean accuracy minus that of `reference`, over the seeds that both have.
    """
    tasks = list(rows[0].accuracy)
    references = {row.seed: row.mean for row in rows if row.method == reference}
    lines = [
        "| " + " | ".join(["method", "seeds", *tasks, "mean", "size", f"to {reference}", "seconds"]) + " |",
        "|---" * (len(tasks) + 6) + "|",
    ]
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method]
        differences = [row.mean - references[row.seed] for row in own if row.seed in references]
        cells = [method, ", ".join(str(row.seed) for row in own)]
        cells += [_format([100 * row.accuracy[task] for row in own]) for task in tasks]
        cells += [_format([100 * row.mean for row in own]), _format([row.size[-1] for row in own], ".3f")]
        cells += [_format([100 * value for value in differences], "+.1f") if method != reference else ""]
        cells += [_format([sum(row.seconds) for row in own], ".0f")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _format(values: Sequence[float], digits: str = ".1f") -> str:
    """Format the mean of some values and, if there are several, their standard deviation; of none, a dash."""
    if not values:
        return "-"
    spread = f" ± {stdev(values):{digits.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{mean(values):{digits}}{spread}"


def parse_names(choices: Collection[str]) -> Callable[[str], list[str]]:
    """Make a function that parses names from `choices`, separated by commas: a type of `argparse` arguments."""

    def parse(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(choices)}")
        return text.split(",")

    return parse


def parse_seeds(text: str) -> list[int]:
    """Parse seeds that are separated by commas: a type of `argparse` arguments."""
    return list(map(int, text.split(",")))
