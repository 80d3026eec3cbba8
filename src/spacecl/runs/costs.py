"""What an inference costs: counted (parameters, operations, memory), modelled (energy) and measured (latency, energy)."""

from __future__ import annotations

import os
import platform
import statistics
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..structure.blueprint import named_tensors
from ..structure.memory_format import run_model, to_memory_format

BATCHES = (1, 64)  # the paper measures energy with 64
# M. Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014: 45 nm, 0.9 V.
MULTIPLY_ADD = 4.6e-12  # joules: 3.7 pJ for a product and 0.9 pJ for a sum of 32-bit floats
DRAM = 162.5e-12  # joules per byte: 1.3 nJ, the lower end, for 64 bits
SRAM = 12.5e-12  # joules per byte: 100 pJ for 64 bits from 1 MB on the chip
ENERGY_MODEL = (
    "4.6 pJ a multiply-add, 162.5 pJ a byte of weights (DRAM, once a batch), 12.5 pJ a byte of activations (1 MB SRAM); "
    "45 nm, Horowitz 2014"
)
Cost = dict[str, Any]


def counted(module: nn.Module, example: Tensor) -> Cost:
    """What one inference takes by counting, the same on every machine, and its energy by the model above.

    >>> cost = counted(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4))
    >>> cost["parameters"], cost["multiply_adds"], cost["traffic"]
    (58, 48, {'weights': 232, 'activations': 152})
    """
    operations = multiply_adds(module, example)
    watched = {batch: _watched(module, example, batch) for batch in BATCHES}
    weights, activations = watched[1].weights, watched[1].activations
    return {
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "multiply_adds": operations,
        "traffic": {"weights": weights, "activations": activations},
        "peak_memory": {str(batch): found.peak for batch, found in watched.items()},
        "energy_modelled": {
            str(batch): MULTIPLY_ADD * operations + DRAM * weights / batch + SRAM * activations for batch in BATCHES
        },
    }


def multiply_adds(module: nn.Module, example: Tensor) -> int:
    """Multiplications, each with its addition, that a network needs for one example.

    >>> multiply_adds(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4))
    48
    """
    from torch.utils.flop_counter import FlopCounterMode

    with _asking(module), _unfused(), FlopCounterMode(display=False) as counter:
        run_model(module, example[:1])
    return counter.get_total_flops() // 2


class _Watch(TorchDispatchMode):
    """Adds up the bytes that every operation reads and writes, and follows how many are alive at a time. Views are free."""

    def __init__(self, module: nn.Module):
        super().__init__()
        storages = (tensor.untyped_storage() for tensor in named_tensors(module).values())
        self.kept = {storage.data_ptr(): storage.nbytes() for storage in storages}  # weights and buffers
        self.weights = self.activations = 0
        self.alive = self.peak = sum(self.kept.values())
        self.known: set[int] = set()

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's memory as taken until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.known or storage.data_ptr() in self.kept:
            return
        self.known.add(key)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self.release, key, size)

    def release(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.alive -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view or func is torch.ops.aten._unsafe_view.default:
            return result
        read = {id(tensor): tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        written = [tensor for tensor in tree_leaves(result) if isinstance(tensor, Tensor)]
        table = func is torch.ops.aten.embedding.default  # of which only the rows asked for are read
        for tensor in read.values():
            count = _bytes(result) if table and tensor is args[0] else _bytes(tensor)
            if tensor.untyped_storage().data_ptr() in self.kept:
                self.weights += count
            else:
                self.activations += count
        for tensor in written:
            self.activations += _bytes(tensor)
            self.hold(tensor)
        return result


def _bytes(tensor: Tensor) -> int:
    """The bytes behind a tensor; one that is expanded has fewer than its shape says."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _watched(module: nn.Module, example: Tensor, batch: int) -> _Watch:
    x = _batch(example, batch)
    watch = _Watch(module)
    watch.hold(x)
    with _asking(module), _unfused(), watch:
        run_model(module, x)
    return watch


def measured(module: nn.Module, example: Tensor, channels_last: bool = False, seconds: float = 0.2) -> Cost:
    """Latency on this machine as it is now, warm, and energy where a meter can be read, for some sizes of batch.

    Images are asked about in the memory format that is said, as learners do.
    """
    meter = find_meter(example.device)
    latency, energy = {}, {}
    with _asking(module):
        for batch in BATCHES:
            x = to_memory_format(_batch(example, batch), channels_last)
            times = _times(module, x, seconds)
            low, median, high = statistics.quantiles(times, n=4)
            latency[str(batch)] = {"median": median, "low": low, "high": high, "runs": len(times)}
            if meter is not None:
                repeats = max(10, round(1 / median))  # about a second: meters count slowly
                energy[str(batch)] = meter(module, x, repeats) / (repeats * batch)
    told = {"energy": energy, "meter": meter.__doc__} if meter is not None else {"energy": None, "meter": None}
    return {"machine": processor(example.device), "threads": torch.get_num_threads(), "latency": latency, **told}


def _times(module: nn.Module, x: Tensor, seconds: float) -> list[float]:
    """The seconds of single inferences, one after another, when the first are over."""
    wait: Callable[[], Any] = torch.cuda.synchronize if x.device.type == "cuda" else lambda: None
    times: list[float] = []
    while len(times) < 35 or sum(times) < seconds:
        wait()
        started = time.perf_counter()
        module(x)
        wait()
        times.append(time.perf_counter() - started)
    return times[5:]


Meter = Callable[[nn.Module, Tensor, int], float]


def find_meter(device: torch.device) -> Meter | None:
    """A function that tells the joules of so many inferences, by Zeus; None where nothing can be read."""
    try:
        from zeus.device import get_cpus, get_gpus
        from zeus.monitor import ZeusMonitor

        gpu = device.type == "cuda"
        if len(get_gpus().gpus if gpu else get_cpus().cpus) == 0:
            return None
        monitor = ZeusMonitor(gpu_indices=[device.index or 0] if gpu else [], cpu_indices=[] if gpu else None)
    except Exception:  # not installed, or no meter, or one that may not be read: each has an error of its own
        return None

    def joules(module: nn.Module, x: Tensor, repeats: int) -> float:
        monitor.begin_window("inference")
        for _ in range(repeats):
            module(x)
        found = monitor.end_window("inference")
        parts = [found.gpu_energy] if gpu else [found.cpu_energy, found.dram_energy]
        return sum(value for part in parts if part for value in part.values() if value is not None)

    joules.__doc__ = "the GPU, by NVML" if gpu else "the processor and its memory, by RAPL"
    return joules


def processor(device: torch.device) -> str:
    """What a device is called by its maker."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine(device: torch.device) -> Cost:
    """What measurements depend on."""
    return {
        "system": platform.platform(),
        "processor": processor(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _batch(example: Tensor, count: int) -> Tensor:
    return example[:1].repeat(count, *[1] * (example.dim() - 1))


@contextmanager
def _unfused() -> Iterator[None]:
    """Attention, encoders and recurrent layers as the operations that they consist of, which can be counted."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # setting a flag warns of hardware that is not there
            with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _asking(module: nn.Module) -> Iterator[None]:
    """A module in eval mode, without gradients; then it is as it was."""
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(training)
