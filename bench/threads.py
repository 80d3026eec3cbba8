"""Time training steps of growing size with one thread and with several: where several begin to pay.

    python bench/threads.py [--seconds 4] [--repeats 3]

Prints Markdown: for every network the multiply-adds of a step (forward, and twice as many backward), the time of a step with
one thread, how many times as fast it is with all threads, for each repeat, and how many times as much processor time it
takes. The numbers of threads take turns, and the fastest step of each counts, which is the least disturbed by other work.
`spacecl.runs.resources` has the threshold that follows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from spacecl.runs.costs import multiply_adds
from spacecl.runs.resources import count_cores

MLPS = ((8, 32), (32, 32), (100, 32), (100, 128), (300, 128), (600, 256), (1200, 256), (2000, 512), (3000, 512))  # width, batch
CNNS = ((2, 8, 8), (4, 16, 8), (8, 32, 8), (8, 32, 16), (16, 32, 16), (32, 32, 16), (32, 64, 32), (64, 64, 32))  # and side


def make_mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def make_cnn(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, width), (width, width), (width, 2 * width)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))


def make_step(network: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    y, optimizer = torch.randint(10, (len(x),)), torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(step: Callable[[], None], threads: int, calls: int) -> tuple[float, float]:
    """The seconds of the fastest of some steps with so many threads, and the processor seconds of all of them, for each."""
    torch.set_num_threads(threads)
    step()
    used, fastest = time.process_time(), float("inf")
    for _ in range(calls):
        started = time.perf_counter()
        step()
        fastest = min(fastest, time.perf_counter() - started)
    return fastest, (time.process_time() - used) / calls


def compare(step: Callable[[], None], many: int, seconds: float) -> tuple[float, float, float]:
    """The least seconds of a step with one thread, the gain of several, and the ratio of processor time; rounds take turns."""
    calls = max(1, min(20, int(0.02 / max(1e-5, measure(step, 1, 1)[0]))))
    rounds, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 3:
        rounds.append((measure(step, 1, calls), measure(step, many, calls)))
    one, several = (min(pair[k][0] for pair in rounds) for k in (0, 1))
    processor = statistics.median(pair[1][1] / pair[0][1] for pair in rounds)
    return one, one / several, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4, help="for every network and repeat")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    many = count_cores()
    torch.manual_seed(0)
    cases = [(f"MLP {width}, batch {batch}", make_mlp(width), torch.randn(batch, 784)) for width, batch in MLPS]
    cases += [
        (f"CNN {width}, batch {b}, {side} pixels", make_cnn(width), torch.randn(b, 3, side, side)) for width, b, side in CNNS
    ]
    table = [(3 * len(x) * multiply_adds(network, x[:1]), name, make_step(network, x)) for name, network, x in cases]
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for _, name, _ in table}
    for _ in range(options.repeats):
        for _, name, step in table:
            results[name].append(compare(step, many, options.seconds))
    print(f"{many} threads beside one; load of the machine {os.getloadavg()[0]:.1f}.\n")
    print(f"| network | multiply-adds | ms with 1 thread | gain of {many} | processor time |\n|---|---|---|---|---|")
    for work, name, _ in sorted(table, key=lambda row: row[0]):
        rows = results[name]
        gains = " / ".join(f"{gain:.2f}" for _, gain, _ in rows)
        processor = statistics.median(ratio for _, _, ratio in rows)
        print(f"| {name} | {work:.1e} | {1000 * min(one for one, _, _ in rows):.2f} | {gains} | {processor:.2f} |")


if __name__ == "__main__":
    main()
