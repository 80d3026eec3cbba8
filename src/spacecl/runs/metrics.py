"""Measures of a run: scores over time, forgetting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Matrix = Sequence[Sequence[float | None]]  # row: tasks learned so far; column: the task that is tested
MIXED = "score"  # the name of a mean over tasks that have several metrics


def name_metric(metrics: Iterable[str]) -> str:
    """What a mean over tasks is called: the metric of all of them, or score if there are several.

    >>> name_metric(["accuracy", "accuracy"]), name_metric(["accuracy", "R²"])
    ('accuracy', 'score')
    """
    names = set(metrics)
    return names.pop() if len(names) == 1 else MIXED


def average_score(matrix: Matrix) -> float:
    """The mean score over all tasks when the last has been learned; of accuracies, ACC.

    >>> average_score([[0.9, None], [0.7, 0.8]])
    0.75
    """
    last = [value for value in matrix[-1] if value is not None]
    return sum(last) / len(last)


def backward_transfer(matrix: Matrix) -> float:
    """How much better, or worse, tasks have become since each was learned, on average (BWT).

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
