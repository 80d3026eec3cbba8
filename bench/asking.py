"""Inference: a task's network beside the dense one and a hand-written one; rows of many tasks in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from learned import learner
from timing import Row, ratio, together
from torch import Tensor

from spacecl import Learner
from spacecl.data.benchmarks.networks import CNN, MLP
from spacecl.structure.memory_format import run_model

FIRST, LAST = (16, 18, 27, 18, 63), (23, 64, 128, 110, 216)  # filters of the first and last task of the authors' CIFAR-100 run
NEURONS = ((155, 26), (679, 194))  # of the first and last task of P-MNIST, from results/


def inference(taught: Learner) -> Iterator[Row]:
    hand, dense = CNN(classes=10, filters=FIRST).eval(), taught.dense(10).eval()
    reach = {64: (">= 5 x", 5.0), 1: ("faster", 1.0)}
    for batch, (words, least) in reach.items():
        x = torch.randn(batch, 3, 32, 32)
        works = {
            "own": partial(taught.logits, x, "task 1"),
            "dense": partial(run_model, dense, x, channels_last=True),
            "dense, plain": partial(dense, x),
            "hand": partial(run_model, hand, x, channels_last=True),
        }
        with torch.no_grad():
            found = together(works, rounds=25, calls=4 if batch > 1 else 40)
        faster, plain = ratio(found["dense"], found["own"]), ratio(found["dense, plain"], found["own"])
        over = ratio(found["own"], found["hand"])
        figures = {"faster": faster, "faster_than_plain": plain, "over_hand_written": over}
        what = f"inference of task 1 of the authors' CIFAR-100 widths, batch {batch}"
        told = f"{faster:.1f} x faster; {plain:.1f} x than the dense one not channels-last"
        yield Row(what, "the dense network", words, told, faster >= least, figures)
        what = "the same, checks of the input included"
        yield Row(what, "a hand-written network", "<= 1.3 x", f"{over:.2f} x", over <= 1.3, figures)


def mixed(name: str, taught: Learner, x: Tensor) -> Iterator[Row]:
    names = [f"task {row % 10 + 1}" for row in range(len(x))]
    dense = taught.dense(10).eval()

    def one_by_one() -> None:
        for row, task in enumerate(names):
            taught.predict(x[row : row + 1], task)

    works = {
        "mixed": partial(taught.predict, x, names),
        "rows": one_by_one,
        "dense": partial(run_model, dense, x, channels_last=taught.channels_last),
    }
    with torch.no_grad():
        found = together(works, rounds=9)
    faster, over = ratio(found["rows"], found["mixed"]), ratio(found["mixed"], found["dense"])
    what, figures = f"mixed batch of 256 rows over 10 tasks, {name}", {"faster": faster, "over_dense": over}
    yield Row(what, "one row after another", ">= 10 x", f"{faster:.1f} x faster", faster >= 10, figures)
    yield Row(what, "the dense network once", "<= 1 x", f"{over:.2f} x", over <= 1, figures)


def rows() -> list[Row]:
    torch.manual_seed(0)
    images, vectors = torch.randn(256, 3, 32, 32), torch.randn(256, 784)
    cnn = learner(CNN(classes=10, filters=(64, 64, 128, 128, 256)), images[:1], _growing(FIRST, LAST))
    mlp = learner(MLP(784, 10), vectors[:1], _growing(*NEURONS))
    return [*inference(cnn), *mixed("CNN", cnn, images), *mixed("MLP", mlp, vectors)]


def _growing(first: Sequence[int], last: Sequence[int]) -> list[list[int]]:
    """Widths of ten tasks: the first, the last, and in between by equal steps."""
    return [[round(a + (b - a) * number / 9) for a, b in zip(first, last)] for number in range(10)]
