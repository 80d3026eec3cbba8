"""Power cuts at every moment of every sequence of writes: learners, checkpoints, journals, results, caches, complete runs.

`simulate.py` describes the states in which a disk may be afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spacecl import SPACE, Learner, Recipe, Task, disk, store
from spacecl.data import cache
from spacecl.data.arrays import DecodedDataset, Split
from spacecl.data.prepare import check_all_data
from spacecl.learning.checkpoints import Checkpointer, Epoch, PhaseState, random_state
from spacecl.runs.metrics_log import Journal, read_rows
from spacecl.runs.processes import make_fabric
from spacecl.runs.resolve import resolve
from spacecl.runs.run import make_learner
from spacecl.runs.run import run as run_tasks
from spacecl.runs.run_folder import (
    check_same_data,
    check_same_settings,
    describe_tasks,
    load_tasks,
    lock_run,
    read_settings,
    record_start,
)

from .guard import run_guarded
from .outcome import Outcome
from .simulate import Case, Parts, Scenario, check, make_cases, make_workspace

COMPLETE_RUN = "complete run"


def compute_digest(*values: Any) -> str:
    """Return a short digest of JSON values and tensors."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, (torch.Tensor, np.ndarray)):
            array = np.asarray(value)
            digest.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        elif isinstance(value, Mapping):
            for key in sorted(value):
                digest.update(f"{key}:{compute_digest(value[key])}".encode())
        else:
            digest.update(json.dumps(value).encode())
    return digest.hexdigest()[:12]


def make_scenarios(seed: int) -> Iterator[Scenario]:
    yield _make_learner_scenario(seed)
    yield _make_checkpoint_scenario()
    yield from _make_journal_scenarios()
    yield _make_result_scenario()
    yield _make_folder_scenario()
    yield _make_cache_scenario()


def _make_learner_scenario(seed: int) -> Scenario:
    """`Learner.save`: into new folders, the same again, and after one more task."""
    draw = torch.Generator().manual_seed(seed)

    def make_network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.ReLU(), torch.nn.Linear(12, 2))

    def make_task(name: str) -> Task:
        x = torch.randn(300, 6, generator=draw)
        return Task(name, (x, (x[:, 0] > 0).long()))

    first = Learner(make_network(), SPACE(variance=0.8, samples=60), example_input=torch.zeros(1, 6), progress=False)
    first.learn(make_task("one"), Recipe(epochs=1, retrain_epochs=1))
    with make_workspace() as top:
        first.save(top / "copy")
        second = Learner.load(top / "copy", make_network(), progress=False)
    second.learn(make_task("two"), Recipe(epochs=1, retrain_epochs=1))
    verified: dict[str, Any] = {}

    def read(folder: Path) -> Parts:
        if not (folder / "new" / "folders" / "model" / store.MANIFEST).exists():
            return {"learner": None}
        body, files = store.load(folder / "new" / "folders" / "model", dict)
        name = compute_digest(body["tasks"], files)
        if name not in verified:  # equal files load alike
            verified[name] = Learner.load(folder / "new" / "folders" / "model", make_network(), progress=False).verify()
        return {"learner": name}

    def save(learner: Learner) -> Callable[[Path], None]:
        return lambda folder: learner.save(folder / "new" / "folders" / "model")

    return Scenario("learner", (save(first), save(first), save(second), save(first)), read)


def _make_checkpoint_scenario() -> Scenario:
    """`Checkpointer.save` after every epoch of two phases, and the removal of the checkpoint."""

    def make_checkpointer(folder: Path) -> Checkpointer:
        return Checkpointer(folder / "checkpoints" / "1", {"task": "one", "seed": 0})

    def save(phase: str, epoch: int) -> Callable[[Path], None]:
        state, random_tensors = random_state(torch.device("cpu"))
        tensors = {"weight": torch.full((40, 40), float(epoch)), "never the same": torch.arange(epoch)}
        row = Epoch(phase=phase, epoch=epoch, loss=0.5, accuracy=0.75, valid_loss=0.4, lr=0.1, seconds=1.5)
        phase_state = PhaseState((row,), 0.75, False, (0.1,), {"last_epoch": epoch}, state)
        return lambda folder: make_checkpointer(folder).save(phase, phase_state, {"module": tensors, "random": random_tensors})

    def read(folder: Path) -> Parts:
        states = {phase: make_checkpointer(folder).load(phase) for phase in ("train", "retrain")}
        return {
            phase: state and [state[0].history[0]["epoch"], compute_digest(asdict(state[0]), state[1])]
            for phase, state in states.items()
        }

    def remove(folder: Path) -> None:
        with lock_run(folder):
            disk.remove(folder / "checkpoints")

    steps = (*(save("train", epoch) for epoch in (1, 2, 3)), *(save("retrain", epoch) for epoch in (1, 2)))
    return Scenario("checkpoints", (*steps, remove), read)


def _make_journal_scenarios() -> Iterator[Scenario]:
    """Yield scenarios that add rows, one of several blocks, to a new journal and to one with a truncated line."""
    epoch = {"loss": 0.5, "accuracy": 0.75, "valid_loss": 0.4, "lr": 0.1, "seconds": 1.5}
    rows: list[dict[str, Any]] = [
        *({"kind": "epoch", "task": "one", "phase": "train", "epoch": number, **epoch} for number in (1, 2)),
        {"kind": "test", "after": 1, "accuracy": {f"task {n}": n / 300 for n in range(300)}, "size": 0.5, "seconds": 1.0},
        {"kind": "test", "after": 2, "accuracy": {"one": 1.0, "two": 0.5}, "size": 0.5, "seconds": 1.0},
    ]

    def add(row: dict[str, Any]) -> Callable[[Path], None]:
        return lambda folder: Journal(folder / "metrics.jsonl").add(row)

    def read(folder: Path) -> Parts:
        return {"rows": read_rows(folder / "metrics.jsonl")[0]}

    def cut(folder: Path) -> None:
        (folder / "metrics.jsonl").write_text(f"{json.dumps(rows[0])}\n{json.dumps(rows[1])[:50]}")

    yield Scenario("journal", tuple(map(add, rows)), read)
    yield Scenario("journal with a cut line", tuple(map(add, rows[1:])), read, cut)


