"""The analysis of all layers: the paper's SVD of activations compared with streamed moments, each in its own process.

The network is the CIFAR-100 one (64-64-128-128-256 filters); the core has the authors' widths after their first task. Timed is
the way from the trained network and the images to the numbers of filters.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
from timing import Row
from torch import Tensor, nn

WIDTHS, CORE, VARIANCE = (64, 64, 128, 128, 256), (16, 18, 27, 18, 63), (0.999, 0.99, 0.99, 0.99, 0.99)
IMAGES = 1000


def analyse_by_svd(model: nn.Module, x: Tensor) -> list[int]:
    """Follow Algorithm 3 literally: store all activations, SVD of the core, project, subtract, PCA."""
    from sklearn.decomposition import PCA

    outputs: dict[nn.Module, list[Tensor]] = {}
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    handles = [layer.register_forward_hook(lambda layer, _, out: outputs.setdefault(layer, []).append(out)) for layer in layers]
    with torch.no_grad():
        for part in x.split(100):
            model(part)
    for handle in handles:
        handle.remove()
    filters = []
    for layer, core, threshold in zip(layers, CORE, VARIANCE):
        activations = torch.cat(outputs[layer]).movedim(1, -1).reshape(-1, layer.out_channels).numpy()  # (samples, filters)
        centred = activations - activations.mean(0)
        a_f, a_r = centred[:, :core], centred[:, core:]
        n = len(centred)
        v_r = (a_r * a_r).sum(dtype=np.float64) / (n - 1)
        u, s, _ = np.linalg.svd(a_f, full_matrices=False)
        u = u[:, s > 1e-5 * s.max()]
        a_proj = u @ (u.T @ a_r)
        v_proj = (a_proj * a_proj).sum(dtype=np.float64) / (n - 1)
        ratios = PCA(svd_solver="full").fit(a_r - a_proj).explained_variance_ / v_r
        explained, count = v_proj / v_r, 0
        for ratio in ratios:
            if explained < threshold:
                explained, count = explained + ratio, count + 1
        filters.append(core + count)
    return filters


def analyse_by_moments(model: nn.Module, x: Tensor) -> list[int]:
    """Compute the same from streamed moments, as the learner does, which traced the graph when it wrapped the model."""
    from lightning_fabric import Fabric

    from spacecl.methods.space.moments import collect_statistics
    from spacecl.methods.space.spectrum import analyze_residual
    from spacecl.structure.memory_format import set_memory_format

    moments = collect_statistics(
        set_memory_format(model, channels_last=True), _trace_outputs(model), x.split(100), Fabric(accelerator="cpu", devices=1)
    )
    filters = []
    for (place, statistics), core, threshold in zip(moments.items(), CORE, VARIANCE):
        in_core = torch.arange(len(place.units)) < core
        filters.append(core + analyze_residual(statistics.covariance, in_core).needed(threshold))
    return filters


@cache
def _trace_outputs(model: nn.Module) -> tuple:
    from spacecl.structure.trace import trace

    return trace(model, torch.zeros(1, 3, 32, 32)).outputs


def run_child(name: str, count: int) -> None:
    """Measure one procedure in this process, and print time and memory as JSON."""
    from spacecl.data.benchmarks.networks import CNN

    torch.manual_seed(0)
    model, x = CNN(classes=10, filters=WIDTHS).eval(), torch.randn(count, 3, 32, 32)
    procedure = {"svd": analyse_by_svd, "moments": analyse_by_moments}[name]
    procedure(model, x[:4])  # warm up: imports, the graph, and the libraries' own memory
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, started = _read_status("VmRSS"), time.perf_counter()
    filters = procedure(model, x)
    spent = time.perf_counter() - started
    memory = _read_status("VmHWM") - before
    started = time.perf_counter()
    with torch.no_grad():
        for part in x.split(100):
            model(part)
    forward = time.perf_counter() - started
    print(json.dumps({"filters": filters, "seconds": spent, "forward": forward, "MiB": max(1.0, memory)}))


def _read_status(name: str) -> float:
    """Return a figure of this process in MiB, as Linux reports it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def _measure(name: str, count: int) -> dict:
    command = [sys.executable, __file__, name, str(count)]
    runs = []
    for _ in range(1 if name == "svd" else 3):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]


def run() -> list[Row]:
    svd, moments, more = _measure("svd", IMAGES), _measure("moments", IMAGES), _measure("moments", 4 * IMAGES)
    faster, memory = svd["seconds"] / moments["seconds"], svd["MiB"] / moments["MiB"]
    alone = (svd["seconds"] - svd["forward"]) / (moments["seconds"] - moments["forward"])
    longer = more["seconds"] / moments["seconds"]
    grown = more["MiB"] - moments["MiB"]
    same = svd["filters"] == moments["filters"]
    what, baseline = "analysis of all layers, CIFAR-100 network, 1,000 images", "the paper's SVD procedure"
    figures = {
        "svd_seconds": svd["seconds"],
        "svd_forward_seconds": svd["forward"],
        "svd_MiB": svd["MiB"],
        "seconds": moments["seconds"],
        "forward_seconds": moments["forward"],
        "MiB": moments["MiB"],
        "faster": faster,
        "faster_without_forward_passes": alone,
    }
    result = f"{faster:.1f} x faster, {alone:.1f} x without the forward passes"
    result += "" if same else f"; OTHER FILTERS: {svd['filters']} and {moments['filters']}"
    return [
        Row(what, baseline, ">= 25 x faster", result, faster >= 25 and same, figures),
        Row("its peak extra memory", baseline, "<= 1/10", f"1/{memory:.0f}", memory >= 10, {"memory": memory}),
        Row(
            "its growth from 1,000 to 4,000 images",
            "itself",
            "<= 4 x the time, no memory",
            f"{longer:.1f} x the time, {grown:+.0f} MiB",
            longer <= 4.4 and grown < 16,
            {"longer": longer, "MiB": grown},
        ),
    ]


if __name__ == "__main__":
    run_child(sys.argv[1], int(sys.argv[2]))
