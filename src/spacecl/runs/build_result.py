"""Build the content of result.json from a learner that has learned all tasks of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import __version__
from ..data.prepare import DataCounts
from ..data.task import Task
from ..learner import Learner
from ..learning.record import TaskRecord
from ..structure.calling import Inputs
from .config import Config
from .costs import count_costs, multiply_adds
from .inference_accuracy import average_accuracies, evaluate_inference
from .metrics import average_score, backward_transfer, forgetting, name_metric
from .metrics_log import Journal
from .result import SCHEMA, InferenceRates, Result, TaskCosts, TaskResult


def build_result(
    config: Config,
    learner: Learner,
    tasks: Sequence[Task],
    counts: Sequence[DataCounts],
    example: Inputs,
    journal: Journal,
) -> Result:
    """All results of a run. Times stand under keys named `seconds`; everything else is the same for the same seed.

    `counts` has the number of classes and examples of every task; `example` is an input; `journal` has all tests.
    """
    tests = journal.get_tests()
    rows = [tests[after]["score"] for after in range(1, len(tasks) + 1)]
    matrix = [[row.get(task.name) for task in tasks] for row in rows]
    dense = {classes: count_costs(learner.dense(classes), example) for classes in {count["classes"] for count in counts}}
    inferred = evaluate_inference(learner, tasks)
    results = []
    for number, (task, count) in enumerate(zip(tasks, counts)):
        network = count_costs(learner.subnet(task.name), example)
        costs: TaskCosts = {"network": network, "dense": dense[count["classes"]].copy()}
        scores = [row[number] for row in matrix]
        seconds = tests[number + 1].get("seconds", 0.0)
        results.append(_build_task(learner.records[task.name], count, scores, costs, inferred.get(task.name), number, seconds))
    metric = name_metric(result["metric"] for result in results)
    is_accuracy = all(result["accuracy"] is not None for result in results)
    full = learner.full()
    phases = sorted({phase for result in results for phase in result["seconds"]})
    seconds_by_phase = {phase: sum(result["seconds"].get(phase, 0.0) for result in results) for phase in phases}
    return {
        "schema": SCHEMA,
        "spacecl": __version__,
        "benchmark": config.benchmark,
        "method": config.method,
        "recipe": config.recipe,
        "seed": config.seed,
        "config": config.to_json(),
        "metric": metric,
        "average_score": average_score(matrix),
        "average_accuracy": average_score(matrix) if is_accuracy else None,
        "backward_transfer": backward_transfer(matrix),
        "forgetting": forgetting(matrix),
        "score_matrix": matrix,
        "accuracy_matrix": matrix if is_accuracy else None,
        "inferred": average_accuracies(list(inferred.values())),
        "size": learner.size,
        "storage": learner.storage,
        "network": {
            "widths": learner.widths,
            "parameters": sum(parameter.numel() for parameter in full.parameters()),
            "multiply_adds": multiply_adds(full, example),
        },
        "tasks": results,
        "seconds": {**seconds_by_phase, "total": sum(seconds_by_phase.values())},
    }


def _build_task(
    record: TaskRecord,
    count: DataCounts,
    scores: Sequence[float | None],
    costs: TaskCosts,
    inferred: dict[str, InferenceRates] | None,
    number: int,
    test_seconds: float,
) -> TaskResult:
    """The results of one task. `scores` are those after every task of the run; `number` counts from 0."""
    is_accuracy = record.accuracy is not None
    result: Any = {
        "name": record.name,
        **count,
        "target_kind": record.target_kind,
        "metric": record.metric,
        "score": scores[-1],
        "score_when_learned": scores[number],
        "validation_score": record.score,
        "accuracy": scores[-1] if is_accuracy else None,
        "accuracy_when_learned": scores[number] if is_accuracy else None,
        "validation_accuracy": record.accuracy,
        "widths": dict(record.widths),
        "core_explained": dict(record.core_explained),
        "explained": dict(record.explained),
        "samples": dict(record.samples),
        "spectrum": dict(record.spectrum),
        "target": record.target,
        "used": dict(record.used),
        "size_after": record.size,
        "full": list(record.full),
        "grown": record.grown,
        "parameters": record.parameters,
        "multiply_adds": costs["network"]["multiply_adds"],
        "costs": costs,
        "epochs": _count_epochs(record.history),
        "digest": record.digest,
        "seconds": {**record.seconds, "test": test_seconds},
        "inferred": inferred,
    }
    return result


def _count_epochs(history: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The number of epochs in every phase, in the order of the phases."""
    phases = [row["phase"] for row in history]
    return {phase: phases.count(phase) for phase in dict.fromkeys(phases)}
