"""Choosing a method's settings on validation data: one run for every combination of values, and what it cost."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import disk
from ..errors import ConfigError, TrainingError
from ..progress import format_duration
from .config import Config, to_toml
from .metrics_log import read_rows
from .resolve import merge_settings, parse_assignments, resolve
from .run import run

Row = dict[str, Any]


def choices(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Values to try, written KEY=V1,V2,...; a key without a dot is one of the method's options.

    >>> choices(["strength=1,10", "train.lr=0.1"])
    {'options.strength': [1, 10], 'train.lr': [0.1]}
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip() if "." in key else f"options.{key.strip()}"
        parts = list(dict.fromkeys(_parts(values)))
        table, _, name = key.partition(".")
        if not equals or not all(parts) or table not in ("options", "train") or "." in name:
            raise ConfigError(f"--over {text} is not of the form KEY=V1,V2,... such as strength=1,10,100 or train.lr=0.1,0.01.")
        if key in found:
            raise ConfigError(f"--over {text}: values of {key} have been given already. Give all of them at once.")
        found[key] = [parse_assignments([f"{name}={value}"])[name] for value in parts]
    return found


def _parts(text: str) -> list[str]:
    """A text cut at commas that stand in no brackets."""
    depth, parts = 0, [""]
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def tune(
    given: Mapping[str, Any],
    over: Mapping[str, Sequence[Any]],
    out: str | os.PathLike[str],
    *,
    data: str | None = None,
    progress: bool | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run every combination with the validation data in place of the test data; return what tune.json holds.

    All settings are checked before the first run. A combination that diverges is noted and does not stop the others. Runs
    that are finished are not repeated, and one that was stopped goes on.
    """
    folder = Path(out)
    tried = [dict(zip(over, values)) for values in itertools.product(*over.values())]
    configs = [_settings(given, values, data) for values in tried]
    rows: list[Row] = []
    for number, (values, settings) in enumerate(zip(tried, configs), 1):
        name = _folder(values)
        row: Row = {"values": values, "folder": name}
        try:
            result = run(settings, folder / name, data=data, progress=progress, say=lambda text: None)
            row |= {key: result[key] for key in ("average_accuracy", "backward_transfer", "forgetting", "size")}
            told = f"{row['average_accuracy']:.2%} on validation data"
        except TrainingError as error:
            row["failed"], told = str(error), f"failed. {error}"
        epochs = [line for line in read_rows(folder / name / "metrics.jsonl")[0] if line["kind"] == "epoch"]
        row |= {"epochs": len(epochs), "seconds": sum(line["seconds"] for line in epochs)}
        rows.append(row)
        say(f"{number}/{len(tried)}  {name}: {told} ({format_duration(row['seconds'])})")
    done = [row for row in rows if "failed" not in row]
    best = max(done, key=lambda row: row["average_accuracy"]) if done else None
    first = configs[0]
    found = {
        "benchmark": first.benchmark,
        "method": first.method,
        "recipe": first.recipe,
        "seed": first.seed,
        "judged_on": "valid",
        "candidates": rows,
        "best": best["values"] if best else None,
        "budget": {"runs": len(rows), **{key: sum(row[key] for row in rows) for key in ("epochs", "seconds")}},
    }
    disk.write_file(folder / "tune.json", json.dumps(found, indent=1).encode())
    return found


def _settings(given: Mapping[str, Any], values: Mapping[str, Any], data: str | None) -> Config:
    layer: dict[str, Any] = {"eval_split": "valid"}
    for key, value in values.items():
        table, name = key.split(".", 1)
        layer.setdefault(table, {})[name] = value
    return resolve(merge_settings(given, layer), data)


def _folder(values: Mapping[str, Any]) -> str:
    """A folder's name for some values; a mark is added where letters were lost."""
    text = ",".join(f"{key.split('.', 1)[1]}={to_toml(value)}" for key, value in values.items())
    short = "".join(letter if letter.isalnum() or letter in "+-.,=" else "_" for letter in text)[:80]
    return short if short == text else f"{short}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def table(found: Mapping[str, Any]) -> Any:
    """What was tried, for a terminal."""
    from rich.markup import escape
    from rich.table import Table

    title = escape(f"{found['benchmark']}, {found['method']}, recipe {found['recipe']}, seed {found['seed']}: validation data")
    shown = Table(title=title, caption_justify="left")
    names = list(found["candidates"][0]["values"])
    for column in (*(name.removeprefix("options.") for name in names), "accuracy", "forgetting", "size", "time", ""):
        shown.add_column(escape(column), justify="right")
    for row in found["candidates"]:
        values = [escape(str(row["values"][name])) for name in names]
        if "failed" in row:
            shown.add_row(*values, "failed", "", "", format_duration(row["seconds"]), "")
        else:
            figures = (
                f"{row['average_accuracy']:.2%}",
                f"{row['forgetting']:.2%}",
                f"{row['size']:.3f}",
                format_duration(row["seconds"]),
            )
            shown.add_row(*values, *figures, "best" if row["values"] == found["best"] else "")
    budget = found["budget"]
    shown.caption = f"Spent: {budget['runs']} runs, {budget['epochs']} epochs, {format_duration(budget['seconds'])}."
    return shown
