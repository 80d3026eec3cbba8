"""Draw time to accuracy: the mean test accuracy over all tasks of a benchmark by wall time, from finished runs.

    python experiments/time_to_accuracy.py runs/fast runs/other --out docs

Tasks that are not learned yet count with the accuracy of chance. Time is that of training, analysis and retraining. Writes
time-to-accuracy.svg and .png, and prints a table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from spacecl.data.benchmarks.published import RESULTS
from spacecl.reporting.drawing import save_figure
from spacecl.reporting.figures import Figure, Panel, Series
from spacecl.runs.result import Result, read_result


def compute_curve(result: Result) -> tuple[list[float], list[float]]:
    """Compute the minutes and the mean accuracy over all tasks, at the start and after every task."""
    tasks, matrix = result["tasks"], result["accuracy_matrix"]
    chance = [1 / task["classes"] for task in tasks]
    minutes, accuracies = [0.0], [sum(chance) / len(chance)]
    for number, task in enumerate(tasks):
        minutes.append(minutes[-1] + sum(s for phase, s in task["seconds"].items() if phase != "test") / 60)
        learned = [accuracy for accuracy in matrix[number] if accuracy is not None]
        accuracies.append(sum([*learned, *chance[number + 1 :]]) / len(tasks))
    return minutes, accuracies


def describe_epochs(result: Result) -> str:
    train = result["config"]["train"]
    return f"{train['epochs']} + {train['retrain_epochs']} epochs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--names", nargs="*", default=[], help="labels of the runs, in their order")
    paper = RESULTS["split-cifar10"].accuracy / 100
    parser.add_argument("--goal", type=float, default=paper, help="an accuracy to draw a line at (default: the paper's)")
    parser.add_argument("--out", type=Path, default=Path("."))
    args = parser.parse_args()
    series = []
    print("| run | epochs per task | accuracy, % | size | minutes |\n|---|---|---|---|---|")
    for number, folder in enumerate(args.runs):
        result = read_result(folder / "result.json")
        x, y = compute_curve(result)
        name = args.names[number] if number < len(args.names) else folder.name
        tips = [f"{name}: {100 * b:.2f} % after {a:.1f} min" for a, b in zip(x, y)]
        series.append(Series(name, x, y, tips, look=number))
        size, accuracy = result["size"], result["average_accuracy"]
        print(f"| {name} | {describe_epochs(result)} | {100 * accuracy:.2f} | {size:.3f} | {x[-1]:.1f} |")
    levels = [(args.goal, f"the paper: {100 * args.goal:.1f} %")]
    panel = Panel("", "minutes", "mean accuracy over all tasks", series, percent=True, levels=levels)
    title = f"Time to accuracy, {result['benchmark']}"
    print(*save_figure(Figure("time-to-accuracy", title, [panel]), args.out))


if __name__ == "__main__":
    main()
