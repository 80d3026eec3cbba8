"""Inference: a task's network beside the dense one and a hand-written one; rows of many tasks in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from learned import AUTHORS, learner
from timing import Row, ratio, together

from spacecl import Learner
from spacecl.benchmarks.networks import CNN
from spacecl.blueprint import ask


def inference(taught: Learner) -> Iterator[Row]:
    hand = CNN(classes=10, filters=AUTHORS[0]).eval()
    dense = taught.given(10).eval()
    reach = {64: (">= 5 x", 5.0), 1: ("faster", 1.0)}
    for batch, (words, least) in reach.items():
        x = torch.randn(batch, 3, 32, 32)
        with torch.no_grad():
            works = {
                "own": lambda x=x: taught.logits(x, "task 1"),
                "subnet": lambda x=x, own=taught.subnet("task 1"): ask(own, x, channels_last=True),
                "dense": lambda x=x: ask(dense, x, channels_last=True),
                "dense, plain": lambda x=x: dense(x),
                "hand": lambda x=x: ask(hand, x, channels_last=True),
            }
            found = together(works, rounds=25, calls=4 if batch > 1 else 40)
        faster, plain = ratio(found["dense"], found["own"]), ratio(found["dense, plain"], found["own"])
        over = ratio(found["own"], found["hand"])
        figures = {"faster": faster, "faster_than_plain": plain, "over_hand_written": over}
        what = f"inference of task 1 of the authors' CIFAR-100 widths, batch {batch}"
        told = f"{faster:.1f} x faster; {plain:.1f} x than it not channels-last"
        yield Row(what, "the dense network", words, told, faster >= least, figures)
        yield Row("the same", "a hand-written network", "<= 1.3 x", f"{over:.2f} x", over <= 1.3, figures)


def mixed(taught: Learner) -> Iterator[Row]:
    x = torch.randn(256, 3, 32, 32)
    names = [f"task {row % 10 + 1}" for row in range(256)]
    dense = taught.given(10).eval()

    def one_by_one() -> None:
        for row, name in enumerate(names):
            taught.predict(x[row : row + 1], name)

    with torch.no_grad():
        works = {
            "mixed": lambda: taught.predict(x, names),
            "rows": one_by_one,
            "dense": lambda: ask(dense, x, channels_last=True),
        }
        found = together(works, rounds=9)
    faster, over = ratio(found["rows"], found["mixed"]), ratio(found["mixed"], found["dense"])
    what, figures = "mixed batch of 256 rows over 10 tasks", {"faster": faster, "over_dense": over}
    yield Row(what, "one row after another", ">= 10 x", f"{faster:.1f} x faster", faster >= 10, figures)
    yield Row(what, "the dense network once", "<= 1 x", f"{over:.2f} x", over <= 1, figures)


def rows() -> list[Row]:
    torch.manual_seed(0)
    taught = learner(CNN(classes=10, filters=(64, 64, 128, 128, 256)), _growing(AUTHORS[0], AUTHORS[-1]))
    return [*inference(taught), *mixed(taught)]


def _growing(first: Sequence[int], last: Sequence[int]) -> list[list[int]]:
    """Widths of ten tasks: the authors' first and last, and in between by equal steps."""
    return [[round(a + (b - a) * number / 9) for a, b in zip(first, last)] for number in range(10)]
