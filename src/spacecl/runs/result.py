"""result.json, the outcome of a run: its type and the only function that reads it. docs/runs.md explains the keys."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, TypedDict

from ..data.targets import TargetKind
from ..documents import (
    LARGEST_DOCUMENT,
    RESTORE,
    Count,
    Finite,
    Fraction,
    NonNegative,
    load_json,
    parse_document,
    read_bytes,
)
from ..errors import ConfigError, StoreError
from ..learning.analysis import Target
from ..learning.metrics import ACCURACY
from .config import Config
from .methods import is_own
from .metrics import forgetting

SCHEMA = 3  # of result.json


@with_config(extra="allow")
class Spectrum(TypedDict):
    """SPACE's analysis of one layer."""

    threshold: Fraction
    core: Count
    new: Count
    wanted: Count
    lost: Finite
    new_without_projection: Count
    first_core: Finite | None
    kept: Finite | None
    filters: Annotated[list[Count], Field(min_length=1)]
    explained: Annotated[list[Fraction], Field(min_length=1)]
    cost: NotRequired[Finite]
    cost_of_none: NotRequired[Finite]
    reused: NotRequired[Count]
    needed: dict[Annotated[str, Field(pattern=r"^[01](\.\d+)?$")], Count]


class Latency(TypedDict):
    """Seconds of one inference: median and quartiles over a number of runs."""

    median: NonNegative
    low: NonNegative
    high: NonNegative
    runs: Count


@with_config(extra="allow")
class Measurement(TypedDict):
    """Latency and energy of an inference on one machine, by batch size."""

    machine: str
    threads: Count
    others: NotRequired[NonNegative | None]  # cores that other processes kept busy meanwhile; None where that cannot be seen
    latency: dict[str, Latency]
    energy: dict[str, NonNegative] | None
    meter: str | None


class Traffic(TypedDict):
    """Bytes that one inference reads and writes."""

    weights: Count
    activations: Count


@with_config(extra="allow")
class Costs(TypedDict):
    """The costs of an inference: counted, modelled and, once `measured` is there, measured. None: not recorded."""

    parameters: Count | None
    multiply_adds: Count | None
    traffic: Traffic | None
    peak_memory: dict[str, Count] | None
    energy_modelled: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None
    measured: NotRequired[Measurement]


@with_config(extra="allow")
class TaskCosts(TypedDict):
    """The costs of a task's network, and of the full network in its place."""

    network: Costs
    dense: Costs


class InferenceRates(TypedDict):
    """Shares of inputs whose task is inferred correctly, whose label is correct as well, and that no task accepts.

    Tasks whose metric is not accuracy have None in its place.
    """

    identified: Fraction
    accuracy: Fraction | None
    refused: NotRequired[Fraction]


@with_config(extra="allow")
class TaskResult(TypedDict):
    """The outcome for one task. None: not recorded, or accuracy where the metric is another."""

    name: str
    classes: Annotated[int, Field(ge=1)]  # or labels, or values
    target_kind: TargetKind
    metric: str
    train: Count
    valid: Count
    test: Count
    score: Finite  # at the end of the run
    score_when_learned: Finite
    validation_score: Finite
    accuracy: Fraction | None
    accuracy_when_learned: Fraction | None
    validation_accuracy: Fraction | None
    widths: dict[str, Count]
    core_explained: dict[str, Finite]
    explained: dict[str, Finite]
    samples: dict[str, Count]
    spectrum: dict[str, Spectrum] | None
    target: NotRequired[Target | None]
    used: dict[str, Count] | None
    size_after: NonNegative
    full: list[str]
    grown: bool
    parameters: Count
    multiply_adds: Count
    costs: TaskCosts
    epochs: dict[str, Count]
    digest: str
    seconds: dict[str, NonNegative]
    inferred: dict[str, InferenceRates] | None


class Network(TypedDict):
    """The full network."""

    widths: dict[str, Count]
    parameters: Annotated[int, Field(ge=1)]
    multiply_adds: Annotated[int, Field(ge=1)]


class TaskInference(TypedDict):
    """Means over all tasks, by row and by batches of `together` rows."""

    row: InferenceRates
    batch: InferenceRates
    together: Count


@with_config(extra="allow")
class Result(TypedDict):
    """The outcome of a run."""

    schema: int
    spacecl: str
    benchmark: str
    method: str
    recipe: str
    seed: Count
    config: dict[str, Any]
    metric: str  # of all tasks; "score" if they have several
    average_score: Finite
    average_accuracy: Fraction | None  # the same, if the metric is accuracy
    backward_transfer: Finite
    forgetting: Finite
    score_matrix: list[list[Finite | None]]
    accuracy_matrix: list[list[Fraction | None]] | None  # the same, if the metric is accuracy
    inferred: TaskInference | None
    size: NonNegative
    storage: dict[str, Count]  # empty: not recorded
    network: Network
    tasks: Annotated[list[TaskResult], Field(min_length=1)]
    seconds: dict[str, NonNegative]


