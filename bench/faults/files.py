"""Damaged and forged files: saved learners, run folders, checkpoints, settings and, by `data_files`, datasets.

Half of the cases damage bytes as disks and networks do. The others are forged as an attacker would: JSON is edited in one place
or tensors are replaced, and all checksums are updated, so that only types, shapes and digests reveal it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spacecl import Learner, Recipe, SpaceError, Task
from spacecl.cli.main import main
from spacecl.data.benchmarks.networks import NETWORKS

from . import data_files
from .forgery import damage_file, edit_json, forge_manifest, forge_names, forge_tensors, write_json
from .guard import run_guarded
from .outcome import Outcome, damage

RUN_FILES = ("config.json", "tasks.json", "environment.json", "metrics.jsonl", "result.json")
COMMANDS = (
    ["inspect", "{}", "--json"],
    ["verify", "{}", "--json"],
    ["report", "{}"],
    ["run", "--resume", "--out", "{}", "--quiet", "--no-measure"],
    ["export", "{}", "--all", "--format", "safetensors", "--json"],
)


@dataclass(frozen=True)
class Case:
    """One damaged file, and how it is used."""

    kind: str
    seed: int


def run(count: int, seed: int) -> Outcome:
    """Try `count` damaged files, half of them of datasets."""
    return run_saved(count - count // 2, seed).join(data_files.run(count // 2, seed))


def run_saved(count: int, seed: int) -> Outcome:
    """Try `count` damaged files of what spacecl itself writes."""
    draw = random.Random(seed)
    kinds = draw.choices(list(_KINDS), _WEIGHTS, k=count)
    cases = [Case(kind, draw.randrange(2**40)) for kind in kinds]
    with tempfile.TemporaryDirectory() as folder, _Quiet():
        fixture = _Fixture(Path(folder))
        return run_guarded(
            "files", cases, fixture.run_case, kind=lambda case: case.kind, describe=lambda case: f"seed {case.seed}"
        )


class _Quiet(contextlib.ExitStack):
    """Without warnings."""

    def __enter__(self) -> _Quiet:
        self.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        return self


class _Fixture:
    """Good files to be damaged: a run of two tasks, its learner, and a checkpoint of a third task."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.good = folder / "good"
        arguments = ["run", "permuted-digits", "--tasks", "2", "--epochs", "1", "--retrain-epochs", "1", "--limit", "20"]
        with contextlib.redirect_stdout(io.StringIO()):
            code = main([*arguments, "--out", str(self.good), "--quiet", "--no-measure", "--device", "cpu"])
        assert code == 0
        self.learner = Learner.load(self.good / "model", self.make_model(), progress=False)
        self.rows = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
        self.logits = {name: self.learner.logits(self.rows, name) for name in self.learner.tasks}
        data = torch.randn(60, 64, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 3
        self.task, self.recipe = Task("third", data), Recipe(epochs=2, retrain_epochs=1)
        self.checkpoint = folder / "checkpoint"
        with contextlib.suppress(KeyboardInterrupt):
            self.learner.learn(self.task, self.recipe, checkpoint=self.checkpoint, on_epoch=_interrupt_after(2))

    def make_model(self) -> torch.nn.Module:
        return NETWORKS["mlp-small"]((64,), 10)

    def run_case(self, case: Case) -> str:
        """Damage a fresh copy and use it; whatever still loads must give the same bits as before."""
        draw = random.Random(case.seed)
        place = self.folder / f"case-{os.getpid()}"
        shutil.rmtree(place, ignore_errors=True)
        return _KINDS[case.kind](self, place, draw)

    def load(self, folder: Path, draw: random.Random) -> str:
        """Load a learner; one time in four, trace the model again."""
        trace = draw.random() < 0.25
        self.check(Learner.load(folder, self.make_model(), progress=False) if trace else self.learner.reload(folder))
        return "loaded"

    def check(self, learner: Learner) -> None:
        for name in learner.tasks:
            if name in self.logits:
                assert torch.equal(learner.logits(self.rows, name), self.logits[name]), f"task {name!r} gives other logits"
        learner.capacity, learner.size, learner.storage  # noqa: B018
        learner.identify(self.rows)

    def command(self, folder: Path, draw: random.Random) -> str:
        """Run a random command on a folder; if it fails, it must print a reason."""
        arguments = [part.replace("{}", str(folder)) for part in draw.choice(COMMANDS)]
        output, errors = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                code = main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        if code == 1:
            assert errors.getvalue().strip() or "--json" in arguments, "a command fails without a reason"
        if (folder / "model").exists() and code == 0 and arguments[0] == "run":
            self.check(self.learner.reload(folder / "model"))
        return f"exit code {code}"


CaseFunction = Callable[[_Fixture, Path, random.Random], str]


def _interrupt_after(epochs: int) -> Any:
    rows = []

    def on_epoch(row: Any) -> None:
        rows.append(row)
        if len(rows) > epochs:
            raise KeyboardInterrupt

    return on_epoch


def _load_after(change: Callable[[Path, random.Random], None]) -> CaseFunction:
    """Return a function that changes a copy of the saved learner and loads it."""

    def run_case(fixture: _Fixture, place: Path, draw: random.Random) -> str:
        shutil.copytree(fixture.good / "model", place)
        change(place, draw)
        return fixture.load(place, draw)

    return run_case


def _load_forged_names(fixture: _Fixture, place: Path, draw: random.Random) -> str:
    shutil.copytree(fixture.good / "model", place)
    how = forge_names(place, draw)
    with contextlib.suppress(SpaceError):
        Learner.load(place, fixture.make_model(), progress=False)
        raise AssertionError(f"{how} was followed")
    return "refused"


def _use_damaged_run(fixture: _Fixture, place: Path, draw: random.Random) -> str:
    shutil.copytree(fixture.good, place)
    damage_file(place, draw)
    return fixture.command(place, draw)


def _use_edited_run(fixture: _Fixture, place: Path, draw: random.Random) -> str:
    shutil.copytree(fixture.good, place)
    file = place / draw.choice(RUN_FILES)
    if file.suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows = edit_json(rows, draw)
        file.write_text("".join(f"{json.dumps(row)}\n" for row in (rows if isinstance(rows, list) else [rows])))
    else:
        write_json(file, edit_json(json.loads(file.read_text()), draw))
    if draw.random() < 0.4 and file.name != "result.json":
        (place / "result.json").unlink()  # so that the run is resumed
    return fixture.command(place, draw)


def _report_edited_result(fixture: _Fixture, place: Path, draw: random.Random) -> str:
    """Report an edited result together with a good one."""
    shutil.copytree(fixture.good, place / "one")
    shutil.copytree(fixture.good, place / "two")
    file = place / "two" / "result.json"
    result = json.loads(file.read_text())
    for _ in range(draw.choice((1, 1, 3))):
        result = edit_json(result, draw)
    write_json(file, result)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return f"exit code {main(['report', str(place)])}"


def _resume_checkpoint(fixture: _Fixture, place: Path, draw: random.Random) -> str:
    shutil.copytree(fixture.checkpoint, place)
    phase = draw.choice(sorted(path for path in place.iterdir() if path.is_dir()))
    draw.choice((damage_file, forge_manifest, forge_tensors))(phase, draw)
    learner = Learner.load(fixture.good / "model", fixture.make_model(), progress=False)
    try:
        learner.learn(fixture.task, fixture.recipe, checkpoint=place)
        verdict = "learned"
    except SpaceError:
        verdict = "refused"
    fixture.check(learner)
    return verdict


def _resolve_settings(fixture: _Fixture, place: Path, draw: random.Random) -> str:
    """Resolve an edited or damaged TOML file, without running it."""
    from spacecl.runs.config import to_toml
    from spacecl.runs.resolve import read_toml, resolve

    place.mkdir()
    values = edit_json({**json.loads((fixture.good / "config.json").read_text()), "later": [{"from": 2, "lr": 0.01}]}, draw)
    try:
        text = "\n".join(f"{json.dumps(key)} = {to_toml(value)}" for key, value in values.items() if value is not None)
    except (AttributeError, TypeError, RecursionError):
        text = json.dumps(values)
    data = text.encode(errors="surrogatepass")
    (place / "x.toml").write_bytes(damage(data, draw)[1] if draw.random() < 0.5 else data)
    resolve(read_toml(place / "x.toml"))
    return "resolved"


_KINDS: dict[str, CaseFunction] = {
    "learner, damaged bytes": _load_after(damage_file),
    "learner, forged manifest": _load_after(forge_manifest),
    "learner, forged tensors": _load_after(forge_tensors),
    "learner, files elsewhere": _load_forged_names,
    "run folder, damaged bytes": _use_damaged_run,
    "run folder, edited JSON": _use_edited_run,
    "result.json, edited": _report_edited_result,
    "checkpoint, damaged or forged": _resume_checkpoint,
    "settings in TOML": _resolve_settings,
}
_WEIGHTS = (20, 25, 25, 4, 6, 8, 3, 3, 6)  # per cent; commands take longest
