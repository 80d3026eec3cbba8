"""What users wait for before any work begins: imports, wrapping a model, saving and loading."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median

import torch
from random_learner import make_learner
from timing import Row, Work, compute_ratio, measure_seconds, time_in_turns

from spacecl import SPACE, Learner, store
from spacecl.data.benchmarks.networks import ResNet18
from spacecl.learning.saved import SavedLearner


def measure_wrapping() -> Iterator[Row]:
    example, model = torch.zeros(1, 3, 32, 32), ResNet18()
    loading = measure_seconds(lambda: import_module("torch.export._trace"))
    first = measure_seconds(lambda: Learner(model, SPACE(), example_input=example))
    again = median(measure_seconds(lambda: Learner(model, SPACE(), example_input=example)) for _ in range(3))
    built = median(measure_seconds(ResNet18) for _ in range(3))
    result = f"{first:.2f} s, {again:.2f} s again; before the first in a process torch loads its exporter for {loading:.2f} s; "
    result += f"building it {built:.2f} s"
    figures = {"first": first, "again": again, "built": built, "loading": loading}
    yield Row("wrapping a ResNet-18, validation included", "building it", "< 3 s", result, first < 3, figures)


def measure_storage() -> Iterator[Row]:
    learner = make_learner(ResNet18(), torch.zeros(1, 3, 32, 32), _grow_widths(10))
    with tempfile.TemporaryDirectory() as folder:
        own, other = Path(folder) / "own", Path(folder) / "other.pt"
        learner.save(own)
        _, files = store.load(own, SavedLearner)
        torch.save(files, other)
        size = sum(file.stat().st_size for file in own.iterdir())
        fresh, again = Path(folder) / "fresh", Path(folder) / "again.pt"

        def save() -> None:
            shutil.rmtree(fresh, ignore_errors=True)  # files that exist already would not be written again
            learner.save(fresh)

        def torch_save() -> None:
            again.unlink(missing_ok=True)
            torch.save(files, again)

        times = time_in_turns({"save": save, "torch.save": torch_save}, rounds=15)
        model = ResNet18()
        works = {
            "load": lambda: Learner.load(own, model),
            "torch.load": lambda: torch.load(other, weights_only=True),
            "read": lambda: store.load(own, SavedLearner),
            "verify": learner.verify,
        }
        times |= time_in_turns(works, rounds=5)
    saved, read = compute_ratio(times["save"], times["torch.save"]), compute_ratio(times["read"], times["torch.load"])
    read_and_verify = [a + b for a, b in zip(times["read"], times["verify"])]
    verified, complete = compute_ratio(read_and_verify, times["torch.load"]), compute_ratio(times["load"], times["torch.load"])
    what = f"saving 10 tasks of a ResNet-18, {size / 1e6:.0f} MB"
    yield Row(what, "torch.save of the same bytes", "<= 2 x", f"{saved:.2f} x", saved <= 2, {"save": saved})
    result = f"{verified:.2f} x with all digests; {complete:.1f} x with the wrapping of the model (see above)"
    figures = {"read": read, "read_and_verify": verified, "load": complete}
    yield Row("loading them", "torch.load of the same bytes", "<= 2 x", result, verified <= 2, figures)


def _grow_widths(tasks: int) -> list[list[int]]:
    widths = [40, 40, 40, 80, 80, 80, 160, 160, 160, 320, 320, 320]
    return [[width * (number + 1) // tasks for width in widths] for number in range(tasks)]


def measure_imports() -> Iterator[Row]:
    def run_python(code: str) -> Work:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)

    command = [str(Path(sys.executable).with_name("spacecl")), "--help"]
    works = {
        "help": lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL),
        "torch": run_python("import torch"),
        "spacecl": run_python("import spacecl"),
        "learner": run_python("from spacecl import Learner"),
    }
    times = time_in_turns(works, rounds=5)
    spent = median(times["help"])
    yield Row("spacecl --help", "the clock", "<= 0.3 s", f"{spent:.2f} s", spent <= 0.3, {"seconds": spent})
    lazy, used = compute_ratio(times["spacecl"], times["torch"]), compute_ratio(times["learner"], times["torch"])
    result = f"{lazy:.2f} x; {used:.2f} x when Learner is imported from it"
    figures = {"import": lazy, "import_learner": used}
    yield Row("import spacecl", "import torch", "<= 1.2 x", result, used <= 1.2, figures)


def run() -> list[Row]:
    torch.manual_seed(0)
    return [*measure_imports(), *measure_wrapping(), *measure_storage()]
