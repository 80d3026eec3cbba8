"""Many tasks: what learning, saving, loading and inferring cost as the number of tasks grows.

python bench/many_tasks.py
python bench/many_tasks.py --tasks 10 100 1000
python bench/many_tasks.py --network cnn --untrained --tasks 10 50 200

Prints processor seconds, which other work on the machine hardly changes. `learn` and `save` are for one more task, the
median of the last ones; `load`, with all digests, and `infer` of 32 rows are for all tasks together, as are the bytes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from timing import Row
from torch import Tensor, nn

from spacecl import SPACE, Core, Learned, Learner, Method, Recipe, SpaceWarning, Task, TaskContext
from spacecl.data.benchmarks.networks import CNN
from spacecl.options import options

LAST = 5  # tasks that the medians of learning and saving are taken over
ROWS = 32  # whose tasks are inferred in one call


@options
class Untrained(Method):
    """Give every task random units of each group and the weights it would begin with: what learning costs without training."""

    def learn(self, core: Core, task: TaskContext) -> Learned:
        channels, generator = core.channels, torch.Generator().manual_seed(len(core.tasks))
        units = torch.zeros(channels.units, dtype=torch.bool)
        for group in channels.groups:
            units[group.units[torch.randperm(len(group.units), generator=generator)[: max(1, len(group.units) // 4)]]] = True
        return Learned(core.commit(channels.gather(core.initial_tensors(task.classes), units), units), [])


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def make_cnn() -> nn.Module:
    return CNN(classes=2, filters=(64, 64, 128, 128, 256))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (make_mlp, (32,)),
    "cnn": (make_cnn, (3, 32, 32)),
}


@dataclass(frozen=True)
class Costs:
    """What a learner of some number of tasks costs, in processor seconds and bytes."""

    tasks: int
    learn: float  # one more task
    save: float  # one more task, into a folder that has the others
    load: float  # all tasks
    infer: float  # 32 rows among all tasks, the first time in this process
    infer_again: float
    stored: int  # bytes of all tasks


def measure(network: str, method: Method, counts: Sequence[int]) -> Iterator[Costs]:
    """Learn tasks one after another, and yield the costs whenever their number is one of `counts`."""
    build, shape = NETWORKS[network]
    torch.manual_seed(0)
    learner = Learner(build(), method, example_input=torch.zeros(1, *shape), progress=False)
    recipe = Recipe(epochs=1, batch_size=50)
    with tempfile.TemporaryDirectory() as folder:
        learning: list[float] = []
        saving: list[float] = []
        for number in range(max(counts)):
            task = _make_task(number, shape)
            learning.append(_measure(partial(learner.learn, task, recipe))[0])
            if any(0 <= count - len(learning) <= LAST for count in counts):
                saving.append(_measure(lambda: learner.save(folder))[0])
            if len(learning) in counts:
                load, loaded = _measure(lambda: Learner.load(folder, build(), method=method, progress=False))
                x = _make_inputs(0, shape)[:ROWS]
                first, again = (_measure(partial(loaded.predict, x, task="infer"))[0] for _ in range(2))
                stored = sum(file.stat().st_size for file in Path(folder).iterdir())
                yield Costs(len(learning), median(learning[-LAST:]), median(saving[-LAST:]), load, first, again, stored)


def _make_inputs(number: int, shape: Sequence[int]) -> Tensor:
    """The inputs of a task: noise around a mean of its own."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(100, *shape, generator=generator) + torch.randn(shape, generator=generator)


def _make_task(number: int, shape: Sequence[int]) -> Task:
    x = _make_inputs(number, shape)
    return Task(f"task {number + 1}", (x, (x.flatten(1)[:, 0] > x.flatten(1)[:, 0].median()).long()))


def _measure(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def run() -> Iterator[Row]:
    """What a task costs among many, beside what it costs among few."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpaceWarning)
        few, many = measure("mlp", SPACE(), (10, 100))
    ratios = {
        "learn": many.learn / few.learn,
        "save": many.save / few.save,
        "load": many.load * few.tasks / (few.load * many.tasks),
        "infer": many.infer_again * few.tasks / (few.infer_again * many.tasks),
        "bytes": many.stored * few.tasks / (few.stored * many.tasks),
    }
    worst = max(ratios.values())
    result = ", ".join(f"{name} {ratio:.2f} x" for name, ratio in ratios.items())
    yield Row(f"a task of a small MLP among {many.tasks}", f"among {few.tasks}", "<= 1.5 x", result, worst <= 1.5, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=[10, 100], help="numbers of tasks (default: 10 100)")
    parser.add_argument("--network", choices=NETWORKS, default="mlp", help="default: mlp, of three layers with 64 neurons")
    parser.add_argument(
        "--untrained", action="store_true", help="commit networks of random widths instead of training with SPACE"
    )
    args = parser.parse_args()
    warnings.simplefilter("ignore", SpaceWarning)
    torch.set_num_threads(1)
    print("| tasks | learn one, s | save one, s | load all, s | infer 32 rows, s | again, s | bytes | bytes per task |")
    print("|---|---|---|---|---|---|---|---|")
    for costs in measure(args.network, Untrained() if args.untrained else SPACE(), args.tasks):
        seconds = (costs.learn, costs.save, costs.load, costs.infer, costs.infer_again)
        cells = [*(f"{value:.3f}" for value in seconds), f"{costs.stored:,}", f"{costs.stored // costs.tasks:,}"]
        print(f"| {costs.tasks:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
