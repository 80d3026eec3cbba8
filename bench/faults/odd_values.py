"""Values that nobody should pass: plain ones, tensors, models, datasets and paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from spacecl import Images

Values = dict[str, Callable[[], Any]]  # a description -> a function that makes the value


class UserCodeError(Exception):
    """An error that a user's own code raises."""


class Raising(nn.Module):
    """A model whose forward() fails."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        raise UserCodeError("forward() fails")


class Unreadable(Dataset):
    """A dataset that cannot be read."""

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
    """A dataset without an end."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while True:
            yield torch.zeros(6), 0


class Unprintable:
    """An object whose `repr` fails."""

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


def make_plain_values() -> Values:
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
        "an object that cannot be printed": Unprintable,
        "a path": lambda: Path("x"),
        "a Fraction": lambda: __import__("fractions").Fraction(1, 3),
        "an exception": lambda: ValueError("x"),
    }


def make_tensors() -> Values:
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


def make_models() -> Values:
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
        "NaN weights": lambda: _fill(float("nan")),
        "ends in softmax": lambda: make_model(nn.Softmax(1)),
        "ends in sigmoid": lambda: make_model(nn.Sigmoid()),
        "other inputs": lambda: nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)),
        "returns a tuple": lambda: nn.RNN(6, 3),
        "another architecture": lambda: nn.Sequential(nn.Linear(6, 13), nn.ReLU(), nn.Linear(13, 3)),
        "training mode": lambda: make_model(nn.Dropout(0.5)).train(),
        "a script": lambda: torch.jit.script(make_model()),
    }


def _fill(value: float) -> nn.Module:
    model = make_model()
    nn.init.constant_(model[0].weight, value)  # type: ignore[arg-type]
    return model


def make_sources() -> Values:
    pairs = {f"({name}, labels)": (lambda make=make: (make(), Y[:5])) for name, make in make_tensors().items()}
    pairs |= {f"(inputs, {name})": (lambda make=make: (X[:5], make())) for name, make in make_tensors().items()}
    labels: Values = {
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
    others: Values = {
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


def make_paths(folder: Path) -> Values:
    (folder / "file").write_text("x")
    (folder / "empty").mkdir(exist_ok=True)
    return {
        "a file": lambda: folder / "file",
        "below a file": lambda: folder / "file" / "x.onnx",
        "an empty folder": lambda: folder / "empty",
        "a missing folder": lambda: folder / "missing" / "x.pt2",
        "a folder that cannot be written to": lambda: "/proc/spacecl/x.safetensors",
        "a device": lambda: "/dev/null",
        "a long name": lambda: folder / ("x" * 300),
        "with NUL": lambda: f"{folder}/a\0b.onnx",
        "with a surrogate": lambda: f"{folder}/a\ud800b.safetensors",
        "bytes": lambda: b"/tmp/x",
        "a dot": lambda: folder / ".",
        "json": lambda: folder / "x.json",
        "safetensors": lambda: folder / "x.safetensors",
    }
