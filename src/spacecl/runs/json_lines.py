"""Files with one JSON value per line, to which a process appends while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..documents import LARGEST_DOCUMENT, RESTORE, parse_document, read_bytes


def read_json_lines(file: Path, kind: Any, remedy: str = RESTORE) -> tuple[list[Any], int]:
    """Read all whole lines as values of a type, and how many bytes these lines have; nothing of a file that does not exist.

    A last line that a crash cut off is left out. Any other line that does not fit the type is an error with `remedy`.
    """
    lines = (read_bytes(file, LARGEST_DOCUMENT) if file.exists() else b"").split(b"\n")
    cut = lines.pop()  # what follows the last newline: nothing, or a line that was cut off
    if lines and not cut and b"\0" in lines[-1]:  # zeros, where a file system has kept the size and lost the data
        lines.pop()
    rows = [parse_document(line, kind, f"{file}, line {number},", remedy) for number, line in enumerate(lines, 1)]
    return rows, sum(len(line) + 1 for line in lines)
