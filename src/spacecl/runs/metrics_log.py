"""metrics.jsonl, the journal of a run, and its copy for TensorBoard."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, with_config
from typing_extensions import NotRequired, TypedDict

from .. import disk
from ..documents import Finite, Fraction, NonNegative
from ..errors import ConfigError
from ..learning.checkpoints import Epoch
from .json_lines import read_json_lines

REMEDY = "Restore the file from a copy. Without one, delete the line: tests and epochs that can be repeated will be."


class EpochRow(Epoch):
    """One epoch of training a task."""

    kind: Literal["epoch"]
    task: str


@with_config(extra="allow")
class TestRow(TypedDict):
    """One test after the task of number `after`: the score on every task so far, and the size of all networks."""

    kind: Literal["test"]
    after: Annotated[int, Field(ge=1)]
    score: Annotated[dict[str, Finite], Field(min_length=1, validation_alias=AliasChoices("score", "accuracy"))]
    accuracy: NotRequired[dict[str, Fraction]]  # the same, of the tasks whose metric is accuracy
    metric: NotRequired[dict[str, str]]  # of every task; missing in version 0.1: accuracy
    size: NonNegative
    seconds: NotRequired[NonNegative]


Row = EpochRow | TestRow
AnyRow = Annotated[Row, Field(discriminator="kind")]  # for validation
Key = tuple[str | int, ...]  # one row of the journal


class Journal:
    """metrics.jsonl: one line for every epoch and every test, appended as they come; a line cut off by a crash is dropped.

    Of several processes, only the first may `write`. The others know what was in the file, and what they add.
    """

    def __init__(self, file: Path, board: Board | None = None, write: bool = True):
        self.file, self.board, self.write = file, board, write
        self.rows, size = read_rows(file)
        if write and file.exists() and size < file.stat().st_size:
            disk.truncate_file(file, size)
        self.keys = {_make_key(row) for row in self.rows}
        if board is not None:
            for row in self.rows:
                board.show(row)

    def has_test(self, after: int) -> bool:
        """Whether the test after the task of this number, from 1, has been recorded."""
        return ("test", after) in self.keys

    def get_tests(self) -> dict[int, TestRow]:
        """All tests by the number of the task that they followed."""
        return {row["after"]: row for row in self.rows if row["kind"] == "test"}

    def get_epochs(self, task: str) -> list[EpochRow]:
        """All epochs of a task."""
        return [row for row in self.rows if row["kind"] == "epoch" and row["task"] == task]

    def add_epoch(self, task: str, epoch: Epoch) -> None:
        self.add({"kind": "epoch", "task": task, **epoch})

    def add(self, row: Row) -> None:
        """Append a row unless it is there already: epochs that are repeated after a crash are reported again."""
        key = _make_key(row)
        if key in self.keys:
            return
        if self.write:
            disk.append_line(self.file, json.dumps(row).encode())
        self.keys.add(key)
        self.rows.append(row)
        if self.board is not None:
            self.board.show(row)


def read_rows(file: Path) -> tuple[list[Row], int]:
    """Read the rows of a journal, and how many bytes they have: fewer than the file if a crash cut off its last line.

    Any other damage is reported, and the file is left as it is: a row that is dropped may be one that cannot be repeated.
    """
    return read_json_lines(file, AnyRow, REMEDY)


def _make_key(row: Row) -> Key:
    if row["kind"] == "test":
        return "test", row["after"]
    return "epoch", row["task"], row["phase"], row["epoch"]


class Board:
    """TensorBoard's log of a run, written anew from the journal whenever the run is resumed."""

    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError('--tensorboard needs TensorBoard. Install it with: pip install "spacecl[tensorboard]"') from error
        shutil.rmtree(folder, ignore_errors=True)
        self.writer = SummaryWriter(str(folder))

    def show(self, row: Row) -> None:
        if row["kind"] == "epoch":
            names = ("loss", "accuracy" if "accuracy" in row else "score", "valid_loss", "lr")
            values: Any = {name: row[name] for name in names}  # type: ignore[literal-required]
            for name, value in values.items():
                self.writer.add_scalar(f"{row['task']}/{row['phase']} {name}", value, row["epoch"])
        else:
            for task, score in row["score"].items():
                self.writer.add_scalar(f"test/{task}", score, row["after"])
            self.writer.add_scalar("test/mean", sum(row["score"].values()) / len(row["score"]), row["after"])
            self.writer.add_scalar("size", row["size"], row["after"])
        self.writer.flush()
