"""result.json, what a run came to: its type, and the one way to read it. docs/runs.md says what the keys mean."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import AfterValidator, Field, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, TypedDict

from ..documents import Count, Finite, Fraction, NonNegative, read_document
from ..errors import ConfigError, StoreError
from .config import Config

SCHEMA = 1  # of result.json


@with_config(extra="allow")
class Spectrum(TypedDict):
    """What the analysis saw in a layer."""

    threshold: Fraction
    core: Count
    new: Count
    wanted: NotRequired[Count]
    lost: NotRequired[Finite]
    new_without_projection: Count
    first_core: Finite | None
    kept: Finite | None
    filters: Annotated[list[Count], Field(min_length=1)]
    explained: Annotated[list[Fraction], Field(min_length=1)]
    needed: dict[Annotated[str, Field(pattern=r"^[01](\.\d+)?$")], Count]


class Latency(TypedDict):
    """Seconds of one inference: median and quartiles over some runs."""

    median: NonNegative
    low: NonNegative
    high: NonNegative
    runs: Count


@with_config(extra="allow")
class Measured(TypedDict):
    """What an inference costs on one machine, by batch size."""

    machine: str
    threads: Count
    latency: dict[str, Latency]
    energy: dict[str, NonNegative] | None
    meter: str | None


@with_config(extra="allow")
class Costs(TypedDict):
    """What an inference of a network costs: counted, modelled and, where it was, measured."""

    parameters: Count
    multiply_adds: Count
    traffic: dict[str, Count]
    peak_memory: dict[str, Count]
    energy_modelled: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    measured: NotRequired[Measured]


class Found(TypedDict):
    """How often a task is inferred rightly, how often its label with it, and how often inputs are taken for no task's."""

    identified: Fraction
    accuracy: Fraction
    refused: NotRequired[Fraction]


@with_config(extra="allow")
class TaskResult(TypedDict):
    """What a run came to for one task."""

    name: str
    classes: Annotated[int, Field(ge=1)]
    train: Count
    valid: Count
    test: Count
    accuracy: Fraction
    accuracy_when_learned: Fraction
    validation_accuracy: Fraction
    widths: dict[str, Count]
    core_explained: dict[str, Finite]
    explained: dict[str, Finite]
    samples: dict[str, Count]
    spectrum: NotRequired[dict[str, Spectrum]]
    used: NotRequired[dict[str, Count]]
    size_after: NonNegative
    full: list[str]
    grown: bool
    parameters: Count
    multiply_adds: Count
    costs: NotRequired[dict[str, Costs]]
    epochs: dict[str, Count]
    digest: str
    seconds: dict[str, NonNegative]
    inferred: NotRequired[dict[str, Found] | None]


class Network(TypedDict):
    """The full network."""

    widths: dict[str, Count]
    parameters: Annotated[int, Field(ge=1)]
    multiply_adds: Annotated[int, Field(ge=1)]


class Inferred(TypedDict):
    """Means over all tasks, by row and by batches of `together` rows."""

    row: Found
    batch: Found
    together: Count


def _check(result: Any) -> Any:
    """Parts of a result must fit each other."""
    tasks, matrix = result["tasks"], result["accuracy_matrix"]
    names = [task["name"] for task in tasks]
    problems = {
        "tasks: a name is there twice": len(set(names)) < len(names),
        "accuracy_matrix: not a row and a column for every task": any(len(row) != len(tasks) for row in [matrix, *matrix]),
        "accuracy_matrix: a value is missing": any(None in row[: n + 1] for n, row in enumerate(matrix)),
        "seconds: no total": "total" not in result["seconds"],
    }
    for task in tasks:
        costs = task.get("costs")
        if costs is not None:
            energies = [cost["energy_modelled"].keys() for cost in costs.values()]
            problems[f"{task['name']}: costs of a network are missing"] = not {"network", "dense"} <= costs.keys()
            problems[f"{task['name']}: energy of a batch is missing"] = not all({"1", "64"} <= keys for keys in energies)
        for layer, seen in task.get("spectrum", {}).items():
            unequal = len(seen["filters"]) != len(seen["explained"])
            problems[f"{task['name']}, {layer}: filters and explained differ in length"] = unequal
    wrong = [text for text, found in problems.items() if found]
    if wrong:
        raise PydanticCustomError("result", "{text}", {"text": "; ".join(wrong[:5])})
    return result


@with_config(extra="allow")
class Result(TypedDict):
    """All that is worth keeping of a run."""

    schema: int
    spacecl: str
    benchmark: str
    method: str
    recipe: str
    seed: Count
    config: dict[str, Any]
    average_accuracy: Fraction
    backward_transfer: Finite
    forgetting: NotRequired[Finite]  # missing in files of earlier versions, as are others
    accuracy_matrix: list[list[Fraction | None]]
    inferred: NotRequired[Inferred | None]
    size: NonNegative
    storage: NotRequired[dict[str, Count]]
    network: Network
    tasks: Annotated[list[TaskResult], Field(min_length=1)]
    seconds: dict[str, NonNegative]


CheckedResult = Annotated[Result, AfterValidator(_check)]


def read_result(file: str | os.PathLike[str]) -> Result:
    """A result.json, validated; one of another schema, or of settings that are unknown here, is refused."""
    result: Result = read_document(file, CheckedResult)  # type: ignore[arg-type]
    if result["schema"] != SCHEMA:
        raise StoreError(f"{file} has schema {result['schema']}; this version of spacecl reads schema {SCHEMA}.")
    try:
        config = Config.from_json(result["config"], file)
    except ConfigError as error:
        raise StoreError(str(error)) from error
    result["config"] = config.to_json()
    if (config.method, config.benchmark, config.seed) != (result["method"], result["benchmark"], result["seed"]):
        raise StoreError(f"{file} is damaged: its settings are those of another run.")
    return result
