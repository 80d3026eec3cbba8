"""Out of the lab: exported files and their latency in onnxruntime, and the server, beside the dense network."""

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
from asking import FIRST, LAST, _growing
from learned import learner
from timing import Row, most_rounds, ratio, together
from torch import nn

from spacecl.data.benchmarks.networks import CNN
from spacecl.export.export import export_network

SHAPE = (3, 32, 32)
RESULT = Path(__file__).parent.parent / "results" / "split-cifar10" / "result.json"
CONNECTIONS = 16


def cnn() -> nn.Module:
    """The paper's CNN for CIFAR-10."""
    return CNN(SHAPE, 2)


def wide() -> nn.Module:
    """The paper's CNN for CIFAR-100."""
    return CNN(SHAPE, 10, (64, 64, 128, 128, 256))


def session(file: Path) -> Callable[[Any], Any]:
    """A file in onnxruntime, with one thread, as small machines have."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    made = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda x: made.run(["logits"], {"input": x})


def exports(folder: Path) -> Iterator[Row]:
    """Every task of split CIFAR-10 as in results/, beside the dense network's own export."""
    example = torch.zeros(1, *SHAPE)
    widths = [list(task["widths"].values()) for task in json.loads(RESULT.read_text())["tasks"]]
    taught = learner(cnn(), example, widths, classes=2)
    dense = export_network(taught.dense(2).eval(), example, folder / "dense.onnx", {})
    sizes = {name: taught.export(name, folder / f"{name}.onnx")["bytes"] for name in taught.tasks}
    calls = {name: session(folder / f"{name}.onnx") for name in (*taught.tasks, "dense")}
    times = {}
    for batch in (1, 64):
        x = torch.randn(batch, *SHAPE).numpy()
        works = {name: partial(call, x) for name, call in calls.items()}
        times[batch] = together(works, rounds=25, calls=20 if batch == 1 else 2)
    for name in taught.tasks:
        smaller = dense["bytes"] / sizes[name]
        faster = {batch: ratio(found["dense"], found[name]) for batch, found in times.items()}
        middle = {batch: 1e3 * sorted(found[name])[len(found[name]) // 2] for batch, found in times.items()}
        told = (
            f"{sizes[name] / 1e3:.1f} kB of {dense['bytes'] / 1e3:.1f}, {smaller:.1f} x smaller; "
            f"{faster[1]:.1f} x faster alone ({middle[1]:.2f} ms), {faster[64]:.1f} x by 64"
        )
        figures = {"smaller": smaller, "faster": faster[1], "faster_64": faster[64], "bytes": sizes[name], "ms": middle[1]}
        filters = "-".join(map(str, taught.records[name].widths.values()))
        what = f"ONNX file of {name} of split CIFAR-10, {filters}, in onnxruntime, one thread"
        yield Row(what, "the dense export", "smaller and faster", told, min(smaller, faster[1]) > 1, figures)


@contextmanager
def serving(folder: Path, function: str) -> Iterator[int]:
    """A server in a process of its own; gives its port."""
    command = [sys.executable, "-m", "spacecl", "serve", str(folder), "--port", "0", "--model", f"{__file__}:{function}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()  # type: ignore[union-attr]
        yield int(re.search(r":(\d+) ", line)[1])  # type: ignore[index]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def loaded(port: int, models: list[str], seconds: float) -> dict[str, float]:
    """What a client in a process of its own gets out of a server."""
    command = [sys.executable, load.__file__, str(port), str(seconds), str(CONNECTIONS), json.dumps(SHAPE), *models]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def serve(folder: Path) -> Iterator[Row]:
    """Ten tasks of the authors' CIFAR-100 widths, mixed, beside one dense network behind the same server."""
    example = torch.zeros(1, *SHAPE)
    taught = learner(wide(), example, _growing(FIRST, LAST))
    whole = learner(wide(), example, [(64, 64, 128, 128, 256)])
    for name, one in {"small": taught, "dense": whole}.items():
        one.save(folder / name)
    rounds = min([3, *most_rounds])
    found: dict[str, list[dict[str, float]]] = {"small": [], "dense": []}
    with serving(folder / "small", "wide") as small, serving(folder / "dense", "wide") as dense:
        for _ in range(rounds):
            for name, port, one in (("small", small, taught), ("dense", dense, whole)):
                found[name].append(loaded(port, list(one.tasks), 5.0 if rounds > 1 else 1.0))
        wrong = list(load.malformed(1000, "task%201", SHAPE))
        statuses = Counter(status for _, status, _ in asyncio.run(load.refused(small, wrong)))
        after = loaded(small, list(taught.tasks), 1.0)
    best = {name: sorted(rows, key=lambda row: row["requests_per_second"])[len(rows) // 2] for name, rows in found.items()}
    few, many = best["small"], best["dense"]
    told = (
        f"{few['requests_per_second']:.0f} requests/s, p99 {few['p99_ms']:.1f} ms, "
        f"against {many['requests_per_second']:.0f} and {many['p99_ms']:.1f}"
    )
    faster = few["requests_per_second"] / many["requests_per_second"]
    figures = {f"{name}_{key}": value for name, row in best.items() for key, value in row.items()}
    what = f"serving 10 tasks mixed, one row a request, {CONNECTIONS} connections"
    yield Row(what, "one dense model behind the same server", "more requests, lower p99", told, _better(few, many), figures)
    told = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    fine = all(400 <= status < 500 for status in statuses) and not after["wrong"]
    yield Row("1,000 malformed requests", "a reason for each", "all 4xx, the server lives on", told, fine, {"faster": faster})


def _better(few: dict[str, float], many: dict[str, float]) -> bool:
    return few["requests_per_second"] > many["requests_per_second"] and few["p99_ms"] < many["p99_ms"] and not few["wrong"]


def rows() -> list[Row]:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        return [*exports(Path(folder)), *serve(Path(folder))]
