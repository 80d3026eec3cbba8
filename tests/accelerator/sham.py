"""An accelerator made of CPU tensors, as strict about devices as a real one: what shares an operation must share a device.

A tensor on it wraps one on the CPU, and every operation runs there. Kernels, streams and memory are the CPU's: what goes
wrong with those cannot be seen here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.accelerators.accelerator import Accelerator
from lightning_fabric.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default, aten._copy_from.default}  # from one device to another
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class ShamTensor(Tensor):
    """A tensor on the sham device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> ShamTensor:
        strides, offset = inner.stride(), inner.storage_offset()
        device = torch.device("sham", 0)
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=strides, storage_offset=offset, dtype=inner.dtype, device=device
        )

    def __init__(self, inner: Tensor):
        self.inner = inner

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        return f"ShamTensor({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        outsiders = [tensor for tensor in tensors if not isinstance(tensor, ShamTensor) and tensor.dim() > 0]
        if func in INDEXING:  # indices may be on the CPU
            outsiders = [tensor for tensor in outsiders if tensor is args[0] or tensor is args[2:]]
        if outsiders and func not in COPIES:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found sham:0 and cpu")
        given = kwargs.get("device")
        leaves = given is not None and torch.device(given).type != "sham"
        inner = tree_map(unwrap, (args, kwargs))
        if given is not None:
            inner[1]["device"] = torch.device("cpu")
        if isinstance(kwargs.get("generator"), torch.Generator):
            raise RuntimeError("Expected a 'sham' device type for generator but found 'cpu'")
        with install().draw() if torch.Tag.nondeterministic_seeded in func.tags else nullcontext():
            result = KERNELS.get(func, func)(*inner[0], **inner[1])
        if func in (aten.copy_.default, aten._copy_from.default) or leaves:
            return args[0 if func is aten.copy_.default else 1] if not leaves else result
        return return_and_correct_aliasing(func, args, kwargs, tree_map(wrap, result))


def compute_lstm_cell(
    inputs: Tensor, hidden: Tensor, cell: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of an LSTM, which torch does by a kernel of its own on accelerators: output, cell, and the values of the gates."""
    gates = inputs + hidden + (0 if input_bias is None else input_bias + hidden_bias)
    admit, forget, value, show = gates.chunk(4, 1)
    admit, forget, value, show = admit.sigmoid(), forget.sigmoid(), value.tanh(), show.sigmoid()
    new = forget * cell + admit * value
    return show * new.tanh(), new, torch.cat([admit, forget, value, show], 1)


def compute_lstm_cell_gradients(
    grad_output: Tensor | None, grad_new: Tensor | None, cell: Tensor, new: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of a step of an LSTM: of its gates before their nonlinearities, of the cell, and of a bias."""
    admit, forget, value, show = gates.chunk(4, 1)
    output = torch.zeros_like(new) if grad_output is None else grad_output
    total = output * show * (1 - new.tanh() ** 2) + (0 if grad_new is None else grad_new)
    parts = (
        total * value * admit * (1 - admit),
        total * cell * forget * (1 - forget),
        total * admit * (1 - value**2),
        output * new.tanh() * show * (1 - show),
    )
    grads = torch.cat(parts, 1)
    return grads, total * forget, grads.sum(0) if has_bias else None


def compute_gru_cell(
    inputs: Tensor, hidden: Tensor, state: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A step of a GRU: the new state, and what its gradients need."""
    inputs, hidden = (gates if bias is None else gates + bias for gates, bias in ((inputs, input_bias), (hidden, hidden_bias)))
    (reset, keep, value), (hidden_reset, hidden_keep, hidden_value) = inputs.chunk(3, 1), hidden.chunk(3, 1)
    reset, keep = (reset + hidden_reset).sigmoid(), (keep + hidden_keep).sigmoid()
    value = (value + reset * hidden_value).tanh()
    return value + keep * (state - value), torch.cat([reset, keep, value, state, hidden_value], 1)


def compute_gru_cell_gradients(grad: Tensor, saved: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    """The gradients of a step of a GRU: of both sums of its gates, of the state, and of both biases."""
    reset, keep, value, state, hidden_value = saved.chunk(5, 1)
    of_value = grad * (1 - keep) * (1 - value**2)
    of_keep, of_reset = grad * (state - value) * keep * (1 - keep), of_value * hidden_value * reset * (1 - reset)
    gates = torch.cat([of_reset, of_keep, of_value], 1), torch.cat([of_reset, of_keep, of_value * reset], 1)
    return *gates, grad * keep, *(part.sum(0) if has_bias else None for part in gates)


KERNELS = {  # which the CPU does not have
    aten._thnn_fused_lstm_cell.default: compute_lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: compute_lstm_cell_gradients,
    aten._thnn_fused_gru_cell.default: compute_gru_cell,
    aten._thnn_fused_gru_cell_backward.default: compute_gru_cell_gradients,
}


def unwrap(value: Any) -> Any:
    return value.inner if isinstance(value, ShamTensor) else value


def wrap(value: Any) -> Any:
    return ShamTensor(value) if isinstance(value, Tensor) and not isinstance(value, ShamTensor) else value


class ShamModule(_DummyBackendModule):
    """What `torch.sham` is: random numbers of its own, as every accelerator has."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    @contextmanager
    def draw(self) -> Iterator[None]:
        """Draw from the generator of this device instead of that of the CPU."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.generator.get_state())
        try:
            yield
            self.generator.set_state(torch.get_rng_state())
        finally:
            torch.set_rng_state(before)

    def manual_seed_all(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        self.generator.set_state(state)

    def set_device(self, device: Any) -> None: ...

    def synchronize(self, device: Any = None) -> None: ...


class ShamAccelerator(Accelerator):
    """The accelerator for `Fabric(accelerator=ShamAccelerator())`."""

    def setup_device(self, device: torch.device) -> None: ...

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        return [torch.device("sham", 0)] * devices

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "sham"


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Tensor:
    return ShamTensor(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Tensor:
    return ShamTensor(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    unwrap(target).copy_(unwrap(source))
    return target


@functools.cache
def install() -> ShamModule:
    """Make the device known to torch, once in a process; it cannot be undone."""
    module = ShamModule()
    _setup_privateuseone_for_python_backend("sham", backend_module=module)
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    module.library = library  # an implementation exists as long as its library
    return module


def make_fabric() -> Fabric:
    """A Fabric whose device is the sham accelerator."""
    install()
    return Fabric(accelerator=ShamAccelerator(), strategy=SingleDeviceStrategy(torch.device("sham", 0)), devices=1)