def _make_result_scenario() -> Scenario:
    """result.json at the end of a run, and again when costs have been measured."""

    def write(value: Any) -> Callable[[Path], None]:
        def step(folder: Path) -> None:
            with lock_run(folder):
                disk.write_file(folder / "result.json", json.dumps(value, indent=1).encode())

        return step

    def read(folder: Path) -> Parts:
        file = folder / "result.json"
        return {"result": json.loads(file.read_bytes()) if file.exists() else None}

    return Scenario("result", (write({"schema": 1, "tasks": ["one"] * 900}), write({"schema": 1, "tasks": []})), read)


def _make_settings() -> Any:
    train = {"epochs": 2, "retrain_epochs": 1}
    return resolve({"benchmark": "permuted-digits", "tasks": 2, "limit": 200, "train": train, "device": "cpu"})


def _make_folder_scenario() -> Scenario:
    """The settings, tasks and machine of a run that begins, and begins again."""
    config = _make_settings()
    tasks, example = load_tasks(config, None)
    counts = [check_all_data(task, example)[1] for task in tasks]
    facts = describe_tasks(tasks, counts)

    def start(folder: Path) -> None:
        disk.make_folder(folder / "run")
        with lock_run(folder / "run"):
            check_same_settings(folder / "run", config)
            check_same_data(folder / "run", facts)
            learner = make_learner(config, folder / "run", example, counts[0]["classes"], len(tasks), make_fabric(config))
            record_start(folder / "run", config, facts, learner)

    def read(folder: Path) -> Parts:
        run = folder / "run"
        parts: Parts = {"config": read_settings(run) if (run / "config.json").exists() else None}
        for name in ("tasks", "environment"):
            file = run / f"{name}.json"
            parts[name] = json.loads(file.read_bytes()) if file.exists() else None
        parts["environment"] = parts["environment"] and {start["machine"]["system"] for start in parts["environment"]}
        return parts

    return Scenario("folder of a run", (start, start), read)


def _make_cache_scenario() -> Scenario:
    """Decoded data: an entry, another one, and one that is made again because it is damaged."""
    sources = [Path(__file__), Path(__file__).with_name("outcome.py")]
    pixels = np.arange(40 * 8 * 8 * 3, dtype=np.uint8).reshape(40, 8, 8, 3)
    labels = np.arange(40) % 2

    def decode(number: int) -> Callable[[], DecodedDataset]:
        train, test = Split(pixels + np.uint8(number), labels), Split(pixels[:9], labels[:9])
        return lambda: DecodedDataset(train, test, ("cat", "dog"))

    def use(number: int) -> Callable[[Path], None]:
        def step(folder: Path) -> None:
            with _use_cache_folder(folder):
                cache.load_decoded(f"toy{number}", [sources[number]], decode(number))

        return step

    def damage(folder: Path) -> None:
        for file in (folder / "decoded").glob("toy0-*/about.json"):
            disk.remove(file)

    def read(folder: Path) -> Parts:
        parts: Parts = {}
        for number in (0, 1):
            entries = list((folder / "decoded").glob(f"toy{number}-*"))
            entry = cache.read_entry(entries[0]) if entries else None
            parts[f"entry {number}"] = entry and compute_digest(
                *entry.train, *entry.test, entry.classes, entry.note, entry.statistics
            )
        return parts

    return Scenario("cache", (use(0), use(1), use(0), damage, use(0)), read)


@contextmanager
def _use_cache_folder(folder: Path) -> Iterator[None]:
    before = os.environ.get("SPACECL_CACHE")
    os.environ["SPACECL_CACHE"] = str(folder)
    try:
        yield
    finally:
        del os.environ["SPACECL_CACHE"]
        if before is not None:
            os.environ["SPACECL_CACHE"] = before


def _make_run_scenario() -> Scenario:
    """A complete run of two tasks; every state is resumed to the same result."""
    config = _make_settings()

    def go(folder: Path) -> None:
        run_tasks(config, folder / "run", progress=False, print_line=lambda text: None)

    def read(folder: Path) -> Parts:
        file = folder / "run" / "result.json"
        return {"result": _without_times(json.loads(file.read_bytes())) if file.exists() else None}

    return Scenario(COMPLETE_RUN, (go,), read)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(inner) for key, inner in value.items() if key not in ("seconds", "measured")}
    return [_without_times(inner) for inner in value] if isinstance(value, list) else value


def run(count: int, seed: int) -> Outcome:
    """Try `count` states of every scenario, or with 0 all of them; of the complete run a tenth."""
    torch.set_num_threads(1)
    draw, chosen, states = random.Random(seed), list[Case](), 0
    for scenario in (*make_scenarios(seed), _make_run_scenario()):
        cases = make_cases(scenario, seed)
        limit = count or len(cases)
        limit = max(1, count // 10) if count and scenario.name == COMPLETE_RUN else limit  # each is resumed to its end
        chosen += draw.sample(cases, min(limit, len(cases)))
        states += len(cases)
    outcome = run_guarded(
        "power", chosen, check, kind=lambda case: case.scenario.name, describe=lambda case: case.text, seconds=60
    )
    outcome.notes["different_states"] = states
    return outcome
