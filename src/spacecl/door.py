"""The door: a model is admitted when small networks cut from it compute what the masked full one does.

Owner ids say what should belong together; Python code with sizes of its own may not agree. So random units are removed
from a copy with random weights, physically and by zeroing, and the two are compared. A group that fails alone stays
whole, with the reason; a model that fails still is refused, before any training.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .blueprint import Blueprint, find_head, rebuild, tensors_of
from .channels import Channels, Tensors, trace
from .errors import ConfigError, SpaceWarning, UnsupportedModelError
from .graph import matches, source_of_exception

_AVERAGING = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)  # norms over channels rightly differ with fewer of them


def admit(model: nn.Module, example: Tensor, head: str | None = None, shared: Sequence[str] = ()) -> Blueprint:
    """Trace and check a model; returns its blueprint or raises an error that names layers and source lines."""
    if isinstance(shared, str):
        raise ConfigError(f"shared={shared!r} is one string. Give a list of layer names or patterns: shared=[{shared!r}].")
    name = find_head(model, head)
    modules = [path for path, _ in model.named_modules() if path]
    unmatched = [pattern for pattern in shared if not any(matches(path, [pattern]) for path in modules)]
    if unmatched:
        raise ConfigError(f"shared={unmatched} match no layer. The model's layers are: {', '.join(modules)}.")
    if not isinstance(example, Tensor) or example.dim() < 2 or len(example) < 1:
        raise ConfigError("example_input must be a batch of at least one example, such as torch.zeros(1, 3, 32, 32).")
    module = copy.deepcopy(model).cpu().eval()
    example = example[:1].detach().cpu().clone()
    channels = check(module, example, trace(module, example, name, shared))
    if not channels.groups:
        reasons = "".join(f"\n  {layer}: {why or 'shared'}" for layer, why in channels.whole.items())
        raise UnsupportedModelError(
            f"No layer of the model can take a width of its own:{reasons or ' it has none but its head'}"
        )
    told = {layer: why for layer, why in channels.whole.items() if why}
    if told:
        lines = "".join(f"\n  {layer}: {why}" for layer, why in told.items())
        names = ", ".join(f'"{layer}"' for layer in told)
        warnings.warn(
            f"These layers cannot be narrowed and stay whole, learned with the first task and then fixed:{lines}\n"
            f"Change the model where it says, or accept it with shared=[{names}].",
            SpaceWarning,
            stacklevel=3,
        )
    return Blueprint(module, name, example, tuple(shared), channels)


def check(module: nn.Module, example: Tensor, channels: Channels) -> Channels:
    """The channels that stand the test of narrowing; groups that do not stay whole, with the reason."""
    generator = torch.Generator().manual_seed(0)
    probe = _Probe(module, example, channels, generator)
    trials = [probe.random_keep() for _ in range(3)]
    if all(probe.differs(keep) is None for keep in trials):
        return channels
    refused = {}
    for number in range(len(channels.groups)):
        reasons = [probe.differs(probe.random_keep(only=number)) for _ in range(2)]
        found = next((reason for reason in reasons if reason), None)
        if found:
            refused[number] = found
    channels = channels.without(refused)
    probe = _Probe(module, example, channels, generator)
    reason = next((r for r in (probe.differs(probe.random_keep()) for _ in range(3)) if r), None)
    if reason is not None:
        layers = ", ".join(channels.layers)
        raise UnsupportedModelError(
            f"A network narrowed in several layers at once does not compute what the masked one does: {reason}.\n"
            f"Share some of these layers between all tasks with shared=[...]: {layers}."
        )
    return channels


class _Probe:
    """The model with random weights in double precision, norms over channels set aside."""

    def __init__(self, module: nn.Module, example: Tensor, channels: Channels, generator: torch.Generator):
        self.channels, self.generator = channels, generator
        self.module = _with_plain_norms(rebuild(module, {})).double().eval()
        self.tensors = {name: self._random(name, tensor) for name, tensor in tensors_of(self.module).items()}
        shape = (2, *example.shape[1:])
        floating = example.is_floating_point()
        self.input = (
            torch.randn(shape, generator=generator, dtype=torch.float64)
            if floating
            else example.repeat(2, *[1] * (example.dim() - 1))
        )

    def _random(self, name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        noise = torch.randn(tensor.shape, generator=self.generator, dtype=torch.float64)
        if name.endswith("running_var"):
            return noise.abs() + 0.5
        fan_in = max(1, tensor[0].numel()) if tensor.dim() > 1 else 1
        return noise / fan_in**0.5

    def random_keep(self, only: int | None = None) -> Tensor:
        keep = self.channels.everything()
        for number, group in enumerate(self.channels.groups):
            if only in (None, number):
                size = len(group.units)
                count = int(torch.randint(1, size, (1,), generator=self.generator))
                keep[group.units[torch.randperm(size, generator=self.generator)[count:]]] = False
        return keep

    def differs(self, keep: Tensor) -> str | None:
        """None if the narrowed network does what the masked one does, else how it fails."""
        masked = {n: t * self.channels.mask(n, keep) if t.is_floating_point() else t for n, t in self.tensors.items()}
        for name in masked:
            if name.endswith("running_var"):
                masked[name] = self.tensors[name]
        small: Tensors = self.channels.gather(self.tensors, keep)
        with torch.no_grad():
            expected = rebuild(self.module, masked).eval()(self.input)
            try:
                found = rebuild(self.module, small).eval()(self.input)
            except Exception as error:
                text = str(error).strip().splitlines() or [type(error).__name__]
                return f"its code needs all channels{source_of_exception(error)}: {text[0]}"
        scale = expected.abs().max().clamp(min=1e-12)
        if found.shape == expected.shape and bool((found - expected).abs().max() <= 1e-6 * scale):
            return None
        return "its channels are used by their number somewhere in forward()"


class _PlainNorm(nn.Module):
    """Stands in for a norm over channels: its affine map alone."""

    def __init__(self, norm: Any):
        super().__init__()
        self.weight, self.bias = norm.weight, getattr(norm, "bias", None)
        self.last = not isinstance(norm, nn.GroupNorm)

    def forward(self, x: Tensor) -> Tensor:
        shape = self.weight.shape if self.last else (-1, *[1] * (x.dim() - 2))
        x = x * self.weight.reshape(shape)
        return x if self.bias is None else x + self.bias.reshape(shape)


def _with_plain_norms(module: nn.Module) -> nn.Module:
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _AVERAGING) and child.weight is not None:
                setattr(parent, name, _PlainNorm(child))
    return module
