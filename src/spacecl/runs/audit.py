"""What is in a run's folder: whether every task is as it was committed, and how much room is left."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from .. import store
from ..errors import StoreError
from ..learner import Learner
from ..learning.record import TaskRecord
from ..learning.saved import SavedLearner
from .open_run import OpenRun

Found = dict[str, Any]


def verify(run: OpenRun, measure: bool = False, data: str | os.PathLike[str] | None = None, tolerance: float = 0.0) -> Found:
    """Hold every task's bytes against the digest of its commit and, with `measure`, its accuracy against the record's.

    Nothing is raised for a task that is not as it was: `ok` says whether all are, and `problem` why one is not.
    """
    body, _, problems = store.read_version(run.model, SavedLearner)
    broken = {name: str(problem) for name, problem in problems.items()}
    recorded, tasks = run.recorded(), []
    learner = None if broken else run.learner(verify=False)
    digests = {} if learner is None else learner.digests()
    streams = run.tasks(data) if measure and learner is not None else {}
    for number, record in enumerate(body.tasks):
        name, said = record.name, recorded.get(record.name, {})
        digest = digests.get(name)
        entry: Found = {"task": name, "committed": record.digest, "digest": digest, "problem": None}
        wrong = [broken[key] for key in ("core", f"task {number}") if key in broken]
        if broken and not wrong:
            wrong = ["not checked, for the learner cannot be loaded while other files are damaged"]
        if digest is not None and digest != record.digest:
            wrong.append("its bytes are not those of its commit")
        if said.get("digest") not in (None, record.digest):
            wrong.append("result.json has the digest of another network")
        if measure and learner is not None:
            if name not in streams or "accuracy" not in said:
                raise StoreError(f"Task {name!r}: {run.folder} has {'no data' if name not in streams else 'no record'} of it.")
            entry |= {"accuracy": learner.evaluate(streams[name].test, name), "recorded": said["accuracy"]}  # type: ignore[arg-type]
            if not abs(entry["accuracy"] - entry["recorded"]) <= tolerance:
                wrong.append(f"its accuracy is {entry['accuracy']:.4%}, but was {entry['recorded']:.4%}")
        entry["problem"] = "; ".join(wrong) or None
        tasks.append(entry)
    lost = [
        f"{name}: in the run's record, but not in the learner" for name in recorded if name not in {t["task"] for t in tasks}
    ]
    ok = not lost and not broken and all(entry["problem"] is None for entry in tasks)
    return {"folder": str(run.folder), "ok": ok, "measured": measure and learner is not None, "tasks": tasks, "lost": lost}


def inspect(learner: Learner) -> Found:
    """What a learner has: tasks with their widths, room in every layer, and how many tasks like the last would fit."""
    room = {
        layer: {"of": counts["of"], "taken": counts["taken"], "last": counts["last"], "free": counts["of"] - counts["taken"]}
        for layer, counts in learner.capacity.items()
    }
    return {
        "method": type(learner.method).__name__,
        "size": learner.size,
        "storage": learner.storage,
        "tasks": _tasks(learner.records.values()),
        "layers": room,
        "forecast": forecast(room),
    }


def inspect_without_code(run: OpenRun) -> Found:
    """The same for a folder whose network's code is not trusted, as far as it can be said: what needs the network is None."""
    body = store.read_manifest(run.model, SavedLearner)[0]
    size = body.tasks[-1].size if body.tasks else 0.0
    tasks = _tasks(body.tasks)
    return {"method": body.method.name, "size": size, "storage": None, "tasks": tasks, "layers": None, "forecast": None}


def _tasks(records: Iterable[TaskRecord]) -> list[Found]:
    return [
        {
            "task": record.name,
            "classes": record.classes,
            "accuracy": record.accuracy,
            "parameters": record.parameters,
            "size": record.size,
            "widths": dict(record.widths),
            "digest": record.digest,
        }
        for record in records
    ]


def forecast(room: Mapping[str, Mapping[str, int]]) -> Found:
    """How many more tasks like the last fit, in the layer that has least room for them.

    >>> forecast({"conv1": {"free": 12, "last": 5}, "conv2": {"free": 0, "last": 0}})
    {'tasks': 2, 'layer': 'conv1', 'full': ['conv2']}
    """
    full = [layer for layer, counts in room.items() if not counts["free"]]
    more = {layer: counts["free"] // counts["last"] for layer, counts in room.items() if counts["last"]}
    least = min(more, key=more.__getitem__, default=None)
    return {"tasks": None if least is None else more[least], "layer": least, "full": full}
