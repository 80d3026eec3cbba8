"""Several processes that save to one folder, one of them killed, while others read it."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import torch

from spacecl import FineTune, Learner, Recipe, Task, disk, store

from .outcome import Outcome
from .power import compute_digest
from .simulate import make_workspace

WRITERS, READERS, SAVES = 3, 2, 4
SECONDS = 60.0  # a process that takes longer hangs


def run(count: int, seed: int) -> Outcome:
    """Try `count` rounds; each must leave a version that a writer saved, and readers must see only such versions."""
    torch.set_num_threads(1)
    outcome, draw = Outcome("writers"), random.Random(seed)
    learners = [_teach(seed + number) for number in range(WRITERS + 1)]
    saves = reads = 0
    for number in range(count):
        started = time.perf_counter()
        with make_workspace() as top:
            problems, new_reads = _run_round(top / "model", learners, draw.uniform(0, 0.1))
        outcome.longest = max(outcome.longest, time.perf_counter() - started)
        saves, reads = saves + WRITERS * SAVES, reads + new_reads
        text = "; ".join(sorted(set(problems)))
        outcome.add("several writers", "wrong" if problems else "complete", f"round {number}: {text}" if problems else None)
    outcome.notes |= {"saves": saves, "reads": reads}
    return outcome


def _teach(seed: int) -> Learner:
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(seed))
    learner = Learner(_make_network(), FineTune(), example_input=torch.zeros(1, 6), seed=seed, progress=False)
    learner.learn(Task(f"task {seed}", (x, (x[:, 0] > 0).long())), Recipe(epochs=1))
    return learner


def _make_network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 300), torch.nn.ReLU(), torch.nn.Linear(300, 2))


def _run_round(folder: Path, learners: list[Learner], delay: float) -> tuple[list[str], int]:
    """Run one round; return its problems, and how often the folder was read."""
    learners[0].save(folder)
    known = set()
    for learner in learners:
        learner.save(folder.with_name("known"))
        known.add(_read(folder.with_name("known")))
    context = multiprocessing.get_context("fork")
    reports: SimpleQueue[str | int] = context.SimpleQueue()
    is_over = context.Event()

    def write(learner: Learner) -> int:
        for _ in range(SAVES):
            learner.save(folder)
        return 0

    def write_until_killed() -> int:
        while True:
            learners[-1].save(folder)

    def read() -> int:
        count = 0
        while not is_over.is_set():
            assert _read(folder) in known, "a reader saw a version that nobody saved"
            count += 1
        return count

    def start(function: Callable[..., int], *arguments: object) -> multiprocessing.process.BaseProcess:
        def work() -> None:
            torch.set_num_threads(1)
            try:
                reports.put(function(*arguments))
            except BaseException as error:
                reports.put(f"{function.__name__}: {type(error).__name__}: {str(error).replace(str(folder), 'FOLDER')}")

        process = context.Process(target=work)
        process.start()
        return process

    victim = start(write_until_killed)
    readers = [start(read) for _ in range(READERS)]
    writers = [start(write, learner) for learner in learners[:WRITERS]]
    time.sleep(delay)
    victim.kill()
    problems = []
    for process in (victim, *writers):
        process.join(SECONDS)
    is_over.set()
    for process in readers:
        process.join(SECONDS)
    for process in (victim, *writers, *readers):
        if process.is_alive():
            problems.append("a process hangs")
            process.kill()
    reads = 0
    while not reports.empty():
        report = reports.get()
        if isinstance(report, str):
            problems.append(report)
        else:
            reads += report
    try:
        assert _read(folder) in known, "the folder has a version that nobody saved"
        learners[0].save(folder)
        Learner.load(folder, _make_network(), progress=False)
        left = sorted(path.name for path in folder.iterdir() if disk.TEMPORARY in path.name)
        assert not left, f"{left} are left"
    except Exception as error:
        problems.append(f"at the end: {type(error).__name__}: {str(error).replace(str(folder), 'FOLDER')}")
    return problems, reads


def _read(folder: Path) -> str:
    body, files = store.load(folder, dict)
    return compute_digest(body["tasks"], files)
