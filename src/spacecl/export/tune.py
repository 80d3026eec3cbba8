"""Find out with which padding a network runs fastest here: measured in onnxruntime, on one thread, beside the dense network."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

from torch import nn

from ..structure.blueprint import random_inputs
from ..structure.calling import Inputs
from .export import export_network
from .formats import open_session

PADS = (1, 8, 16)  # multiples that widths are padded to: not at all, and to the blocks of AVX2 and of AVX-512
_ROUNDS = 15
_SECONDS = 0.02  # of a network in a round
_EQUAL = 1.02  # of two networks whose times differ by less, the one that is padded less


class TunedInfo(TypedDict):
    """A network that was measured."""

    pad: int | None  # None for the dense network
    bytes: int
    ms: float  # for one row, median over rounds
    of_dense: float  # its time over the dense network's


def tune_padding(build: Callable[[int], nn.Module], dense: nn.Module, example: Inputs, fold: bool) -> list[TunedInfo]:
    """Measure a network with several paddings and the dense one, for one row; the one to keep comes first, the dense one last.

    What counts is the time of this thread on a processor, so that other programs disturb less, and networks run in turns.
    """
    with tempfile.TemporaryDirectory() as name:
        sessions, sizes = {}, {}
        for pad in (*PADS, None):
            file = Path(name) / f"{pad}.onnx"
            sizes[pad] = export_network(dense if pad is None else build(pad), example, file, {}, fold=fold)["bytes"]
            sessions[pad] = open_session(file, threads=1)
        seconds = _measure(sessions, random_inputs(example, 1))
    fastest = min(seconds[pad] for pad in PADS)
    chosen = next(pad for pad in PADS if seconds[pad] <= _EQUAL * fastest)
    order = [chosen, *(pad for pad in PADS if pad != chosen), None]
    return [
        {"pad": pad, "bytes": sizes[pad], "ms": 1e3 * seconds[pad], "of_dense": seconds[pad] / seconds[None]} for pad in order
    ]


def _measure(sessions: Mapping[Any, Callable[[Inputs], Any]], inputs: Inputs) -> dict[Any, float]:
    """Seconds of a call of each network: medians over rounds in which all run in turns."""
    calls = {}
    for key, run in sessions.items():
        run(inputs)  # the first run takes longer
        start = time.thread_time()
        run(inputs)
        calls[key] = max(1, min(200, int(_SECONDS / max(1e-6, time.thread_time() - start))))
    times: dict[Any, list[float]] = {key: [] for key in sessions}
    for _ in range(_ROUNDS):
        for key, run in sessions.items():
            start = time.thread_time()
            for _ in range(calls[key]):
                run(inputs)
            times[key].append((time.thread_time() - start) / calls[key])
    return {key: median(each) for key, each in times.items()}