def _check(result: Any) -> Any:
    """Refuse a result whose parts contradict each other."""
    tasks, matrix = result["tasks"], result["score_matrix"]
    names = [task["name"] for task in tasks]
    checks = {
        "tasks: a name is there twice": len(set(names)) < len(names),
        "score_matrix: not a row and a column for every task": any(len(row) != len(tasks) for row in [matrix, *matrix]),
        "score_matrix: a value is missing": any(None in row[: n + 1] for n, row in enumerate(matrix)),
        "seconds: no total": "total" not in result["seconds"],
        "accuracy_matrix: not the scores": result["accuracy_matrix"] not in (None, matrix),
    }
    for task in tasks:
        checks[f"{task['name']}: accuracy is not the score"] = task["accuracy"] not in (None, task["score"])
        energies = [task["costs"][kind]["energy_modelled"] for kind in ("network", "dense")]
        incomplete = any(energy is not None and not {"1", "64"} <= energy.keys() for energy in energies)
        checks[f"{task['name']}: energy of a batch is missing"] = incomplete
        for layer, spectrum in (task["spectrum"] or {}).items():
            unequal = len(spectrum["filters"]) != len(spectrum["explained"])
            checks[f"{task['name']}, {layer}: filters and explained differ in length"] = unequal
    problems = [text for text, failed in checks.items() if failed]
    if problems:
        raise PydanticCustomError("result", "{text}", {"text": "; ".join(problems[:5])})
    return result


ResultDocument = Annotated[Result, AfterValidator(_check)]


def read_result(file: str | os.PathLike[str]) -> Result:
    """Read and validate a result.json, whatever version of spacecl wrote it.

    Older schemas are upgraded in memory: values that they lack are derived where possible, otherwise None. Settings that the
    file does not have get their defaults. A newer schema, or settings that this version does not know, raise StoreError.
    """
    document = _upgrade(load_json(read_bytes(file, LARGEST_DOCUMENT), file), file)
    result: Result = parse_document(json.dumps(document).encode(), ResultDocument, file)  # type: ignore[arg-type]
    try:
        config = Config.from_json(result["config"], file)
    except ConfigError as error:
        raise StoreError(str(error)) from error
    if (config.method, config.benchmark, config.seed) != (result["method"], result["benchmark"], result["seed"]):
        raise StoreError(f"{file} is damaged: its settings are those of another run.")
    for task in result["tasks"]:
        task.setdefault("target", None)
    if not is_own(config.method):  # whose code is not to be run
        config = replace(config, options=asdict(config.make_method()))  # type: ignore[call-overload]
    result["config"] = config.to_json()
    return result


def _upgrade(document: Any, file: object) -> Any:
    """Bring a document to the current schema, one version after another. It is validated afterwards, not here."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int:
        return document
    if schema != SCHEMA and schema not in _UPGRADES:
        raise StoreError(f"{file} has schema {schema}; this version of spacecl reads schemas {min(_UPGRADES)} to {SCHEMA}.")
    try:
        for version in range(schema, SCHEMA):
            document = _UPGRADES[version](document)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise StoreError(f"{file} is damaged: it is not a result of schema {schema} ({error!r}). {RESTORE}") from error
    return document


def _upgrade_from_1(result: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 let keys be missing that later versions had added; in schema 2 every key is there."""
    full, first = result["network"], result["tasks"][0]
    defaults: dict[str, Any] = {"forgetting": forgetting(result["accuracy_matrix"]), "inferred": None, "storage": {}}
    tasks = []
    for task in result["tasks"]:
        nested = result["method"] == "space" or task["widths"] == full["widths"]  # it contains all earlier networks
        dense = full if task["classes"] == first["classes"] else {}  # another head has another number of parameters
        costs = {"network": _unmeasured_costs(task), "dense": _unmeasured_costs(dense)}
        added = {"spectrum": None, "target": None, "used": task["widths"] if nested else None, "costs": costs, "inferred": None}
        upgraded = {**added, **task}
        if upgraded["spectrum"] is not None:  # before budgets every task got the filters that it needed
            upgraded["spectrum"] = {
                layer: {"wanted": spectrum["new"], "lost": 0.0, **spectrum} for layer, spectrum in upgraded["spectrum"].items()
            }
        tasks.append(upgraded)
    return {**defaults, **result, "tasks": tasks, "schema": 2}


def _upgrade_from_2(result: dict[str, Any]) -> dict[str, Any]:
    """In schema 2, all tasks had classes and were judged by accuracy."""
    names = {name: name.replace("score", ACCURACY) for name in ("score", "score_when_learned", "validation_score")}
    tasks = [
        {"target_kind": "classes", "metric": ACCURACY, **{new: task[old] for new, old in names.items()}, **task}
        for task in result["tasks"]
    ]
    scores = {"average_score": result["average_accuracy"], "score_matrix": result["accuracy_matrix"]}
    return {"metric": ACCURACY, **scores, **result, "tasks": tasks, "schema": 3}


def _unmeasured_costs(network: dict[str, Any]) -> dict[str, Any]:
    """The costs that are known of a network in a result of schema 1 without costs."""
    unknown = dict.fromkeys(("traffic", "peak_memory", "energy_modelled"))
    return {key: network.get(key) for key in ("parameters", "multiply_adds")} | unknown


_UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {  # by the schema that each reads
    1: _upgrade_from_1,
    2: _upgrade_from_2,
}
