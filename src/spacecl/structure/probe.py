"""The probe: a model with random weights, of which narrowed networks are compared with masked ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from ..errors import UnsupportedModelError, first_line
from .blueprint import assemble, random_inputs, rebuild
from .calling import Inputs, find_scores, map_tensors, to_arguments
from .channels import Channels
from .graph import source_of_exception
from .tensors import Tensors, named_tensors

_CLOSE = 1e-4  # of the largest score: far above float32's rounding, far below what a channel in a wrong place does


def check_narrowing(module: nn.Module, example: Inputs, channels: Channels) -> Channels:
    """Compare narrowed networks with masked ones; returns the channels, with groups that fail marked unprunable."""
    everything, probe = range(len(channels.groups)), _Probe(module, example, channels)
    for variant in _list_variants(channels):
        probe.channels = variant
        if all(probe.compare(trial, everything) is None for trial in probe.trials):
            return variant
    failures: dict[int, str] = {}
    passed = number = 0
    while passed < len(probe.trials):  # one after another, until all have passed with the groups that are left
        remaining = [group for group in everything if group not in failures]
        found = _find_failures(probe, probe.trials[number % len(probe.trials)], remaining)
        failures |= found
        passed, number = 1 if found else passed + 1, number + 1
    return channels.without_groups(failures)


def _list_variants(channels: Channels) -> list[Channels]:
    """Ways to run the user's code in narrowed networks: as it is, or with corrected sizes.

    With these, the numbers that a module stores and the shapes that it reads are best those of the full network.
    """
    if not channels.resizes:
        return [channels]
    paths = [path for path, correction in channels.resizes.items() if correction.reads]
    outside = {source: size for source, size in channels.sizes.items() if not any(source.startswith(f"{p}.") for p in paths)}
    plain = {path: replace(correction, reads=()) for path, correction in channels.resizes.items()}
    full = [replace(channels, sizes=outside)] if paths else []
    return [replace(channels, resizes={}), *full, replace(channels, resizes=plain)]


def _find_failures(probe: _Probe, trial: Tensor, groups: list[int]) -> dict[int, str]:
    """The groups that cannot be narrowed as in a trial, with the reasons; the others can, all at once.

    More and more of the first groups are narrowed together. Where that fails, halving finds the group at which it does, which
    is left out.
    """
    failures: dict[int, str] = {}
    passed, step = 0, len(groups)
    while passed < len(groups):
        step = min(step, len(groups) - passed)
        reason = probe.compare(trial, groups[: passed + step])
        if reason is None:
            passed, step = passed + step, 2 * step
        elif step == 1:
            failures[groups.pop(passed)] = reason
        else:
            step //= 2
    return failures


def is_close(result: Tensor, expected: Tensor) -> bool:
    """Whether two sets of scores are equal up to rounding."""
    scale = expected.abs().max().clamp(min=1e-12)
    return result.shape == expected.shape and bool((result - expected).abs().max() <= _CLOSE * scale)


class _Probe:
    """The model with random weights, a head for another number of classes, and norms over channels reduced to affine maps."""

    def __init__(self, module: nn.Module, example: Inputs, channels: Channels):
        self.module, self.channels, self.generator = module, channels, torch.Generator().manual_seed(0)
        originals = named_tensors(module)
        self.positive = {name for name, tensor in originals.items() if bool((tensor > 0).all())}  # variances and the like
        self.tensors = {name: self._draw(name, tensor) for name, tensor in originals.items()}
        self.input = random_inputs(example, 2, self.generator)
        self.full = rebuild(module, self.tensors, channels)
        self.full.eval()
        if not bool(torch.isfinite(self._check_scores()).all()):
            self.tensors = originals | {name: self.tensors[name] for name in originals if channels.is_head(name)}
            self.full = rebuild(module, self.tensors, channels)
            self.full.eval()
        self.trials = self._draw_trials()

    def _draw(self, name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        shape = (len(tensor) + 3, *tensor.shape[1:]) if self.channels.is_head(name) else tensor.shape
        noise = torch.randn(shape, generator=self.generator)
        if self.channels.is_head(name) and name.endswith(".bias"):
            noise = torch.zeros(shape)  # the scores are then only what came through the network
        fan_in = max(1, tensor[0].numel()) if tensor.dim() > 1 else 2
        return (noise.abs() + 0.5 if name in self.positive else noise * (2 / fan_in) ** 0.5).to(tensor.dtype)

    def _draw_trials(self) -> list[Tensor]:
        """Ways to narrow all groups: to the first unit, to the last, and twice to random units."""
        trials = []
        for trial in ("first", "last", "random", "random"):
            keep = self.channels.all_units()
            for group in self.channels.groups:
                size = len(group.units)
                count = int(torch.randint(1, size, (1,), generator=self.generator)) if trial == "random" else 1
                order = torch.randperm(size, generator=self.generator) if trial == "random" else torch.arange(size)
                removed = order[:-count] if trial == "last" else order[count:]
                keep[group.units[removed]] = False
            trials.append(keep)
        return trials

    def compare(self, trial: Tensor, groups: Sequence[int]) -> str | None:
        """Narrow some groups as in a trial, and compare with the masked network: the reason of a failure, None without one."""
        keep = self.channels.all_units()
        for number in groups:
            units = self.channels.groups[number].units
            keep[units] = trial[units]
        small, masked = self.channels.gather(self.tensors, keep), self._mask_tensors(keep)
        try:
            network = assemble(self.module, small, self.channels)
            network.eval()
            result, expected = self._run(network), self._run(self.full, masked)
            if not is_close(result, expected) and not self._is_close_in_double(small, masked):
                return "its channels are used by their number somewhere in forward()"
            network.train()
            self._run(network)
        except Exception as error:
            return f"its code needs all channels{source_of_exception(error)}: {first_line(error)}"
        return None

    def _is_close_in_double(self, small: Tensors, masked: Tensors) -> bool:
        """Whether the networks agree in double precision: in single, rounding errors can become as large as the scores."""
        try:
            networks = [assemble(self.module, tensors, self.channels).double() for tensors in (small, masked)]
            for network in networks:
                network.eval()
            result, expected = (self._run(network, dtype=torch.float64) for network in networks)
        except Exception:  # code with a precision of its own
            return False
        return is_close(result, expected)

    def _mask_tensors(self, keep: Tensor) -> Tensors:
        """The tensors of the full network with everything zero that the narrowed one lacks."""
        masked = dict(self.tensors)
        for name in self.tensors.keys() - self.positive:  # a variance must not be zero
            for dim, owner in enumerate(self.channels.dims[name]):
                if owner is not None:
                    removed = ((owner >= 0) & ~keep[owner]).nonzero()[:, 0]
                    if masked[name] is self.tensors[name]:
                        masked[name] = masked[name].clone()
                    masked[name].index_fill_(dim, removed, 0)
        return masked

    def _check_scores(self) -> Tensor:
        """The scores of the full network in eval mode; an error if it cannot compute them in both modes."""
        try:
            scores = self._run(self.full)
            self._run(rebuild(self.module, self.tensors, self.channels))
        except UnsupportedModelError:
            raise
        except Exception as error:
            raise UnsupportedModelError(
                f"The model does not run{source_of_exception(error)}: {type(error).__name__}: {first_line(error)}\n"
                "It must run in training and in eval mode, for two examples, and with a head for any number of classes."
            ) from error
        return scores

    def _run(self, network: nn.Module, tensors: Tensors | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The scores of a network, with other tensors of the same shapes if some are given."""
        inputs = map_tensors(lambda x: x.to(dtype if x.is_floating_point() else None, copy=True), self.input)
        args, kwargs = to_arguments(inputs)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _AffineNorms(self.channels.statistics):
            return find_scores(functional_call(network, tensors or {}, args, kwargs))


_NORMS: dict[Any, tuple[str, ...]] = {  # norms over channels, with their parameters in order
    F.layer_norm: ("input", "normalized_shape", "weight", "bias"),
    F.rms_norm: ("input", "normalized_shape", "weight"),
    F.group_norm: ("input", "num_groups", "weight", "bias"),
}


class _AffineNorms(TorchFunctionMode):
    """Replaces norms over channels by their affine maps, because the norms themselves rightly differ with fewer channels.

    Means over channels, of which `statistics` has the numbers in the order of calls, are replaced by one.
    """

    def __init__(self, statistics: Collection[int] = ()):
        super().__init__()
        self.statistics, self.means = statistics, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _NORMS:
            result = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") == "mean":
                self.means += 1
                return torch.ones_like(result) if self.means - 1 in self.statistics else result
            return result
        arguments = dict(zip(_NORMS[func], args)) | (kwargs or {})
        x, weight, bias = arguments["input"], arguments.get("weight"), arguments.get("bias")
        for tensor, apply in ((weight, torch.mul), (bias, torch.add)):
            if tensor is not None:
                x = apply(x, tensor.reshape(-1, *[1] * (x.dim() - 2)) if func is F.group_norm else tensor)
        return x
