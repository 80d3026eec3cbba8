"""Measures of a run: accuracy over time, forgetting."""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float | None]]  # row: tasks learned so far; column: the task that is tested


def average_accuracy(matrix: Matrix) -> float:
    """The mean accuracy over all tasks when the last has been learned (ACC).

    >>> average_accuracy([[0.9, None], [0.7, 0.8]])
    0.75
    """
    last = [value for value in matrix[-1] if value is not None]
    return sum(last) / len(last)


def backward_transfer(matrix: Matrix) -> float:
    """How much accuracy tasks have gained, or lost, since each was learned, on average (BWT).

    >>> round(backward_transfer([[0.9, None], [0.7, 0.8]]), 3)
    -0.2
    """
    changes = [
        now - then
        for now, then in zip(matrix[-1], (row[n] for n, row in enumerate(matrix)))
        if now is not None and then is not None
    ]
    return sum(changes[:-1]) / max(1, len(changes) - 1)


def forgetting(matrix: Matrix) -> float:
    """How far tasks have fallen from the best they ever were, on average over all but the last.

    >>> round(forgetting([[0.9, None, None], [0.95, 0.8, None], [0.7, 0.8, 0.8]]), 3)
    0.125
    """
    columns = list(zip(*matrix))[:-1]
    falls = [max(v for v in column if v is not None) - (column[-1] or 0.0) for column in columns]
    return sum(falls) / max(1, len(falls))
