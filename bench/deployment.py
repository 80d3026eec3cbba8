"""Deployment: exported files and their latency in onnxruntime, and the server, compared with the dense network."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import load
import torch
from faults.malformed import make_malformed_requests, send_all
from inference import FIRST, LAST, interpolate_widths
from load import LoadResult
from random_learner import make_learner
from timing import Row, compute_ratio, round_limit, time_in_turns
from torch import nn

from spacecl.data.benchmarks.networks import CNN
from spacecl.export.export import export_network

SHAPE = (3, 32, 32)
RESULT = Path(__file__).parent.parent / "results" / "split-cifar10" / "result.json"
CONNECTIONS = 16


def make_cnn() -> nn.Module:
    """Return the paper's CNN for CIFAR-10."""
    return CNN(SHAPE, 2)


def make_wide_cnn() -> nn.Module:
    """Return the paper's CNN for CIFAR-100."""
    return CNN(SHAPE, 10, (64, 64, 128, 128, 256))


def open_session(file: Path) -> Callable[[Any], Any]:
    """Load a file into onnxruntime, with one thread, as on small machines."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(["logits"], {"input": x})


def measure_exports(folder: Path) -> Iterator[Row]:
    """Compare every task of split CIFAR-10, with the widths in results/, with the dense network's export."""
    example = torch.zeros(1, *SHAPE)
    widths = [list(task["widths"].values()) for task in json.loads(RESULT.read_text())["tasks"]]
    learner = make_learner(make_cnn(), example, widths, classes=2)
    dense = export_network(learner.dense(2).eval(), example, folder / "dense.onnx", {})
    sizes = {name: learner.export(name, folder / f"{name}.onnx")["bytes"] for name in learner.tasks}
    calls = {name: open_session(folder / f"{name}.onnx") for name in (*learner.tasks, "dense")}
    times = {}
    for batch in (1, 64):
        x = torch.randn(batch, *SHAPE).numpy()
        works = {name: partial(call, x) for name, call in calls.items()}
        times[batch] = time_in_turns(works, rounds=25, calls=20 if batch == 1 else 2)
    for name in learner.tasks:
        smaller = dense["bytes"] / sizes[name]
        faster = {batch: compute_ratio(seconds["dense"], seconds[name]) for batch, seconds in times.items()}
        median = {batch: 1e3 * sorted(seconds[name])[len(seconds[name]) // 2] for batch, seconds in times.items()}
        result = (
            f"{sizes[name] / 1e3:.1f} kB of {dense['bytes'] / 1e3:.1f}, {smaller:.1f} x smaller; "
            f"{faster[1]:.1f} x faster alone ({median[1]:.2f} ms), {faster[64]:.1f} x by 64"
        )
        figures = {"smaller": smaller, "faster": faster[1], "faster_64": faster[64], "bytes": sizes[name], "ms": median[1]}
        filters = "-".join(map(str, learner.records[name].widths.values()))
        what = f"ONNX file of {name} of split CIFAR-10, {filters}, in onnxruntime, one thread"
        yield Row(what, "the dense export", "smaller and faster", result, min(smaller, faster[1]) > 1, figures)


@contextmanager
def start_server(folder: Path, function: str) -> Iterator[int]:
    """Start a server in a process of its own, and give its port."""
    command = [sys.executable, "-m", "spacecl", "serve", str(folder), "--port", "0", "--model", f"{__file__}:{function}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()  # type: ignore[union-attr]
        yield int(re.search(r":(\d+) ", line)[1])  # type: ignore[index]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def load_server(port: int, models: list[str], seconds: float) -> LoadResult:
    """Put load on a server from a process of its own."""
    command = [sys.executable, load.__file__, str(port), str(seconds), str(CONNECTIONS), json.dumps(SHAPE), *models]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def measure_server(folder: Path) -> Iterator[Row]:
    """Compare ten tasks of the authors' CIFAR-100 widths, mixed, with one dense network behind the same server."""
    example = torch.zeros(1, *SHAPE)
    learners = {
        "small": make_learner(make_wide_cnn(), example, interpolate_widths(FIRST, LAST)),
        "dense": make_learner(make_wide_cnn(), example, [(64, 64, 128, 128, 256)]),
    }
    for name, learner in learners.items():
        learner.save(folder / name)
    models = {name: list(learner.tasks) for name, learner in learners.items()}
    rounds = min([3, *round_limit])
    results: dict[str, list[LoadResult]] = {"small": [], "dense": []}
    with start_server(folder / "small", "make_wide_cnn") as small, start_server(folder / "dense", "make_wide_cnn") as dense:
        for _ in range(rounds):
            for name, port in (("small", small), ("dense", dense)):
                results[name].append(load_server(port, models[name], 5.0 if rounds > 1 else 1.0))
        malformed = list(make_malformed_requests(1000, "task%201", SHAPE))
        statuses = Counter(status for _, status, _ in asyncio.run(send_all(small, malformed)))
        after = load_server(small, models["small"], 1.0)
    medians = {name: sorted(each, key=lambda r: r["requests_per_second"])[len(each) // 2] for name, each in results.items()}
    few, many = medians["small"], medians["dense"]
    result = (
        f"{few['requests_per_second']:.0f} requests/s, p99 {few['p99_ms']:.1f} ms, "
        f"against {many['requests_per_second']:.0f} and {many['p99_ms']:.1f}"
    )
    faster = few["requests_per_second"] / many["requests_per_second"]
    passed = faster > 1 and few["p99_ms"] < many["p99_ms"] and not few["wrong"]
    figures = {f"{name}_{key}": float(value) for name, row in medians.items() for key, value in row.items()}  # type: ignore[arg-type]
    what = f"serving 10 tasks mixed, one row per request, {CONNECTIONS} connections"
    yield Row(what, "one dense model behind the same server", "more requests, lower p99", result, passed, figures)
    result = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    passed = all(400 <= status < 500 for status in statuses) and not after["wrong"]
    yield Row(
        "1,000 malformed requests", "a reason for each", "all 4xx, and the server goes on", result, passed, {"faster": faster}
    )


def run() -> list[Row]:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        return [*measure_exports(Path(folder)), *measure_server(Path(folder))]
