"""metrics.jsonl, the journal of a run, and TensorBoard's view of it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from . import store
from .errors import ConfigError

Row = dict[str, Any]


class Journal:
    """metrics.jsonl: a line for every epoch and every test, appended as they come; a line that a crash cut is dropped."""

    def __init__(self, file: Path, board: Board | None = None):
        self.file, self.board, self.rows = file, board, self._read(file)
        self.keys = {_key(row) for row in self.rows}
        for row in self.rows if board is not None else ():
            board.show(row)  # type: ignore[union-attr]

    @staticmethod
    def _read(file: Path) -> list[Row]:
        rows, whole = whole_rows(file)
        if file.exists() and whole < file.stat().st_size:
            with file.open("r+b") as stream:
                stream.truncate(whole)
        return rows

    def has(self, kind: str, *key: Any) -> bool:
        return (kind, *key) in self.keys

    def add(self, row: Row) -> None:
        """Append a row, once: epochs that are trained again after a crash are told again."""
        if _key(row) in self.keys:
            return
        self.keys.add(_key(row))
        self.rows.append(row)
        new = not self.file.exists()
        with self.file.open("ab") as stream:
            stream.write(json.dumps(row).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        if new:
            store.on_disk(self.file.parent)
        if self.board is not None:
            self.board.show(row)


def whole_rows(file: Path) -> tuple[list[Row], int]:
    """The rows of a journal up to the first that was cut, and how many bytes they have."""
    text = file.read_bytes() if file.exists() else b""
    whole, rows = 0, []
    for line in text.splitlines(keepends=True):
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        whole += len(line)
        rows.append(row)
    return rows, whole


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
