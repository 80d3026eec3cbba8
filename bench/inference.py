"""Inference: a task's network compared with the dense one and a hand-written one; rows of many tasks in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from random_learner import make_learner
from timing import Row, compute_ratio, time_in_turns
from torch import Tensor

from spacecl import Learner
from spacecl.data.benchmarks.networks import CNN, MLP
from spacecl.structure.memory_format import run_model

FIRST, LAST = (16, 18, 27, 18, 63), (23, 64, 128, 110, 216)  # filters of the first and last task of the authors' CIFAR-100 run
NEURONS = ((155, 26), (679, 194))  # of the first and last task of P-MNIST, from results/


def measure_one_task(learner: Learner) -> Iterator[Row]:
    handwritten, dense = CNN(classes=10, filters=FIRST).eval(), learner.dense(10).eval()
    targets = {64: (">= 5 x", 5.0), 1: ("faster", 1.0)}
    for batch, (words, least) in targets.items():
        x = torch.randn(batch, 3, 32, 32)
        works = {
            "own": partial(learner.logits, x, "task 1"),
            "dense": partial(run_model, dense, x, channels_last=True),
            "dense, plain": partial(dense, x),
            "hand": partial(run_model, handwritten, x, channels_last=True),
        }
        with torch.no_grad():
            times = time_in_turns(works, rounds=25, calls=4 if batch > 1 else 40)
        faster, plain = compute_ratio(times["dense"], times["own"]), compute_ratio(times["dense, plain"], times["own"])
        over = compute_ratio(times["own"], times["hand"])
        figures = {"faster": faster, "faster_than_plain": plain, "over_hand_written": over}
        what = f"inference of task 1 of the authors' CIFAR-100 widths, batch {batch}"
        result = f"{faster:.1f} x faster; {plain:.1f} x than the dense one without channels-last"
        yield Row(what, "the dense network", words, result, faster >= least, figures)
        what = "the same, checks of the input included"
        yield Row(what, "a hand-written network", "<= 1.3 x", f"{over:.2f} x", over <= 1.3, figures)


def measure_mixed_batch(name: str, learner: Learner, x: Tensor) -> Iterator[Row]:
    names = [f"task {row % 10 + 1}" for row in range(len(x))]
    dense = learner.dense(10).eval()

    def predict_row_by_row() -> None:
        for row, task in enumerate(names):
            learner.predict(x[row : row + 1], task)

    works = {
        "mixed": partial(learner.predict, x, names),
        "rows": predict_row_by_row,
        "dense": partial(run_model, dense, x, channels_last=learner.channels_last),
    }
    with torch.no_grad():
        times = time_in_turns(works, rounds=9)
    faster, over = compute_ratio(times["rows"], times["mixed"]), compute_ratio(times["mixed"], times["dense"])
    what, figures = f"mixed batch of 256 rows over 10 tasks, {name}", {"faster": faster, "over_dense": over}
    yield Row(what, "row by row", ">= 10 x", f"{faster:.1f} x faster", faster >= 10, figures)
    yield Row(what, "the dense network once", "<= 1 x", f"{over:.2f} x", over <= 1, figures)


def run() -> list[Row]:
    torch.manual_seed(0)
    images, vectors = torch.randn(256, 3, 32, 32), torch.randn(256, 784)
    cnn = make_learner(CNN(classes=10, filters=(64, 64, 128, 128, 256)), images[:1], interpolate_widths(FIRST, LAST))
    mlp = make_learner(MLP(784, 10), vectors[:1], interpolate_widths(*NEURONS))
    return [*measure_one_task(cnn), *measure_mixed_batch("CNN", cnn, images), *measure_mixed_batch("MLP", mlp, vectors)]


def interpolate_widths(first: Sequence[int], last: Sequence[int]) -> list[list[int]]:
    """Return the widths of ten tasks, from the first to the last in equal steps."""
    return [[round(a + (b - a) * number / 9) for a, b in zip(first, last)] for number in range(10)]
