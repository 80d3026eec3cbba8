"""Check a run's folder: whether every task is as it was committed, and how much capacity is left."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from typing_extensions import NotRequired, TypedDict

from .. import store
from ..data.targets import TargetKind
from ..errors import StoreError
from ..learner import Learner
from ..learning.analysis import LayerSpectrum, Target
from ..learning.method import name_method
from ..learning.record import TaskRecord
from ..learning.saved import SavedLearner
from ..progress import format_score
from .open_run import OpenRun


class TaskCheck(TypedDict):
    """Whether a task is as it was committed."""

    task: str
    committed: str  # the digest of its commit
    digest: str | None  # of its bytes now; None if they cannot be read
    problem: str | None
    score: NotRequired[float]  # now, and as the run recorded it; both only if they were measured
    recorded: NotRequired[float]
    metric: NotRequired[str]
    accuracy: NotRequired[float]  # the score, if the metric is accuracy


class Verification(TypedDict):
    """Whether all tasks of a folder are as they were committed."""

    folder: str
    ok: bool
    measured: bool  # whether scores were measured
    tasks: list[TaskCheck]
    lost: list[str]  # tasks that the run has recorded and the learner does not have


class TaskSummary(TypedDict):
    """A task that a learner has learned."""

    task: str
    target_kind: TargetKind  # what it predicts
    classes: int  # or labels, or values
    metric: str
    score: float  # on validation data
    accuracy: float | None  # the same, if the metric is accuracy
    parameters: int
    size: float  # of all networks up to this one
    widths: dict[str, int]
    digest: str
    target: Target | None  # what its network was to reach, and what it did; None for methods that have no target
    kept: dict[str, KeptChannels]  # by layer; empty for methods that analyze nothing


class KeptChannels(TypedDict):
    """The channels of one layer in a task's network, and why so many."""

    core: int  # that earlier tasks had committed
    reused: int  # those of them that this task's network has
    new: int
    cost: float | None  # of leaving out the free ones: the rise of the loss, or a share of variance; None in older records
    cost_of_none: float | None  # of leaving out the new ones, too


class LayerCapacity(TypedDict):
    """The channels of a layer, or its weights for methods that share these: all, used, used by the last task, free."""

    of: int
    taken: int
    last: int
    free: int


class Forecast(TypedDict):
    """How many more tasks like the last one fit."""

    tasks: int | None  # None: any number
    layer: str | None  # the layer that limits them
    full: list[str]  # layers with nothing free


class Inspection(TypedDict):
    """What a learner has learned, and its capacity; None where that takes running code that is not trusted."""

    method: str
    size: float
    storage: dict[str, int] | None
    tasks: list[TaskSummary]
    layers: dict[str, LayerCapacity] | None
    forecast: Forecast | None


def verify(
    run: OpenRun, measure: bool = False, data: str | os.PathLike[str] | None = None, tolerance: float = 0.0
) -> Verification:
    """Compare every task's bytes with the digest of its commit and, with `measure`, its score with the recorded one.

    A task that differs raises no error: `ok` says whether all tasks are as they were, and `problem` what is wrong with one.
    `tolerance` is by how much a score may differ; of one beyond 1, in proportion to it.
    """
    body, _, errors = store.read_version(run.model, SavedLearner)
    recorded = run.read_records()
    learner = None if errors else run.learner(verify=False)
    digests = {} if learner is None else learner.digests()
    tasks = run.tasks(data) if measure and learner is not None else {}
    checks: list[TaskCheck] = []
    for number, record in enumerate(body.tasks):
        name, digest, known = record.name, digests.get(record.name), recorded.get(record.name)
        check: TaskCheck = {"task": name, "committed": record.digest, "digest": digest, "problem": None}
        problems = [str(errors[key]) for key in ("core", f"task {number}") if key in errors]
        if errors and not problems:
            problems = ["not checked, because the learner cannot be loaded while other files are damaged"]
        if digest is not None and digest != record.digest:
            problems.append("its bytes are not those of its commit")
        if known is not None and known.digest not in (None, record.digest):
            problems.append("result.json has the digest of another network")
        if measure and learner is not None:
            if name not in tasks or known is None:
                raise StoreError(f"Task {name!r}: {run.folder} has {'no data' if name not in tasks else 'no record'} of it.")
            score = learner.evaluate(tasks[name].test, name, metric=tasks[name].metric)  # type: ignore[arg-type]
            check |= {"score": score, "recorded": known.score, "metric": record.metric}
            check |= {} if record.accuracy is None else {"accuracy": score}
            if not abs(score - known.score) <= tolerance * max(1.0, abs(known.score)):
                now, then = (format_score(value, record.metric, 4) for value in (score, known.score))
                problems.append(f"its {record.metric} is {now}, but was {then}")
        check["problem"] = "; ".join(problems) or None
        checks.append(check)
    names = {record.name for record in body.tasks}
    lost = [f"{name}: in the run's record, but not in the learner" for name in recorded if name not in names]
    return {
        "folder": str(run.folder),
        "ok": not lost and not errors and all(check["problem"] is None for check in checks),
        "measured": measure and learner is not None,
        "tasks": checks,
        "lost": lost,
    }


