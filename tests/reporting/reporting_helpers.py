"""Results to report on: those of the example in the docs, so that few tests have to train, and short runs."""

import json

from helpers import ROOT

from spacecl.reporting.arms import read_comparisons
from spacecl.runs import run
from spacecl.runs.resolve import merge_settings, resolve

EXAMPLE = ROOT / "docs" / "example-report"
METHODS = ("stl", "ewc", "hat", "packnet", "space")
SHORT = {"benchmark": "permuted-digits", "tasks": 2, "train": {"epochs": 1, "retrain_epochs": 1}, "device": "cpu"}
FIGURES = (
    "frontier",
    "multiply-adds",
    "accuracy",
    "first-task",
    "matrix",
    "filters",
    "latency",
    "energy",
    "core-and-residual",
    "spectrum",
)
HOSTILE = {
    "digits-1": "</title></svg><script>window.owned = 1</script>",
    "digits-2": "\"><img src=x onerror='window.owned = 1'>",
    "digits-3": "a|b\n`c` *d* [e](javascript:f) &lt;",
    "hidden1": "<svg onload='window.owned = 1'>",
    "hidden2": '=HYPERLINK("x")',
}


def resolve_settings(*layers):
    return resolve(merge_settings(*layers))


def train_in(folder, *settings):
    """Train a short run for each of some settings."""
    for number, entry in enumerate(settings):
        run.run(resolve_settings(SHORT, entry), folder / f"run{number}", print_line=lambda text: None)


def read_comparison(folder):
    (comparison,), _ = read_comparisons(folder)
    return comparison


def results_of(folder, method):
    results = [json.loads(file.read_text()) for file in sorted(folder.rglob("result.json"))]
    return [result for result in results if result["method"] == method]


def example_result(method, seed=0, **options):
    """A result of the example, as if its method had had other options."""
    result = json.loads((EXAMPLE / method / f"seed{seed}" / "result.json").read_text())
    result["config"]["options"] |= options
    return result


def write_result(folder, result):
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
