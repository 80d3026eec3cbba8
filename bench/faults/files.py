"""Damaged and forged files: saved learners, run folders, checkpoints, settings and, by `data_files`, datasets.

Half of the cases damage bytes as disks and networks do; the others are forged as a stranger would: JSON is edited in one place
and tensors are exchanged, and all checksums are made right again, so that only types, shapes and digests can tell.
"""

from __future__ import annotations

import contextlib
import copy
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

from spacecl import Learner, Recipe, SpaceError, Task, store
from spacecl.cli.main import main
from spacecl.data.benchmarks.networks import NETWORKS
from spacecl.documents import digest_json

from . import data_files
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
NUMBERS = (0, -1, 1, 2**31, 2**63, 10**40, 1.5, -0.0, 1e308, float("nan"), float("inf"))
TEXTS = ("", "x", "infer", "\0", "\ud800", "../../etc/passwd", "/etc/passwd", "/proc/kmsg", "a" * 5000)
LISTS: tuple[Any, ...] = ([], {}, [[]], [None], {"": None}, [1, 2, 3], {"a": {"b": []}})
ODD: tuple[Any, ...] = (None, True, False, *NUMBERS, *TEXTS, *LISTS)


@dataclass(frozen=True)
class Case:
    """One damaged file and what is done with it."""

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
        bench = _Bench(Path(folder))
        return run_guarded("files", cases, bench.do, kind=lambda case: case.kind, describe=lambda case: f"seed {case.seed}")


class _Quiet(contextlib.ExitStack):
    """Without warnings and what commands print."""

    def __enter__(self) -> _Quiet:
        self.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        return self


class _Bench:
    """Good files to be damaged: a run of two tasks, its learner, a checkpoint of its second task."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.good = folder / "good"
        arguments = ["run", "permuted-digits", "--tasks", "2", "--epochs", "1", "--retrain-epochs", "1", "--limit", "20"]
        with contextlib.redirect_stdout(io.StringIO()):
            code = main([*arguments, "--out", str(self.good), "--quiet", "--no-measure", "--device", "cpu"])
        assert code == 0
        self.learner = Learner.load(self.good / "model", self.model(), progress=False)
        self.rows = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
        self.logits = {name: self.learner.logits(self.rows, name) for name in self.learner.tasks}
        data = torch.randn(60, 64, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 3
        self.task, self.recipe = Task("third", data), Recipe(epochs=2, retrain_epochs=1)
        self.checkpoint = folder / "checkpoint"
        with contextlib.suppress(KeyboardInterrupt):
            self.learner.learn(self.task, self.recipe, checkpoint=self.checkpoint, on_epoch=_interrupt_after(2))

    def model(self) -> torch.nn.Module:
        return NETWORKS["mlp-small"]((64,), 10)

    def do(self, case: Case) -> str:
        """Damage a fresh copy and use it; whatever still loads must answer as before, to the bit."""
        draw = random.Random(case.seed)
        place = self.folder / f"case-{os.getpid()}"
        shutil.rmtree(place, ignore_errors=True)
        return _KINDS[case.kind](self, place, draw)

    def load(self, folder: Path, draw: random.Random) -> str:
        """Load a learner, one time in four by way of tracing the model anew."""
        anew = draw.random() < 0.25
        self.check(Learner.load(folder, self.model(), progress=False) if anew else self.learner.reload(folder))
        return "loaded"

    def check(self, learner: Learner) -> None:
        for name in learner.tasks:
            if name in self.logits:
                assert torch.equal(learner.logits(self.rows, name), self.logits[name]), f"task {name!r} answers otherwise"
        learner.capacity, learner.size, learner.storage  # noqa: B018
        learner.identify(self.rows)

    def command(self, folder: Path, draw: random.Random) -> str:
        """Give a command for a folder; it may fail, but in words."""
        arguments = [part.replace("{}", str(folder)) for part in draw.choice(COMMANDS)]
        said, wrong = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
                code = main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        if code == 1:
            assert wrong.getvalue().strip() or "--json" in arguments, "a command fails without a word"
        if (folder / "model").exists() and code == 0 and arguments[0] == "run":
            self.check(self.learner.reload(folder / "model"))
        return f"exit code {code}"


Do = Callable[[_Bench, Path, random.Random], str]


def _interrupt_after(epochs: int) -> Any:
    seen = []

    def note(row: Any) -> None:
        seen.append(row)
        if len(seen) > epochs:
            raise KeyboardInterrupt

    return note


def _damage_file(folder: Path, draw: random.Random) -> None:
    file = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"))
    file.write_bytes(damage(file.read_bytes(), draw)[1])


def edit(value: Any, draw: random.Random) -> Any:
    """JSON with one place removed, exchanged, renamed, repeated or nested."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places:
        return draw.choice(ODD)
    container, key = draw.choice(places)
    how = draw.choice(("remove", "odd", "odd", "odd", "rename", "repeat", "nest", "other"))
    if how == "remove":
        del container[key]
    elif how == "odd":
        container[key] = draw.choice(ODD)
    elif how == "rename" and isinstance(container, dict):
        container[draw.choice(("", "x", "../x", str(key) * 3))] = container.pop(key)
    elif how == "repeat" and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif how == "nest":
        nested: Any = container[key]
        for _ in range(draw.choice((1, 3, 400))):
            nested = [nested] if draw.random() < 0.5 else {"x": nested}
        container[key] = nested
    else:
        other, from_key = draw.choice(places)
        container[key] = copy.deepcopy(other[from_key])
    return value


