"""Make results/README.md from the result.json files in the folders here.

python results/table.py          # write it
python results/table.py --check  # exit with code 1 if the page is out of date
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from spacecl.data.benchmarks.published import RESULTS
from spacecl.reporting.text import to_markdown_code, to_markdown_text
from spacecl.runs.config import Config
from spacecl.runs.resolve import to_command
from spacecl.runs.result import Result, TaskResult, read_result

HERE = Path(__file__).parent
HEAD = """# Results

Each row is one run of `spacecl run` with one seed, next to the results for SPACE in the paper's Table 1. Each folder here has
the `result.json` of a run, and an `environment.json` with the machine and the versions. [docs/runs.md](../docs/runs.md)
explains these files. `python results/table.py` makes this page from them, and `spacecl report results` makes tables and
figures.

*Size* is the number of parameters of all tasks' networks together, divided by that of the full backbone, without heads.
*Multiply-adds* are those of a task's network divided by those of the full network, as a mean over tasks. *BWT* is backward
transfer: 0 if nothing is forgotten. Times were measured on two cores that also did other work.
"""
TITLES = (
    "benchmark",
    "command",
    "accuracy",
    "paper",
    "size",
    "paper",
    "BWT",
    "multiply-adds",
    "epochs per task",
    "paper",
    "time",
)
TASK_TITLES = ("task", "accuracy", "widths", "parameters", "multiply-adds", "size so far", "seconds")


def make_page() -> str:
    results = {file.parent.name: read_result(file) for file in sorted(HERE.glob("*/result.json"))}
    lines = [HEAD, *_format_table(TITLES, [_make_row(result) for result in results.values()])]
    for name, result in results.items():
        full = result["network"]
        rows = [_make_task_row(task) for task in result["tasks"]]
        rows.append(["*full network*", "", _join_widths(full["widths"]), f"{full['parameters']:,}"])
        rows[-1] += [f"{full['multiply_adds']:,}", "", ""]
        lines += ["", f"## {name}", "", *_format_table(TASK_TITLES, rows)]
    return "\n".join(lines) + "\n\n" + (HERE / "notes.md").read_text()


def _make_row(result: Result) -> list[str]:
    tasks, paper = result["tasks"], RESULTS.get(result["benchmark"])
    multiply_adds = sum(task["multiply_adds"] for task in tasks) / len(tasks) / result["network"]["multiply_adds"]
    epochs = [sum(task["epochs"].values()) for task in tasks]
    command = shlex.join(to_command(Config.from_json(result["config"])))
    return [
        f"{to_markdown_text(result['benchmark'])}, {len(tasks)} tasks",
        to_markdown_code(command.replace(" --recipe fast --seed 0", "")),
        f"**{100 * result['average_accuracy']:.2f}**",
        "" if paper is None else f"{paper.accuracy:.2f}",
        f"**{result['size']:.3f}**",
        "" if paper is None else f"{paper.size:.2f}",
        f"{100 * result['backward_transfer']:+.2f}",
        f"{multiply_adds:.3f}",
        " to ".join(map(str, sorted({min(epochs), max(epochs)}))),
        "" if paper is None else paper.epochs,
        f"{result['seconds']['total'] / 60:.0f} min",
    ]


def _make_task_row(task: TaskResult) -> list[str]:
    return [
        to_markdown_text(task["name"]),
        f"{100 * task['accuracy']:.2f}",
        _join_widths(task["widths"]),
        f"{task['parameters']:,}",
        f"{task['multiply_adds']:,}",
        f"{task['size_after']:.3f}",
        f"{sum(task['seconds'].values()):.0f}",
    ]


def _join_widths(widths: dict[str, int]) -> str:
    return "-".join(map(str, widths.values()))


def _format_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format cells that are Markdown already."""
    return [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit((HERE / "README.md").read_text() != make_page())
    (HERE / "README.md").write_text(make_page())
