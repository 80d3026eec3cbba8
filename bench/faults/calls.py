"""Odd calls of the public functions: every parameter of every one of them with values that nobody should give.

A call must end in an error that spacecl raises on purpose, with a sentence, or in a result; and the task that the learner
has committed stays as it was, to the bit. What Python itself says of unknown or missing arguments counts as refused, and so
does what a user's own dataset or forward() raises: `UserCodeError` marks such errors.
"""

from __future__ import annotations

import copy
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import spacecl
from spacecl import Images, Learner, Recipe, Task, compress
from spacecl.errors import SpaceError

from .guard import run_guarded
from .outcome import Outcome

QUICK = Recipe(epochs=1, batch_size=64, retrain_epochs=1)
METHODS = ("SPACE", "STL", "FineTune", "LwF", "EWC", "HAT", "PackNet", "UCB", "Joint")


class UserCodeError(Exception):
    """What a user's own code raises."""


@dataclass(frozen=True)
class Call:
    """One call: the function's name, and for every parameter the name of an odd value, or none for a good one."""

    function: str
    odd: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(f'{name}={value}' for name, value in self.odd)})"


# -- values -------------------------------------------------------------------------------------------------------------


class Raising(nn.Module):
    """A model whose forward() fails."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        raise UserCodeError("forward() fails")


class Unreadable(Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise UserCodeError("the disk is gone")


class Strange(Dataset):
    """A dataset of anything but pairs of a tensor and a label."""

    def __init__(self, item: Any):
        self.item = item

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return self.item


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while True:
            yield torch.zeros(6), 0


class Unprintable:
    def __repr__(self) -> str:
        raise UserCodeError("no text")


def make_model(end: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3), *([] if end is None else [end]))


def make_data(rows: int = 40) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


X, Y = make_data()
PIXELS = np.random.default_rng(0).integers(0, 255, (20, 1, 6, 6), dtype=np.uint8)


def plain_values() -> dict[str, Callable[[], Any]]:
    return {
        "None": lambda: None,
        "empty text": lambda: "",
        "blank": lambda: " \t",
        "text": lambda: "x",
        "long text": lambda: "x" * 100_000,
        "text with NUL": lambda: "a\0b",
        "text with a surrogate": lambda: "a\ud800b",
        "text with a line break": lambda: "a\nb",
        "infer": lambda: "infer",
        "bytes": lambda: b"x",
        "0": lambda: 0,
        "-1": lambda: -1,
        "True": lambda: True,
        "1.5": lambda: 1.5,
        "NaN": lambda: float("nan"),
        "infinity": lambda: float("inf"),
        "2**40": lambda: 2**40,
        "2**70": lambda: 2**70,
        "10**5000": lambda: 10**5000,
        "1j": lambda: 1j,
        "[]": list,
        "{}": dict,
        "()": tuple,
        "a list with None": lambda: [None],
        "a mixed list": lambda: [1, "a", None, 2.5],
        "a nested list": lambda: [["a"], "b"],
        "a ragged list": lambda: [[1, 2], [3]],
        "a list twice": lambda: ["a", "a"],
        "a dict": lambda: {"x": X},
        "a dict of numbers": lambda: {1: 2},
        "a set": lambda: {"a", "b"},
        "a numpy integer": lambda: np.int64(3),
        "a numpy float": lambda: np.float32(0.5),
        "a numpy bool": lambda: np.bool_(True),
        "an array": lambda: np.zeros((2, 6), np.float32),
        "an array of texts": lambda: np.array(["a", "b"]),
        "an object array": lambda: np.array([object(), None], dtype=object),
        "an empty array": lambda: np.zeros((0, 6), np.float32),
        "a function": lambda: lambda *a, **k: None,
        "a class": lambda: dict,
        "a generator": lambda: (i for i in range(3)),
        "an object": object,
        "what cannot be printed": Unprintable,
        "a path": lambda: Path("x"),
        "a Fraction": lambda: __import__("fractions").Fraction(1, 3),
        "an exception": lambda: ValueError("x"),
    }


def tensors() -> dict[str, Callable[[], Any]]:
    return {
        "a tensor": lambda: X[:5].clone(),
        "integers": lambda: torch.ones(5, 6, dtype=torch.int64),
        "booleans": lambda: torch.ones(5, 6, dtype=torch.bool),
        "half": lambda: X[:5].half(),
        "double": lambda: X[:5].double(),
        "bfloat16": lambda: X[:5].bfloat16(),
        "float8": lambda: X[:5].to(torch.float8_e4m3fn),
        "complex": lambda: X[:5].to(torch.complex64),
        "meta": lambda: torch.zeros(5, 6, device="meta"),
        "sparse": lambda: X[:5].to_sparse(),
        "csr": lambda: X[:5].to_sparse_csr(),
        "quantized": lambda: torch.quantize_per_tensor(X[:5], 0.1, 0, torch.qint8),
        "nested": lambda: torch.nested.nested_tensor([X[0], X[0]], layout=torch.jagged),
        "requires_grad": lambda: X[:5].clone().requires_grad_(),
        "parameter": lambda: nn.Parameter(X[:5].clone()),
        "stride 0": lambda: X[:1].expand(5, 6),
        "0-dim": lambda: torch.tensor(1.0),
        "1-dim": lambda: X[0],
        "3-dim": lambda: X[:5, :, None],
        "other width": lambda: torch.zeros(5, 7),
        "no columns": lambda: torch.zeros(5, 0),
        "no rows": lambda: torch.zeros(0, 6),
        "with NaN": lambda: torch.full((5, 6), float("nan")),
        "with infinity": lambda: torch.full((5, 6), -float("inf")),
        "huge": lambda: torch.full((5, 6), 3e38),
        "constant": lambda: torch.zeros(5, 6),
        "transposed": lambda: torch.zeros(6, 5).T,
    }


def models() -> dict[str, Callable[[], Any]]:
    return {
        "no parameters": lambda: nn.Sequential(nn.ReLU()),
        "no linear layer": lambda: nn.Sequential(nn.Conv1d(1, 2, 1)),
        "one layer": lambda: nn.Linear(6, 3),
        "forward() fails": Raising,
        "an empty module": nn.Module,
        "frozen": lambda: make_model().requires_grad_(False),
        "on meta": lambda: make_model().to("meta"),
        "lazy": lambda: nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 3)),
        "complex weights": lambda: make_model().to(torch.complex64),
        "half weights": lambda: make_model().half(),
        "double weights": lambda: make_model().double(),
        "NaN weights": lambda: _filled(float("nan")),
        "ends in softmax": lambda: make_model(nn.Softmax(1)),
        "ends in sigmoid": lambda: make_model(nn.Sigmoid()),
        "other inputs": lambda: nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)),
        "returns a tuple": lambda: nn.RNN(6, 3),
        "another architecture": lambda: nn.Sequential(nn.Linear(6, 13), nn.ReLU(), nn.Linear(13, 3)),
        "training mode": lambda: make_model(nn.Dropout(0.5)).train(),
        "a script": lambda: torch.jit.script(make_model()),
    }


def _filled(value: float) -> nn.Module:
    model = make_model()
    nn.init.constant_(model[0].weight, value)  # type: ignore[arg-type]
    return model


def sources() -> dict[str, Callable[[], Any]]:
    pairs = {f"({name}, labels)": (lambda make=make: (make(), Y[:5])) for name, make in tensors().items()}
    pairs |= {f"(inputs, {name})": (lambda make=make: (X[:5], make())) for name, make in tensors().items()}
    labels: dict[str, Callable[[], Any]] = {
        "negative": lambda: Y - 5,
        "uint8": lambda: Y.to(torch.uint8),
        "int8": lambda: Y.to(torch.int8),
        "uint16": lambda: Y.to(torch.uint16),
        "floats": lambda: Y.float(),
        "2**62": lambda: torch.full_like(Y, 2**62),
        "a list": Y.tolist,
        "texts": lambda: ["a"] * len(Y),
        "one-hot": lambda: torch.eye(3)[Y],
        "column": lambda: Y[:, None],
        "None": lambda: None,
        "too few": lambda: Y[:-1],
        "uint64 array": lambda: np.full(len(Y), 2**64 - 1, np.uint64),
        "swapped array": lambda: Y.numpy().astype(">i8"),
        "huge ints": lambda: [2**70] * len(Y),
    }
    pairs |= {f"(inputs, labels: {name})": (lambda make=make: (X, make())) for name, make in labels.items()}
    others: dict[str, Callable[[], Any]] = {
        "one row": lambda: (X[:1], Y[:1]),
        "three values": lambda: (X, Y, Y),
        "one value": lambda: (X,),
        "a list of pairs": lambda: list(zip(X, Y)),
        "a string pair": lambda: ("ab", "cd"),
        "generators": lambda: ((i for i in range(3)), (i for i in range(3))),
        "a dataset of nothing": lambda: Strange(None),
        "a dataset of numbers": lambda: Strange(3),
        "a dataset of triples": lambda: Strange((X[0], 1, 2)),
        "a dataset of texts": lambda: Strange(("a", "b")),
        "a dataset of dicts": lambda: Strange({"x": X[0], "y": 1}),
        "a dataset of scalars": lambda: Strange((torch.tensor(1.0), 1)),
        "a dataset of labels in floats": lambda: Strange((X[0], 1.0)),
        "a dataset of NaN": lambda: Strange((X[0] * float("nan"), 1)),
        "an unreadable dataset": Unreadable,
        "a bare Dataset": Dataset,
        "an endless dataset": Endless,
        "a TensorDataset of one": lambda: TensorDataset(X),
        "a TensorDataset of three": lambda: TensorDataset(X, Y, Y),
        "an empty TensorDataset": lambda: TensorDataset(X[:0], Y[:0]),
        "a loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=7),
        "a loader without batches": lambda: DataLoader(TensorDataset(X, Y), batch_size=None),
        "a loader of endless data": lambda: DataLoader(Endless()),
        "a loader that collates to nothing": lambda: DataLoader(TensorDataset(X, Y), collate_fn=lambda rows: None),
        "a loader of unequal pairs": lambda: DataLoader(
            TensorDataset(X, Y), batch_size=4, collate_fn=lambda rows: (X[:3], Y[:2])
        ),
        "a loader of empty batches": lambda: DataLoader(TensorDataset(X, Y), batch_size=4, collate_fn=lambda r: (X[:0], Y[:0])),
        "images": lambda: Images(PIXELS, np.zeros(20, np.int64)),
        "a class": lambda: TensorDataset,
    }
    return pairs | others


def paths(folder: Path) -> dict[str, Callable[[], Any]]:
    (folder / "file").write_text("x")
    (folder / "empty").mkdir(exist_ok=True)
    return {
        "a file": lambda: folder / "file",
        "below a file": lambda: folder / "file" / "x.onnx",
        "an empty folder": lambda: folder / "empty",
        "a missing folder": lambda: folder / "missing" / "x.pt2",
        "where nothing can be written": lambda: "/proc/spacecl/x.safetensors",
        "a device": lambda: "/dev/null",
        "a long name": lambda: folder / ("x" * 300),
        "with NUL": lambda: f"{folder}/a\0b.onnx",
        "with a surrogate": lambda: f"{folder}/a\ud800b.safetensors",
        "bytes": lambda: b"/tmp/x",
        "a dot": lambda: folder / ".",
        "json": lambda: folder / "x.json",
        "safetensors": lambda: folder / "x.safetensors",
    }


# -- functions ----------------------------------------------------------------------------------------------------------


class World:
    """A learner with one committed task, and everything that a call needs."""

    def __init__(self, folder: Path):
        warnings.simplefilter("ignore")
        self.folder = folder
        self.learner = Learner(make_model(), spacecl.SPACE(variance=0.8), example_input=X[:1], progress=False)
        self.learner.learn(Task("known", (X, Y)), QUICK)
        self.learner.save(folder / "saved")
        self.logits, self.digests = self.learner.logits(X, "known"), self.learner.verify()
        self.names = ("known",)
        plain, tensor = plain_values(), tensors()
        anything = plain | tensor
        self.values: Mapping[str, Mapping[str, Callable[[], Any]]] = {
            "any": anything,
            "tensor": tensor | plain,
            "model": models() | anything,
            "source": sources() | anything,
            "path": paths(folder) | plain | {"a tensor": tensor["a tensor"]},
            "task": plain
            | {"a Task": lambda: Task("known", (X, Y)), "names": lambda: ["known", "x"], "a tensor": tensor["a tensor"]},
            "method": anything | {name: (lambda name=name: getattr(spacecl, name)()) for name in METHODS},
            "recipe": anything | {"a dict of epochs": lambda: {"epochs": 1}},
        }
        # A copy of the learner is in the same state: a call that works does not change the one that is watched.
        self.functions = self._functions()

    def _functions(self) -> dict[str, tuple[Callable[..., Any], dict[str, tuple[str, Any]]]]:
        """Every public function: how to call it, and for every parameter the kind of odd values and a good value."""
        learner, file = self.learner, self.folder / "out.safetensors"
        example, task = ("tensor", X[:1]), ("task", "known")
        making = {
            "model": ("model", make_model()),
            "method": ("method", spacecl.SPACE()),
            "example_input": example,
            "head": ("any", None),
            "shared": ("any", ()),
            "seed": ("any", 0),
            "fabric": ("any", None),
            "progress": ("any", False),
        }
        data = {"train": ("source", (X, Y)), "valid": ("source", (X, Y)), "classes": ("any", None), "test": ("source", None)}
        found: dict[str, tuple[Callable[..., Any], dict[str, tuple[str, Any]]]] = {
            "Learner": (Learner, making),
            "Learner.load": (
                Learner.load,
                {"folder": ("path", self.folder / "saved"), **{n: making[n] for n in ("model", "fabric", "progress")}}
                | {"method": ("method", None), "verify": ("any", True)},
            ),
            "learn": (
                lambda name, recipe, checkpoint, on_epoch, **d: copy.copy(learner).learn(
                    Task(name, **d), recipe, checkpoint=checkpoint, on_epoch=on_epoch
                ),
                {
                    "name": ("any", "new"),
                    **data,
                    "recipe": ("recipe", QUICK),
                    "checkpoint": ("path", None),
                    "on_epoch": ("any", None),
                },
            ),
            "learn(task)": (lambda task: copy.copy(learner).learn(task, QUICK), {"task": ("source", Task("new", (X, Y)))}),
            "remember": (lambda task: copy.copy(learner).remember(task), {"task": ("any", Task("known", (X, Y)))}),
            "logits": (learner.logits, {"x": ("tensor", X), "task": task}),
            "predict": (learner.predict, {"x": ("tensor", X), "task": task, "together": ("any", False)}),
            "predict inferred": (
                lambda x, together: learner.predict(x, "infer", together=together),
                {"x": ("tensor", X), "together": ("any", True)},
            ),
            "identify": (learner.identify, {"x": ("tensor", X), "together": ("any", False)}),
            "task_scores": (learner.task_scores, {"x": ("tensor", X), "task": ("task", None)}),
            "has_signature": (learner.has_signature, {"task": task}),
            "evaluate": (learner.evaluate, {"data": ("source", (X, Y)), "task": task}),
            "subnet": (learner.subnet, {"task": task}),
            "export": (
                learner.export,
                {
                    "task": task,
                    "file": ("path", file),
                    "format": ("any", None),
                    "fold": ("any", True),
                    "int8": ("tensor", None),
                },
            ),
            "save": (learner.save, {"folder": ("path", self.folder / "out")}),
            "reload": (learner.reload, {"folder": ("path", self.folder / "saved")}),
            "dense": (learner.dense, {"classes": ("any", 3)}),
            "method": (
                lambda method: setattr(copy.copy(learner), "method", method),
                {"method": ("method", spacecl.SPACE())},
            ),
            "seed": (lambda seed: setattr(copy.copy(learner), "seed", seed), {"seed": ("any", 0)}),
            "progress": (lambda progress: setattr(copy.copy(learner), "progress", progress), {"progress": ("any", False)}),
            "Task": (Task, {"name": ("any", "new"), **data}),
            "Images": (
                lambda **arguments: use(Images(**arguments)),
                {"pixels": ("tensor", PIXELS), "labels": ("any", np.zeros(20, np.int64))}
                | dict.fromkeys(("mean", "std", "shape", "order", "rows"), ("any", None)),
            ),
            "Recipe": (Recipe, {field.name: ("any", getattr(Recipe(), field.name)) for field in fields(Recipe)}),
            "compress": (
                compress,
                {"data": ("source", (X, Y)), "variance": ("any", 0.9), "valid": ("source", None), "recipe": ("recipe", QUICK)}
                | {name: value for name, value in making.items() if name != "method"},
            ),
        }
        for name in METHODS:
            method = getattr(spacecl, name)
            options = {field.name: ("any", getattr(method(), field.name)) for field in fields(method)}
            found[name] = (method, options)
        return found

    def draw(self, random: random.Random) -> Call:
        name = random.choice([name for name, (_, parameters) in self.functions.items() if parameters])
        parameters = self.functions[name][1]
        chosen = random.sample(list(parameters), min(len(parameters), random.choice((1, 1, 1, 2))))
        return Call(name, tuple((p, random.choice(list(self.values[parameters[p][0]]))) for p in chosen))

    def run(self, call: Call) -> str:
        os.chdir(self.folder)  # of this guarded process: odd texts are names of files, too
        function, parameters = self.functions[call.function]
        arguments = {name: good for name, (_, good) in parameters.items()}
        arguments |= {name: self.values[parameters[name][0]][value]() for name, value in call.odd}
        try:
            function(**arguments)
            verdict = "answered"
        except SpaceError as error:
            verdict = "refused"
            if len(str(error)) < 20:
                raise AssertionError(f"an error without a sentence: {error!r}") from error
        except UserCodeError:
            verdict = "the user's own error"
        except TypeError as error:
            if "unexpected keyword argument" not in str(error) and "required" not in str(error):
                raise
            verdict = "refused by Python"
        assert call.odd or verdict == "answered", "a call without an odd value was refused"
        assert self.learner.tasks == self.names, "the learner has other tasks than before"
        assert torch.equal(self.learner.logits(X, "known"), self.logits), "a committed task answers differently"
        assert self.learner.verify() == self.digests, "a committed task has changed"
        return verdict


def use(images: Images) -> Images:
    images.finish(images.batch(np.arange(min(2, len(images))))[0])
    return images


def run(count: int, seed: int) -> Outcome:
    """Make odd calls, as many as `count`, the same for the same seed."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        draw = random.Random(seed)
        calls = [Call(name, ()) for name in world.functions]  # good ones: what is refused is refused for what is odd
        calls += [world.draw(draw) for _ in range(count)]
        return run_guarded("calls", calls, world.run, kind=lambda call: call.function)
