"""The costs of one inference: counted (parameters, operations, memory), modelled (energy) and measured (latency, energy)."""

from __future__ import annotations

import os
import platform
import statistics
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import TypedDict

from ..structure.calling import Inputs, call_model, list_tensors, map_tensors, select_rows
from ..structure.memory_format import run_model, to_memory_format
from ..structure.tensors import named_tensors
from .result import Costs, Latency, Measurement

BATCHES = (1, 64)  # the paper measures energy with 64
# M. Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014: 45 nm, 0.9 V.
MULTIPLY_ADD = 4.6e-12  # joules: 3.7 pJ for a product and 0.9 pJ for a sum of 32-bit floats
DRAM = 162.5e-12  # joules per byte: 1.3 nJ, the lower end, for 64 bits
SRAM = 12.5e-12  # joules per byte: 100 pJ for 64 bits from 1 MB on the chip
ENERGY_MODEL = (
    "4.6 pJ a multiply-add, 162.5 pJ a byte of weights (DRAM, once a batch), 12.5 pJ a byte of activations (1 MB SRAM); "
    "45 nm, Horowitz 2014"
)
WARM_UP_RUNS = 5
METER_SECONDS = 1.0  # for which energy is measured: meters update slowly
LEAST_RUNS = 30  # timed after the warm-up, however slow the network is


class Machine(TypedDict):
    """The facts about a machine on which measurements depend."""

    system: str
    processor: str
    cores: int | None
    threads: int


@dataclass(frozen=True)
class Meter:
    """A way to measure energy."""

    name: str  # of the part that is metered and of the interface, for people
    measure: Callable[[nn.Module, Inputs, int], float]  # joules of n inferences


def count_costs(module: nn.Module, example: Inputs) -> Costs:
    """Count what one inference takes, which is the same on every machine, and model its energy with the constants above.

    >>> cost = count_costs(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4))
    >>> cost["parameters"], cost["multiply_adds"], cost["traffic"]
    (58, 48, {'weights': 232, 'activations': 152})
    """
    operations = multiply_adds(module, example)
    counters = {batch: _count_traffic(module, example, batch) for batch in BATCHES}
    weights, activations = counters[1].weights, counters[1].activations
    return {
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "multiply_adds": operations,
        "traffic": {"weights": weights, "activations": activations},
        "peak_memory": {str(batch): counter.peak for batch, counter in counters.items()},
        "energy_modelled": {
            str(batch): MULTIPLY_ADD * operations + DRAM * weights / batch + SRAM * activations for batch in BATCHES
        },
    }


def multiply_adds(module: nn.Module, example: Inputs) -> int:
    """The number of multiplications, each with its addition, that a network needs for one example.

    >>> multiply_adds(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4))
    48
    """
    from torch.utils.flop_counter import FlopCounterMode

    with _inference_mode(module), _unfused(), FlopCounterMode(display=False) as counter:
        run_model(module, select_rows(example, slice(1)))
    return counter.get_total_flops() // 2


class TrafficCounter(TorchDispatchMode):
    """Adds up the bytes that every operation reads and writes, and tracks how many are alive at a time. Views are free."""

    def __init__(self, module: nn.Module):
        super().__init__()
        storages = (tensor.untyped_storage() for tensor in named_tensors(module).values())
        self.parameters = {storage.data_ptr(): storage.nbytes() for storage in storages}  # and buffers
        self.weights = self.activations = 0
        self.alive = self.peak = sum(self.parameters.values())
        self.known: set[int] = set()

    def allocate(self, tensor: Tensor) -> None:
        """Count a tensor's memory as used until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.known or storage.data_ptr() in self.parameters:
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
        inputs = {id(tensor): tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        outputs = [tensor for tensor in tree_leaves(result) if isinstance(tensor, Tensor)]
        is_embedding = func is torch.ops.aten.embedding.default  # which reads only some rows of its table
        for tensor in inputs.values():
            count = _count_bytes(result) if is_embedding and tensor is args[0] else _count_bytes(tensor)
            if tensor.untyped_storage().data_ptr() in self.parameters:
                self.weights += count
            else:
                self.activations += count
        for tensor in outputs:
            self.activations += _count_bytes(tensor)
            self.allocate(tensor)
        return result


def _count_bytes(tensor: Tensor) -> int:
    """The bytes behind a tensor; an expanded tensor has fewer than its shape suggests."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _count_traffic(module: nn.Module, example: Inputs, batch: int) -> TrafficCounter:
    x = _make_batch(example, batch)
    counter = TrafficCounter(module)
    for tensor in list_tensors(x):
        counter.allocate(tensor)
    with _inference_mode(module), _unfused(), counter:
        run_model(module, x)
    return counter


