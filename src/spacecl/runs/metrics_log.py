"""metrics.jsonl, the journal of a run, and TensorBoard's view of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, with_config
from typing_extensions import NotRequired, TypedDict

from .. import disk
from ..documents import LARGEST_DOCUMENT, Fraction, NonNegative, parse_document, read_bytes
from ..errors import ConfigError
from ..learning.checkpoints import Epoch

Row = dict[str, Any]
REMEDY = "Restore the file from a copy. Without one, delete the line: tests and epochs that can be made again will be."


class EpochRow(Epoch):
    """One epoch of training a task."""

    kind: Literal["epoch"]
    task: str


@with_config(extra="allow")
class TestRow(TypedDict):
    """One test after the task of number `after`: the accuracy on every task so far, and the size of all networks."""

    kind: Literal["test"]
    after: Annotated[int, Field(ge=1)]
    accuracy: Annotated[dict[str, Fraction], Field(min_length=1)]
    size: NonNegative
    seconds: NotRequired[NonNegative]


AnyRow = Annotated[EpochRow | TestRow, Field(discriminator="kind")]


class Journal:
    """metrics.jsonl: a line for every epoch and every test, appended as they come; a line that a crash cut is dropped."""

    def __init__(self, file: Path, board: Board | None = None):
        self.file, self.board = file, board
        self.rows, size = read_rows(file)
        if file.exists() and size < file.stat().st_size:
            disk.truncate_file(file, size)
        self.keys = {_key(row) for row in self.rows}
        for row in self.rows if board is not None else ():
            board.show(row)  # type: ignore[union-attr]

    def has(self, kind: str, *key: Any) -> bool:
        return (kind, *key) in self.keys

    def add(self, row: Row) -> None:
        """Append a row, once: epochs that are trained again after a crash are told again."""
        if _key(row) in self.keys:
            return
        disk.append_line(self.file, json.dumps(row).encode())
        self.keys.add(_key(row))
        self.rows.append(row)
        if self.board is not None:
            self.board.show(row)


def read_rows(file: Path) -> tuple[list[Row], int]:
    """The rows of a journal, and how many bytes they have: fewer than the file if a crash cut its last line.

    Any other damage is reported, and the file left as it is: a row that is dropped may be one that cannot be made again.
    """
    lines = (read_bytes(file, LARGEST_DOCUMENT) if file.exists() else b"").split(b"\n")
    cut = lines.pop()  # what follows the last newline: nothing, or a line that was cut
    if lines and not cut and b"\0" in lines[-1]:  # zeros stand where a file system has kept the size and lost the data
        lines.pop()
    rows: list[Any] = [
        parse_document(line, AnyRow, f"{file}, line {number},", REMEDY)  # type: ignore[arg-type]
        for number, line in enumerate(lines, 1)
    ]
    return rows, sum(len(line) + 1 for line in lines)


def _key(row: Row) -> tuple[Any, ...]:
    names = {"epoch": ("task", "phase", "epoch"), "test": ("after",)}[row["kind"]]
    return (row["kind"], *(row[name] for name in names))


class Board:
    """TensorBoard's log of a run, written anew from the journal whenever the run goes on."""

    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError('--tensorboard needs TensorBoard. Install it with: pip install "spacecl[tensorboard]"') from error
        shutil.rmtree(folder, ignore_errors=True)
        self.writer = SummaryWriter(str(folder))

    def show(self, row: Row) -> None:
        if row["kind"] == "epoch":
            for name in ("loss", "accuracy", "valid_loss", "lr"):
                self.writer.add_scalar(f"{row['task']}/{row['phase']} {name}", row[name], row["epoch"])
        else:
            for task, accuracy in row["accuracy"].items():
                self.writer.add_scalar(f"test/{task}", accuracy, row["after"])
            self.writer.add_scalar("test/mean", sum(row["accuracy"].values()) / len(row["accuracy"]), row["after"])
            self.writer.add_scalar("size", row["size"], row["after"])
        self.writer.flush()