def _places(value: Any) -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from _places(inner)
    elif isinstance(value, list):
        for key, inner in enumerate(value[:20]):
            yield value, key
            yield from _places(inner)


def _write_json(file: Path, value: Any) -> None:
    file.write_bytes(json.dumps(value).encode())


def _sign(folder: Path, content: Any) -> None:
    """Write a manifest with the right checksum."""
    _write_json(folder / store.MANIFEST, {"sha256": digest_json(content), "content": content})


def _forge_manifest(folder: Path, draw: random.Random) -> None:
    """A manifest that is edited in one place, its checksum made right."""
    document = json.loads((folder / store.MANIFEST).read_text())
    content = edit(document["content"], draw)
    _sign(folder, content)


def _forge_tensors(folder: Path, draw: random.Random) -> None:
    """A set of tensors with one dropped, renamed, exchanged, reshaped or changed, every checksum made right."""
    body, files = store.load(folder, dict)
    name = draw.choice(sorted(files))
    tensors = files[name]
    key = draw.choice(sorted(tensors))
    tensor = tensors[key]
    how = draw.choice(("drop", "rename", "type", "shape", "bits", "nan", "empty", "other", "more"))
    if how == "drop":
        del tensors[key]
    elif how == "rename":
        tensors[draw.choice(("x", "keep.7", "core.x", "taken.x", "memory.x", "signature.0.x"))] = tensors.pop(key)
    elif how == "type":
        tensors[key] = tensor.to(draw.choice((torch.float64, torch.int64, torch.bool, torch.uint8, torch.float16)))
    elif how == "shape":
        tensors[key] = draw.choice((tensor.reshape(-1), tensor[None], tensor[..., :-1], torch.cat([tensor, tensor])))
    elif how == "bits" and tensor.numel():
        flat = tensor.reshape(-1).clone()
        at = draw.randrange(flat.numel())
        flat[at] = ~flat[at] if flat.dtype == torch.bool else flat[at] + 1
        tensors[key] = flat.reshape(tensor.shape)
    elif how == "nan" and tensor.is_floating_point():
        tensors[key] = torch.full_like(tensor, draw.choice((float("nan"), float("inf"), 1e38)))
    elif how == "empty":
        tensors[key] = tensor.new_zeros(draw.choice(((), (0,), (0, 0), (1,))))
    elif how == "other":
        tensors[key] = tensors[draw.choice(sorted(tensors))]
    else:
        tensors["more"] = tensor
    store.save(folder, {k: v for k, v in body.items() if k not in ("format", "files")}, files)


def _forge_names(folder: Path, draw: random.Random) -> None:
    """A file that the manifest lists elsewhere, or that is none: absolute, above the folder, a link, a pipe, a folder."""
    document = json.loads((folder / store.MANIFEST).read_text())
    entry = draw.choice(list(document["content"]["files"].values()))
    how = draw.choice(("absolute", "above", "link", "pipe", "folder", "proc", "sparse"))
    file = folder / entry["file"]
    if how in ("absolute", "above"):
        moved = folder.parent / f"moved-{os.getpid()}"
        shutil.move(file, moved)
        entry["file"] = str(moved) if how == "absolute" else f"../{moved.name}"
    elif how == "proc":
        entry["file"] = draw.choice(("/proc/kmsg", "/dev/zero", "/dev/stdin"))
    else:
        data = file.read_bytes()
        file.unlink()
        if how == "link":
            (folder / "target").write_bytes(data)
            file.symlink_to(draw.choice((folder / "target", Path("/proc/kmsg"), Path("/dev/zero"))))
        elif how == "pipe":
            os.mkfifo(file)
        elif how == "folder":
            file.mkdir()
        else:
            with file.open("wb") as stream:
                stream.truncate(5 << 30)
    _sign(folder, document["content"])
    with contextlib.suppress(SpaceError):
        Learner.load(folder, NETWORKS["mlp-small"]((64,), 10), progress=False)
        raise AssertionError(f"{how} was followed")


