"""Time and peak memory of the analysis of all layers beside the SVD procedure of the paper, in one run.

    SPACECL_DATA=... python experiments/analysis.py

The CIFAR-100 network (64-64-128-128-256 filters), 1,000 images, and as core the authors' widths after their first task.
Each procedure runs in a process of its own, from the trained network and the images to the numbers of new filters. Without
SPACECL_DATA the images are random.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np
import torch
from datasets import network
from torch import Tensor, nn

from spacecl.benchmarks.sources import load

WIDTHS, CORE, VARIANCE = (64, 64, 128, 128, 256), (16, 18, 27, 18, 63), (0.999, 0.99, 0.99, 0.99, 0.99)


def images(count: int) -> Tensor:
    if not os.environ.get("SPACECL_DATA"):
        return torch.randn(count, 3, 32, 32)
    x = torch.tensor(load("cifar100").train[0][:count]).float()
    return (x - x.mean()) / x.std()


def by_svd(model: nn.Module, x: Tensor) -> list[int]:
    """Algorithm 3 as it stands: keep all activations, SVD of the core, project, subtract, PCA."""
    from sklearn.decomposition import PCA

    kept: dict[nn.Module, list[Tensor]] = {}
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    handles = [layer.register_forward_hook(lambda layer, _, out: kept.setdefault(layer, []).append(out)) for layer in layers]
    with torch.no_grad():
        for part in x.split(100):
            model(part)
    for handle in handles:
        handle.remove()
    found = []
    for layer, core, threshold in zip(layers, CORE, VARIANCE):
        activations = torch.cat(kept[layer]).movedim(1, -1).reshape(-1, layer.out_channels).numpy()  # (samples, filters)
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
        found.append(core + count)
    return found


def by_moments(model: nn.Module, x: Tensor) -> list[int]:
    """The same from streamed moments, as the learner does it."""
    from lightning_fabric import Fabric

    from spacecl.channels import trace
    from spacecl.moments import collect
    from spacecl.spectrum import analyse

    channels = trace(model, x[:1])
    started = time.perf_counter()
    moments = collect(model, channels.outputs, x.split(100), Fabric(accelerator="cpu", devices=1))
    found = []
    for (place, measured), core, threshold in zip(moments.items(), CORE, VARIANCE):
        held = torch.arange(len(place.units)) < core
        found.append(core + analyse(measured.covariance, held).needed(threshold))
    by_moments.seconds = time.perf_counter() - started  # the graph is traced once, when a model is wrapped
    return found


def child(name: str, count: int) -> None:
    torch.manual_seed(0)
    model, x = network("split-cifar100", WIDTHS, 10).eval(), images(count)
    with torch.no_grad():
        started = time.perf_counter()
        for part in x.split(100):
            model(part)
    forward = time.perf_counter() - started
    procedure = {"svd": by_svd, "moments": by_moments}[name]
    procedure(model, x[:100])  # warm: imports and the libraries' own memory
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    found = procedure(model, x)
    seconds = getattr(procedure, "seconds", time.perf_counter() - started)
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"filters": found, "seconds": seconds, "forward": forward, "MiB": memory}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--child", choices=["svd", "moments"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.images)
    rows = {}
    print(f"{args.images} images, {torch.get_num_threads()} threads; seconds include the forward passes (shown beside)")
    print(f"{'procedure':10} {'seconds':>8} {'forward':>8} {'extra peak MiB':>15}  filters per layer")
    for name in ("svd", "moments"):
        command = [sys.executable, __file__, "--child", name, "--images", str(args.images)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows[name] = row = json.loads(done.stdout.splitlines()[-1])
        print(f"{name:10} {row['seconds']:8.2f} {row['forward']:8.2f} {row['MiB']:15.0f}  {row['filters']}", flush=True)
    svd, moments = rows["svd"], rows["moments"]
    analysis = (svd["seconds"] - svd["forward"]) / max(1e-9, moments["seconds"] - moments["forward"])
    print(f"faster by {svd['seconds'] / moments['seconds']:.1f} in all, {analysis:.1f} without the forward passes; ", end="")
    print(f"memory 1/{svd['MiB'] / max(1.0, moments['MiB']):.0f}; same filters: {svd['filters'] == moments['filters']}")


if __name__ == "__main__":
    main()