def measure_costs(module: nn.Module, example: Inputs, channels_last: bool = False, seconds: float = 0.2) -> Measurement:
    """Measure the latency of one inference on this machine, and its energy where a meter can be read, for every batch size.

    `seconds` is how long to measure each batch size at least. `channels_last` is the memory format of the images, which should
    be the learner's own.
    """
    device = list_tensors(example)[0].device
    meter = find_meter(device)
    latency: dict[str, Latency] = {}
    energy: dict[str, float] = {}
    started, before = time.perf_counter(), _read_foreign_seconds()
    with _inference_mode(module):
        for batch in BATCHES:
            x = map_tensors(lambda tensor: to_memory_format(tensor, channels_last), _make_batch(example, batch))
            times = _time_inferences(module, x, seconds)
            low, median, high = statistics.quantiles(times, n=4)
            latency[str(batch)] = {"median": median, "low": low, "high": high, "runs": len(times)}
            if meter is not None:
                repeats = max(10, round(METER_SECONDS / median))
                energy[str(batch)] = meter.measure(module, x, repeats) / (repeats * batch)
    after, wall = _read_foreign_seconds(), time.perf_counter() - started
    return {
        "machine": name_processor(device),
        "threads": torch.get_num_threads(),
        "others": None if before is None or after is None else round(max(0.0, after - before) / wall, 2),
        "latency": latency,
        "energy": None if meter is None else energy,
        "meter": None if meter is None else meter.name,
    }


def _read_foreign_seconds() -> float | None:
    """The processor time that other processes have used since the start of the machine; None on systems without /proc."""
    with suppress(OSError, ValueError):
        ticks = list(map(int, Path("/proc/stat").read_text().split()[1:8]))  # user, nice, system, idle, waiting, interrupts
        return (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK") - time.process_time()
    return None


def _time_inferences(module: nn.Module, x: Inputs, seconds: float) -> list[float]:
    """Time single inferences one after another, in seconds, after some to warm up.

    torch.utils.benchmark cannot take this place. Its blocked_autorange times blocks of up to hundreds of inferences and stops
    when the time is over: quartiles would be those of means, and of a network that takes longer there would be one value.
    """
    synchronize: Callable[[], Any] = torch.cuda.synchronize if list_tensors(x)[0].device.type == "cuda" else lambda: None
    times: list[float] = []
    while len(times) < WARM_UP_RUNS + LEAST_RUNS or sum(times) < seconds:
        synchronize()
        start = time.perf_counter()
        call_model(module, x)
        synchronize()
        times.append(time.perf_counter() - start)
    return times[WARM_UP_RUNS:]


def find_meter(device: torch.device) -> Meter | None:
    """Find a way to measure the energy that a device draws, by Zeus; None where there is none."""
    try:
        from zeus.device import get_cpus, get_gpus
        from zeus.monitor import ZeusMonitor

        gpu = device.type == "cuda"
        if len(get_gpus().gpus if gpu else get_cpus().cpus) == 0:
            return None
        monitor = ZeusMonitor(gpu_indices=[device.index or 0] if gpu else [], cpu_indices=[] if gpu else None)
    except Exception:  # Zeus is not installed, or there is no meter, or it may not be read: each raises an error of its own
        return None

    def measure(module: nn.Module, x: Inputs, repeats: int) -> float:
        monitor.begin_window("inference")
        for _ in range(repeats):
            call_model(module, x)
        window = monitor.end_window("inference")
        parts = [window.gpu_energy] if gpu else [window.cpu_energy, window.dram_energy]
        return sum(value for part in parts if part for value in part.values() if value is not None)

    return Meter("the GPU, by NVML" if gpu else "the processor and its memory, by RAPL", measure)


def name_processor(device: torch.device) -> str:
    """The name that the manufacturer gives a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_machine(device: torch.device) -> Machine:
    """Describe this machine as far as measurements depend on it."""
    return {
        "system": platform.platform(),
        "processor": name_processor(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _make_batch(example: Inputs, count: int) -> Inputs:
    return map_tensors(lambda tensor: tensor[:1].repeat(count, *[1] * (tensor.dim() - 1)), example)


@contextmanager
def _unfused() -> Iterator[None]:
    """Run attention, encoders and recurrent layers as the single operations that they consist of, which can be counted."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # setting a flag warns about absent hardware
            with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _inference_mode(module: nn.Module) -> Iterator[None]:
    """Run a module in eval mode and without gradients, then restore its mode."""
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(training)
