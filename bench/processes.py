"""Measure what several processes gain on one machine, and how long each waits for data.

    python bench/processes.py [--repeats 3] [--limit 200] [--data DIR]

Runs `spacecl run` with one process and one thread, with one process and two threads, and with two processes of one thread each,
in turns: on split-cifar10, whose pictures are in memory, and on a Dataset of the same size whose items are cropped, flipped and
scaled one by one. Then weak scaling: twice the processes, the examples and the batch. Prints Markdown with a figure for each
repeat: images per second of all processes together, the same as a ratio to one process with one thread, and the part of an
epoch's time that a process waits for its batches, the longest of all processes. Seconds are those of the run's journal, which
include validation and checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATASET = """
import torch
from torch.utils.data import Dataset
from spacecl import Task

class Pictures(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(count)
        self.targets = torch.arange(count) % 2
        self.pixels = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        x = torch.nn.functional.pad(self.pixels[index].float() / 255, (4, 4, 4, 4))
        top, left = torch.randint(9, (2,)).tolist()
        x = x[:, top : top + 32, left : left + 32]
        x = x.flip(2) if torch.rand(()) < 0.5 else x
        return (x - 0.5) / 0.25, int(self.targets[index])

def tasks():
    return [Task("pictures", Pictures({count}), test=Pictures(100), valid=Pictures(100), classes=2)]
"""


@dataclass(frozen=True)
class Setup:
    """One way to run: so many processes with so many threads each; `scale` multiplies the examples and the batch."""

    processes: int
    threads: int
    scale: int = 1

    @property
    def name(self) -> str:
        plural = ("es" * (self.processes > 1), "s" * (self.threads > 1))
        return f"{self.processes} process{plural[0]}, {self.threads} thread{plural[1]}"


@dataclass(frozen=True)
class Speed:
    images: float  # per second
    waiting: float  # part of the time


def run_timed(folder: Path, arguments: list[str]) -> int:
    """Be one process of a run, and write how many images it trained on and how long it waited for them."""
    from spacecl.cli.main import main
    from spacecl.learning import trainer

    usual, rows, waited = trainer.shards, 0, 0.0

    def time_shards(*given: Any) -> Iterator[Any]:
        nonlocal rows, waited
        batches = usual(*given)
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - started
            if batch is None:
                return
            rows += len(batch[1])
            yield batch

    trainer.shards = time_shards
    code = main(arguments)
    (folder / f"waited-{os.environ.get('RANK', 0)}").write_text(json.dumps([rows, waited]))
    return code


def measure(setup: Setup, benchmark: list[str]) -> Speed:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "run"
        start = [sys.executable]
        if setup.processes > 1:
            start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={setup.processes}"]
        command = [*start, __file__, "--timed", str(folder), "--", "run", *benchmark, "--out", str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(setup.threads), "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        epochs = [row for row in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if row["kind"] == "epoch"]
        ranks = [json.loads(file.read_text()) for file in folder.glob("waited-*")]
        seconds = sum(row["seconds"] for row in epochs)
        return Speed(sum(rows for rows, _ in ranks) / seconds, max(waited for _, waited in ranks) / seconds)


def make_benchmarks(options: argparse.Namespace, folder: Path) -> dict[str, dict[int, list[str]]]:
    """The arguments of `spacecl run` by the name of the data and by their amount, 1 or 2 times."""
    common = ["--epochs", "2", "--retrain-epochs", "1", "--device", "cpu", "--quiet", "--no-measure"]
    data = ["--data", options.data] if options.data else []
    benchmarks: dict[str, dict[int, list[str]]] = {"split-cifar10, in memory": {}, "Dataset with transforms": {}}
    for scale in (1, 2):
        batch = ["--batch-size", str(64 * scale)]
        limit = ["--tasks", "1", "--limit", str(scale * options.limit)]
        benchmarks["split-cifar10, in memory"][scale] = ["split-cifar10", *limit, *data, *batch, *common]
        file = folder / f"pictures{scale}.py"
        file.write_text(DATASET.replace("{count}", str(2 * scale * options.limit)))
        benchmarks["Dataset with transforms"][scale] = [str(file), "--model", "cnn", "--recipe", "paper", *batch, *common]
    return benchmarks


def format_list(values: list[float], form: str) -> str:
    return " / ".join(format(value, form) for value in values)


def main() -> int:
    if "--timed" in sys.argv:
        position = sys.argv.index("--timed")
        return run_timed(Path(sys.argv[position + 1]), sys.argv[position + 3 :])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=int, default=200, help="examples of each class")
    parser.add_argument("--data", help="folder with datasets")
    options = parser.parse_args()
    base, weak = Setup(1, 1), Setup(2, 1, scale=2)
    setups = [base, Setup(1, 2), Setup(2, 1), weak]
    with tempfile.TemporaryDirectory() as name:
        benchmarks = make_benchmarks(options, Path(name))
        speeds: dict[tuple[str, Setup], list[Speed]] = {}
        for _ in range(options.repeats):
            for title, arguments in benchmarks.items():
                for setup in setups:
                    speed = measure(setup, arguments[setup.scale])
                    speeds.setdefault((title, setup), []).append(speed)
                    print(title, setup, speed, file=sys.stderr)
    print(f"{options.limit} examples of each of 2 classes, load of the machine {os.getloadavg()[0]:.1f}.\n")
    print("| data | | images per second | as a ratio | waiting for data |\n|---|---|---|---|---|")
    for (title, setup), found in speeds.items():
        ratios = [speed.images / first.images for speed, first in zip(found, speeds[title, base])]
        what = f"{setup.name}, twice the data and the batch" if setup == weak else setup.name
        images = format_list([speed.images for speed in found], ".0f")
        print(
            f"| {title} | {what} | {images} | {format_list(ratios, '.2f')} | {format_list([s.waiting for s in found], '.1%')} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