def inspect(learner: Learner) -> Inspection:
    """List a learner's tasks with their widths, the capacity of every layer, and how many tasks like the last would fit."""
    layers: dict[str, LayerCapacity] = {
        layer: {"of": counts["of"], "taken": counts["taken"], "last": counts["last"], "free": counts["of"] - counts["taken"]}
        for layer, counts in learner.capacity.items()
    }
    return {
        "method": name_method(learner.method),
        "size": learner.size,
        "storage": learner.storage,
        "tasks": _summarize_tasks(learner.records.values()),
        "layers": layers,
        "forecast": forecast(layers),
    }


def inspect_without_code(run: OpenRun) -> Inspection:
    """The same for a folder whose network's code is not trusted: only what can be read without running it."""
    body = store.read_manifest(run.model, SavedLearner)[0]
    size = body.tasks[-1].size if body.tasks else 0.0
    tasks = _summarize_tasks(body.tasks)
    return {"method": body.method.name, "size": size, "storage": None, "tasks": tasks, "layers": None, "forecast": None}


def _summarize_tasks(records: Iterable[TaskRecord]) -> list[TaskSummary]:
    return [
        {
            "task": record.name,
            "target_kind": record.target_kind,
            "classes": record.classes,
            "metric": record.metric,
            "score": record.score,
            "accuracy": record.accuracy,
            "parameters": record.parameters,
            "size": record.size,
            "widths": dict(record.widths),
            "digest": record.digest,
            "target": record.target,
            "kept": {layer: _describe_kept(spectrum) for layer, spectrum in record.spectrum.items()},
        }
        for record in records
    ]


def _describe_kept(spectrum: LayerSpectrum) -> KeptChannels:
    return {
        "core": spectrum.get("core", 0),
        "reused": spectrum.get("reused", spectrum.get("core", 0)),
        "new": spectrum.get("new", 0),
        "cost": spectrum.get("cost"),
        "cost_of_none": spectrum.get("cost_of_none"),
    }


def forecast(layers: Mapping[str, LayerCapacity]) -> Forecast:
    """Forecast how many more tasks like the last fit: as many as in the layer with the least capacity for them.

    >>> conv1, conv2 = {"of": 20, "taken": 8, "last": 5, "free": 12}, {"of": 9, "taken": 9, "last": 0, "free": 0}
    >>> forecast({"conv1": conv1, "conv2": conv2})
    {'tasks': 2, 'layer': 'conv1', 'full': ['conv2']}
    """
    full = [layer for layer, counts in layers.items() if not counts["free"]]
    more = {layer: counts["free"] // counts["last"] for layer, counts in layers.items() if counts["last"]}
    least = min(more, key=more.__getitem__, default=None)
    return {"tasks": None if least is None else more[least], "layer": least, "full": full}
