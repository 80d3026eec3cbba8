"""Make results/README.md from the result.json files in the folders here.

python results/table.py          # write it
python results/table.py --check  # exit 1 if it is not what the files say
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from spacecl.data.benchmarks.published import RESULTS
from spacecl.reporting.sections import as_markdown_code, as_markdown_text
from spacecl.runs.config import Config
from spacecl.runs.resolve import to_command

HERE = Path(__file__).parent
HEAD = """# Results

What `spacecl run` measured, beside SPACE in the paper's Table 1. Every row is the `result.json` of one run with one seed; each
folder here also has the machine and the versions (`environment.json`). This page is made from them by
`python results/table.py`; [docs/runs.md](../docs/runs.md) says what the files hold. *Size* is the parameters of all tasks'
networks together over those of the full backbone, heads left out; *multiply-adds* are a task's over the full network's, mean
over tasks. BWT is backward transfer: 0 when nothing is forgotten. Times are of two cores, with other work beside the runs.

"""
LABELS = (
    "benchmark",
    "command",
    "accuracy",
    "paper",
    "size",
    "paper",
    "BWT",
    "multiply-adds",
    "epochs a task",
    "paper",
    "time",
)


def row(result: dict) -> list[str]:
    tasks, full = result["tasks"], result["network"]
    paper = RESULTS.get(result["benchmark"])
    share = sum(task["multiply_adds"] for task in tasks) / len(tasks) / full["multiply_adds"]
    trained = sorted({sum(task["epochs"].values()) for task in tasks})
    command = shlex.join(to_command(Config.from_json(result["config"])))
    return [
        f"{as_markdown_text(result['benchmark'])}, {len(tasks)} tasks",
        as_markdown_code(command.replace(" --recipe fast --seed 0", "")),
        f"**{100 * result['average_accuracy']:.2f}**",
        "" if paper is None else f"{paper.accuracy:.2f}",
        f"**{result['size']:.3f}**",
        "" if paper is None else f"{paper.size:.2f}",
        f"{100 * result['backward_transfer']:+.2f}",
        f"{share:.3f}",
        " to ".join(map(str, dict.fromkeys((trained[0], trained[-1])))),
        "" if paper is None else paper.epochs,
        f"{result['seconds']['total'] / 60:.0f} min",
    ]


def page() -> str:
    files = sorted(HERE.glob("*/result.json"))
    results = [json.loads(file.read_text()) for file in files]
    lines = [HEAD, "| " + " | ".join(LABELS) + " |", "|---" * len(LABELS) + "|"]
    lines += ["| " + " | ".join(row(result)) + " |" for result in results]
    for file, result in zip(files, results):
        lines += ["", f"## {file.parent.name}", ""]
        lines += ["| task | accuracy | widths | parameters | multiply-adds | size so far | seconds |", "|---" * 7 + "|"]
        for task in result["tasks"]:
            widths = "-".join(map(str, task["widths"].values()))
            seconds = sum(task["seconds"].values())
            lines.append(
                f"| {as_markdown_text(task['name'])} | {100 * task['accuracy']:.2f} | {widths} | {task['parameters']:,} "
                f"| {task['multiply_adds']:,} | {task['size_after']:.3f} | {seconds:.0f} |"
            )
        full = result["network"]
        widths = "-".join(map(str, full["widths"].values()))
        lines.append(f"| *full network* | | {widths} | {full['parameters']:,} | {full['multiply_adds']:,} | | |")
    notes = HERE / "notes.md"
    return "\n".join(lines) + "\n" + (f"\n{notes.read_text()}" if notes.exists() else "")


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit((HERE / "README.md").read_text() != page())
    (HERE / "README.md").write_text(page())
