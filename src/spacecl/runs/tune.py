"""Tune a method's settings on validation data: one run for every combination of values, and what the search has cost."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import NotRequired, TypedDict

from .. import disk
from ..errors import ConfigError, TrainingError
from ..progress import format_duration, format_score
from .config import Config, to_toml
from .methods import shorten_method
from .metrics import name_metric
from .metrics_log import read_rows
from .resolve import merge_settings, parse_assignments, resolve
from .run import run

if TYPE_CHECKING:
    from rich.table import Table


class Candidate(TypedDict):
    """One combination of values, and the results of its run."""

    values: dict[str, Any]
    folder: str
    failed: NotRequired[str]  # why the run has no results
    average_score: NotRequired[float]
    average_accuracy: NotRequired[float | None]  # the same, if the metric is accuracy
    backward_transfer: NotRequired[float]
    forgetting: NotRequired[float]
    size: NotRequired[float]
    epochs: int
    seconds: float


class Budget(TypedDict):
    """What all runs together have cost."""

    runs: int
    epochs: int
    seconds: float


class TuneResult(TypedDict):
    """The content of tune.json."""

    benchmark: str
    method: str
    recipe: str
    seed: int
    judged_on: str  # the data by which candidates were compared
    metric: str  # by which they were compared; "score" if tasks have several
    candidates: list[Candidate]
    best: dict[str, Any] | None  # the values with the highest score; None if every run failed
    budget: Budget


def parse_choices(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parse values to try, written KEY=V1,V2,...; a key without a dot is one of the method's options.

    >>> parse_choices(["strength=1,10", "train.lr=0.1"])
    {'options.strength': [1, 10], 'train.lr': [0.1]}
    """
    choices: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip() if "." in key else f"options.{key.strip()}"
        parts = list(dict.fromkeys(_split(values)))
        table, _, name = key.partition(".")
        if not equals or not all(parts) or table not in ("options", "train") or "." in name:
            raise ConfigError(f"--over {text} is not of the form KEY=V1,V2,... such as strength=1,10,100 or train.lr=0.1,0.01.")
        if key in choices:
            raise ConfigError(f"--over {text}: {key} has values already. Give all of them at once.")
        choices[key] = [parse_assignments([f"{name}={value}"])[name] for value in parts]
    return choices


def _split(text: str) -> list[str]:
    """Split a text at the commas that are not in brackets."""
    depth, parts = 0, [""]
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def tune(
    settings: Mapping[str, Any],
    over: Mapping[str, Sequence[Any]],
    out: str | os.PathLike[str],
    *,
    data: str | None = None,
    progress: bool | None = None,
    print_line: Callable[[str], None] = print,
) -> TuneResult:
    """Run every combination of values, compare them on validation data, and return what tune.json holds.

    All settings are checked before the first run. A combination that diverges is noted and does not stop the others. Finished
    runs are not repeated, and one that was stopped is resumed. Test data are never read.

    Parameters
    ----------
    settings : the user's, for all runs.
    over : the values to try, as `parse_choices` returns them.
    out : the folder for tune.json and the runs.
    data : a folder with datasets. Default: $SPACECL_DATA, or a cache folder.
    progress : whether to show progress bars. Default: on a terminal only.
    print_line : called with every line for the user.
    """
    folder = Path(out)
    combinations = [dict(zip(over, values)) for values in itertools.product(*over.values())]
    configs = [_resolve_combination(settings, values, data) for values in combinations]
    candidates: list[Candidate] = []
    names: list[str] = []  # of metrics
    for number, (values, config) in enumerate(zip(combinations, configs), 1):
        candidate, metric, text = _run_candidate(config, values, folder, data, progress)
        names.append(metric)
        candidates.append(candidate)
        print_line(f"{number}/{len(combinations)}  {candidate['folder']}: {text} ({format_duration(candidate['seconds'])})")
    finished = [candidate for candidate in candidates if "failed" not in candidate]
    best = max(finished, key=lambda candidate: candidate["average_score"]) if finished else None
    first = configs[0]
    result: TuneResult = {
        "benchmark": first.benchmark,
        "method": first.method,
        "recipe": first.recipe,
        "seed": first.seed,
        "judged_on": "valid",
        "metric": name_metric(filter(None, names)),
        "candidates": candidates,
        "best": best["values"] if best else None,
        "budget": {
            "runs": len(candidates),
            "epochs": sum(candidate["epochs"] for candidate in candidates),
            "seconds": sum(candidate["seconds"] for candidate in candidates),
        },
    }
    disk.write_file(folder / "tune.json", json.dumps(result, indent=1).encode())
    return result


def _run_candidate(
    config: Config, values: dict[str, Any], folder: Path, data: str | None, progress: bool | None
) -> tuple[Candidate, str, str]:
    """Run one combination of values; returns its entry of tune.json, the name of the metric, and a text for the user."""
    name = _make_folder_name(values)
    results: Any = {}
    metric = ""  # of a run that failed, it is not known
    try:
        result: Any = run(config, folder / name, data=data, progress=progress, print_line=lambda text: None)
        metric = result["metric"]
        results = {key: result[key] for key in ("average_score", "average_accuracy", "backward_transfer", "forgetting", "size")}
        text = f"{format_score(result['average_score'], metric)} on validation data"
    except TrainingError as error:
        results, text = {"failed": str(error)}, f"failed. {error}"
    epochs = [row for row in read_rows(folder / name / "metrics.jsonl")[0] if row["kind"] == "epoch"]
    seconds = sum(row["seconds"] for row in epochs)
    return {"values": values, "folder": name, **results, "epochs": len(epochs), "seconds": seconds}, metric, text


def _resolve_combination(settings: Mapping[str, Any], values: Mapping[str, Any], data: str | None) -> Config:
    own: dict[str, Any] = {"eval_split": "valid"}
    for key, value in values.items():
        table, name = key.split(".", 1)
        own.setdefault(table, {})[name] = value
    return resolve(merge_settings(settings, own), data)


def _make_folder_name(values: Mapping[str, Any]) -> str:
    """A folder's name for some values, with a hash of them where letters had to be replaced."""
    text = ",".join(f"{key.split('.', 1)[1]}={to_toml(value)}" for key, value in values.items())
    short = "".join(letter if letter.isalnum() or letter in "+-.,=" else "_" for letter in text)[:80]
    return short if short == text else f"{short}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def make_tune_table(result: TuneResult) -> Table:
    """A table with a row for every combination, for a terminal."""
    from rich.markup import escape
    from rich.table import Table

    method = shorten_method(result["method"])
    title = f"{result['benchmark']}, {method}, recipe {result['recipe']}, seed {result['seed']}: validation data"
    table = Table(title=escape(title), caption_justify="left")
    names = list(result["candidates"][0]["values"])
    for column in (*(name.removeprefix("options.") for name in names), result["metric"], "forgetting", "size", "time", ""):
        table.add_column(escape(column), justify="right")
    for candidate in result["candidates"]:
        values = [escape(str(candidate["values"][name])) for name in names]
        time = format_duration(candidate["seconds"])
        if "failed" in candidate:
            table.add_row(*values, "failed", "", "", time, "")
        else:
            average, fallen = candidate["average_score"], candidate["forgetting"]
            figures = (*(format_score(score, result["metric"]) for score in (average, fallen)), f"{candidate['size']:.3f}")
            table.add_row(*values, *figures, time, "best" if candidate["values"] == result["best"] else "")
    budget = result["budget"]
    table.caption = f"Cost: {budget['runs']} runs, {budget['epochs']} epochs, {format_duration(budget['seconds'])}."
    return table
