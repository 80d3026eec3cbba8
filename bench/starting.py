"""What users wait for before any work is done: imports, wrapping a model, saving and loading."""

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
from learned import learner
from timing import Row, ratio, seconds, together

from spacecl import SPACE, Learner, store
from spacecl.data.benchmarks.networks import ResNet18
from spacecl.learning.saved import SavedLearner


def wrapping() -> Iterator[Row]:
    example, model = torch.zeros(1, 3, 32, 32), ResNet18()
    loading = seconds(lambda: import_module("torch.export._trace"))
    first = seconds(lambda: Learner(model, SPACE(), example_input=example))
    again = median(seconds(lambda: Learner(model, SPACE(), example_input=example)) for _ in range(3))
    built = median(seconds(ResNet18) for _ in range(3))
    told = f"{first:.2f} s, {again:.2f} s again; before the first in a process torch loads its exporter for {loading:.2f} s; "
    told += f"building it {built:.2f} s"
    figures = {"first": first, "again": again, "built": built, "loading": loading}
    yield Row("wrapping a ResNet-18, door check included", "building it", "< 3 s", told, first < 3, figures)


def keeping() -> Iterator[Row]:
    taught = learner(ResNet18(), torch.zeros(1, 3, 32, 32), _shares(10))
    with tempfile.TemporaryDirectory() as folder:
        own, other = Path(folder) / "own", Path(folder) / "other.pt"
        taught.save(own)
        _, files = store.load(own, SavedLearner)
        torch.save(files, other)
        size = sum(file.stat().st_size for file in own.iterdir())
        fresh, again = Path(folder) / "fresh", Path(folder) / "again.pt"

        def save() -> None:
            shutil.rmtree(fresh, ignore_errors=True)  # what is there already would not be written again
            taught.save(fresh)

        def torch_save() -> None:
            again.unlink(missing_ok=True)
            torch.save(files, again)

        found = together({"save": save, "torch.save": torch_save}, rounds=15)
        model = ResNet18()
        works = {
            "load": lambda: Learner.load(own, model),
            "torch.load": lambda: torch.load(other, weights_only=True),
            "read": lambda: store.load(own, SavedLearner),
            "verify": taught.verify,
        }
        found |= together(works, rounds=5)
    saved, read = ratio(found["save"], found["torch.save"]), ratio(found["read"], found["torch.load"])
    checked = [a + b for a, b in zip(found["read"], found["verify"])]
    loaded, whole = ratio(checked, found["torch.load"]), ratio(found["load"], found["torch.load"])
    what = f"saving 10 tasks of a ResNet-18, {size / 1e6:.0f} MB"
    yield Row(what, "torch.save of the same bytes", "<= 2 x", f"{saved:.2f} x", saved <= 2, {"save": saved})
    told = f"{loaded:.2f} x with all digests; {whole:.1f} x with the wrapping of the model (see above)"
    figures = {"read": read, "read_and_verify": loaded, "load": whole}
    yield Row("loading them", "torch.load of the same bytes", "<= 2 x", told, loaded <= 2, figures)


def _shares(tasks: int) -> list[list[int]]:
    widths = [40, 40, 40, 80, 80, 80, 160, 160, 160, 320, 320, 320]
    return [[width * (number + 1) // tasks for width in widths] for number in range(tasks)]


def importing() -> Iterator[Row]:
    def python(code: str):
        return lambda: subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)

    command = [str(Path(sys.executable).with_name("spacecl")), "--help"]
    works = {
        "help": lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL),
        "torch": python("import torch"),
        "spacecl": python("import spacecl"),
        "learner": python("from spacecl import Learner"),
    }
    found = together(works, rounds=5)
    spent = median(found["help"])
    yield Row("spacecl --help", "the clock", "<= 0.3 s", f"{spent:.2f} s", spent <= 0.3, {"seconds": spent})
    lazy, used = ratio(found["spacecl"], found["torch"]), ratio(found["learner"], found["torch"])
    told = f"{lazy:.2f} x; {used:.2f} x when Learner is imported from it"
    figures = {"import": lazy, "import_learner": used}
    yield Row("import spacecl", "import torch", "<= 1.2 x", told, used <= 1.2, figures)


def rows() -> list[Row]:
    torch.manual_seed(0)
    return [*importing(), *wrapping(), *keeping()]
