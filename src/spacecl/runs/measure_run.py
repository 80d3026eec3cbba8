"""Measure what inference costs with the networks of a finished run, and add it to result.json."""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch import nn

from .. import disk
from ..learner import Learner
from ..structure.calling import Inputs, move_tensors
from .config import Config
from .costs import measure_costs
from .result import Measurement, Result, read_result
from .run_folder import load_learner, lock_run


def measure_run(out: str | os.PathLike[str]) -> Result:
    """Add latency and energy on this machine to a finished run's result.json, unless they are there already.

    No data is read. The code that the run names as its network is run: the caller has to know that it can be trusted.
    """
    folder = Path(out)
    with lock_run(folder):
        result = read_result(folder / "result.json")
        if not has_measurements(result):
            learner = load_learner(folder / "model", Config.from_json(result["config"]))
            add_measurements(learner, result, learner.example)
            disk.write_file(folder / "result.json", json.dumps(result, indent=1).encode())
    return result


def has_measurements(result: Result) -> bool:
    """Whether nothing is left to measure; so it is for results of older versions, which have no counted costs either."""
    costs = (cost for task in result["tasks"] for cost in (task["costs"]["network"], task["costs"]["dense"]))
    return all("measured" in cost or cost["traffic"] is None for cost in costs)


def add_measurements(learner: Learner, result: Result, example: Inputs) -> None:
    """Measure every task's network, and the full one with the task's head; networks of the same shapes only once."""
    known: dict[tuple[tuple[int, ...], ...], Measurement] = {}

    def measure(module: nn.Module) -> Measurement:
        shapes = tuple(tuple(tensor.shape) for tensor in module.state_dict().values())
        if shapes not in known:
            device = learner.fabric.device
            known[shapes] = measure_costs(module.to(device), move_tensors(example, device), learner.channels_last)
        return known[shapes]

    for task in result["tasks"]:
        task["costs"]["network"]["measured"] = measure(learner.subnet(task["name"]))
        task["costs"]["dense"]["measured"] = measure(learner.dense(task["classes"]))