def _load_after(change: Callable[[Path, random.Random], None]) -> Do:
    """Change a copy of the saved learner and load it."""

    def do(bench: _Bench, place: Path, draw: random.Random) -> str:
        shutil.copytree(bench.good / "model", place)
        change(place, draw)
        return bench.load(place, draw)

    return do


def _learner_names(bench: _Bench, place: Path, draw: random.Random) -> str:
    shutil.copytree(bench.good / "model", place)
    _forge_names(place, draw)
    return "refused"


def _run_bytes(bench: _Bench, place: Path, draw: random.Random) -> str:
    shutil.copytree(bench.good, place)
    _damage_file(place, draw)
    return bench.command(place, draw)


def _run_json(bench: _Bench, place: Path, draw: random.Random) -> str:
    shutil.copytree(bench.good, place)
    file = place / draw.choice(RUN_FILES)
    if file.suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        rows = edit(rows, draw)
        file.write_text("".join(f"{json.dumps(row)}\n" for row in (rows if isinstance(rows, list) else [rows])))
    else:
        _write_json(file, edit(json.loads(file.read_text()), draw))
    if draw.random() < 0.4 and file.name != "result.json":
        (place / "result.json").unlink()  # so that the run goes on
    return bench.command(place, draw)


def _result_json(bench: _Bench, place: Path, draw: random.Random) -> str:
    """Beside a good run, so that the page is made of both."""
    shutil.copytree(bench.good, place / "one")
    shutil.copytree(bench.good, place / "two")
    file = place / "two" / "result.json"
    result = json.loads(file.read_text())
    for _ in range(draw.choice((1, 1, 3))):
        result = edit(result, draw)
    _write_json(file, result)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return f"exit code {main(['report', str(place)])}"


def _checkpoint(bench: _Bench, place: Path, draw: random.Random) -> str:
    shutil.copytree(bench.checkpoint, place)
    phase = draw.choice(sorted(path for path in place.iterdir() if path.is_dir()))
    draw.choice((_damage_file, _forge_manifest, _forge_tensors))(phase, draw)
    learner = Learner.load(bench.good / "model", bench.model(), progress=False)
    try:
        learner.learn(bench.task, bench.recipe, checkpoint=place)
        verdict = "learned"
    except SpaceError:
        verdict = "refused"
    bench.check(learner)
    return verdict


def _settings(bench: _Bench, place: Path, draw: random.Random) -> str:
    """A TOML file, edited or damaged; the run is stopped before it trains."""
    from spacecl.runs.config import to_toml
    from spacecl.runs.resolve import read_toml, resolve

    place.mkdir()
    values = edit({**json.loads((bench.good / "config.json").read_text()), "later": [{"from": 2, "lr": 0.01}]}, draw)
    try:
        text = "\n".join(f"{json.dumps(key)} = {to_toml(value)}" for key, value in values.items() if value is not None)
    except (AttributeError, TypeError, RecursionError):
        text = json.dumps(values)
    data = text.encode(errors="surrogatepass")
    (place / "x.toml").write_bytes(damage(data, draw)[1] if draw.random() < 0.5 else data)
    resolve(read_toml(place / "x.toml"))
    return "resolved"


_KINDS: dict[str, Do] = {
    "learner, damaged bytes": _load_after(_damage_file),
    "learner, forged manifest": _load_after(_forge_manifest),
    "learner, forged tensors": _load_after(_forge_tensors),
    "learner, files elsewhere": _learner_names,
    "run folder, damaged bytes": _run_bytes,
    "run folder, edited JSON": _run_json,
    "result.json, edited": _result_json,
    "checkpoint, damaged or forged": _checkpoint,
    "settings in TOML": _settings,
}
_WEIGHTS = (20, 25, 25, 4, 6, 8, 3, 3, 6)  # per cent; commands take longest
