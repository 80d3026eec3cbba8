"""Validation: a model is accepted if its narrowed networks compute what the masked full network does.

Owner ids say what should belong together; Python code with hard-coded sizes may not agree. So random units are removed
from a copy with random weights, physically and by zeroing, and the two are compared. A group that fails alone is
unprunable, with the reason. A model that still fails is refused, before any training.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from ..errors import ConfigError, UnsupportedModelError, first_line, warn_user
from ..validation import show
from .blueprint import Blueprint, check_head, describe_unsupported, is_pretrained, named_tensors, random_inputs, rebuild
from .calling import Inputs, map_tensors, to_arguments
from .channels import Channels, Tensors, trace
from .graph import matches, source_of_exception
from .memory_format import run_model, set_memory_format
from .owners import RULES

_SQUASHING = ("softmax", "log_softmax", "sigmoid", "log_sigmoid", "log_sigmoid_forward", "hardsigmoid", "special_expit")
_CLOSE = 1e-4  # of the largest score: far above float32's rounding, far below what a channel in a wrong place does


def validate_model(
    model: nn.Module, example: Inputs, head: str | None = None, shared: Sequence[str] = (), rules: int = RULES
) -> Blueprint:
    """Trace and check a model; returns its blueprint or raises an error that names layers and lines of code."""
    _check_arguments(model, example, head, shared)
    module = _copy_model(model)
    example = map_tensors(lambda tensor: tensor[:1].detach().cpu().clone(), example)
    traced = trace(module, example, head, shared, rules)
    check_head(module, traced.head)
    channels = check_narrowing(module, example, traced)
    if not channels.groups:
        reasons = "".join(f"\n  {layer}: {reason or 'shared'}" for layer, reason in channels.unprunable.items())
        cause = reasons or " it has no convolution, linear layer or embedding beside its head and the shared layers"
        raise UnsupportedModelError(f"No layer of the model can be pruned:{cause}")
    _warn_unprunable(channels)
    _warn_squashed(channels)
    channels_last = _supports_channels_last(module, example)
    return Blueprint(module, example, tuple(shared), channels, channels_last, is_pretrained(module), rules=rules)


def _check_arguments(model: nn.Module, example: Inputs, head: str | None, shared: Sequence[str]) -> None:
    """Raise an error for arguments that no model could be validated with."""
    check_model(model)
    if isinstance(shared, str):
        raise ConfigError(f"shared={shared!r} is one string. Give a list of layer names or patterns: shared=[{shared!r}].")
    if not isinstance(shared, (list, tuple)) or not all(isinstance(name, str) for name in shared):
        raise ConfigError(f"shared={show(shared)} must be a list of layer names or patterns.")
    if head is not None and not isinstance(head, str):
        raise ConfigError(f"head={show(head)} must be the dotted name of a Linear layer of the model.")
    check_head(model, head)
    names = [path for path, _ in [*model.named_modules(), *model.named_parameters()] if path]
    unmatched = [pattern for pattern in shared if not any(matches(path, [pattern]) for path in names)]
    if unmatched:
        layers = [path for path, _ in model.named_modules() if path]
        raise ConfigError(f"shared={unmatched} match no layer. The model's layers are: {', '.join(layers)}.")
    _check_example(example)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError("No parameter of the model requires a gradient, so there is nothing to learn.")


def _check_example(example: Any) -> None:
    """Raise an error unless an example input is a tensor, or several, that hold at least one example."""
    several = isinstance(example, (tuple, Mapping)) and len(example) > 0
    tensors = list(example.values() if isinstance(example, Mapping) else example) if several else [example]
    names = list(example) if isinstance(example, Mapping) else []
    if not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise ConfigError(f"example_input={show(example)} must have the names of forward()'s arguments as its keys.")
    for tensor in tensors:
        least = 1 if several else 2  # of several inputs, one may be a single number for each example
        if not isinstance(tensor, Tensor) or tensor.is_nested or tensor.dim() < least or tensor.numel() < 1:
            raise ConfigError(
                "example_input must be a batch of at least one example, such as torch.zeros(1, 3, 32, 32), or a tuple or a "
                "dictionary of such tensors for a model with several inputs."
            )
        if describe_unsupported(tensor) or not bool(torch.isfinite(tensor).all()):
            problem = describe_unsupported(tensor) or "not finite: it has NaN or infinite values"
            raise ConfigError(f"example_input is {problem}. Give a plain tensor of finite numbers, as the model reads them.")
    if len({len(tensor) for tensor in tensors}) > 1:
        raise ConfigError("The tensors of example_input have different numbers of rows; each must have one row per example.")


def _warn_unprunable(channels: Channels) -> None:
    """Warn of layers that keep their full width although the user did not share them."""
    reasons = {layer: reason for layer, reason in channels.unprunable.items() if reason}
    if reasons:
        lines = "".join(f"\n  {layer}: {reason}" for layer, reason in reasons.items())
        names = ", ".join(f'"{layer}"' for layer in reasons)
        warn_user(
            f"These layers cannot be pruned. They keep their full width, and are frozen after the first task:{lines}\n"
            f"Change the code of these lines, or accept it with shared=[{names}]."
        )


def _warn_squashed(channels: Channels) -> None:
    """Warn if the model applies a softmax or the like to its scores."""
    last = (channels.operations or ("",))[-1].partition("(")[0].strip("_")
    if last in _SQUASHING:
        warn_user(
            f"The model ends in {last}(), but training takes the scores before it (logits): cross-entropy includes a softmax, "
            "and a second one slows learning and hides the network's confidence. Let forward() return the output of the "
            f"head, {channels.head!r}, as it is."
        )


def check_model(model: object) -> None:
    """Raise an error unless a model is a module with plain tensors."""
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}; create an instance" if isinstance(model, type) else f"a {type(model).__name__}"
        raise UnsupportedModelError(f"The model must be a torch.nn.Module; got {what}.")
    unsupported = [
        f"{name} ({kind})"
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if (kind := "lazy: without a shape yet" if is_lazy(tensor) else describe_unsupported(tensor))
    ]
    if unsupported:
        raise UnsupportedModelError(f"These tensors of the model cannot be trained: {', '.join(unsupported[:5])}.")


def check_narrowing(module: nn.Module, example: Inputs, channels: Channels) -> Channels:
    """Compare narrowed networks with masked ones; returns the channels, with groups that fail marked unprunable."""
    generator = torch.Generator().manual_seed(0)
    plain = replace(channels, resizes={}) if channels.resizes else channels
    if _Probe(module, example, plain, generator).find_failure() is None:
        return plain
    probe = _Probe(module, example, channels, generator)
    if channels.resizes and probe.find_failure() is None:
        return channels
    failures = {number: probe.find_failure(only=number) for number in range(len(channels.groups))}
    channels = channels.without_groups({number: reason for number, reason in failures.items() if reason})
    if not channels.groups:
        return channels
    reason = _Probe(module, example, channels, generator).find_failure()
    if reason is not None:
        raise UnsupportedModelError(
            f"A network narrowed in several layers at once does not compute what the masked one does: {reason}.\n"
            f"Share some of these layers between all tasks with shared=[...]: {', '.join(channels.layers)}."
        )
    return channels


def _supports_channels_last(module: nn.Module, example: Inputs) -> bool:
    """Whether a model with convolutions of images runs, and computes the same, in channels-last memory format.

    A model that calls view() on the output of a convolution does not.
    """
    if not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return False
    x = random_inputs(example, 2)
    network = set_memory_format(rebuild(module, {}), channels_last=True)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            run_model(network, x, channels_last=True)
            network = rebuild(module, {}).eval()
            expected = run_model(network, x)
            result = run_model(set_memory_format(network, channels_last=True), x, channels_last=True)
        except Exception:
            return False
    return is_close(result, expected)


def is_close(result: Tensor, expected: Tensor) -> bool:
    """Whether two sets of scores are equal up to rounding."""
    scale = expected.abs().max().clamp(min=1e-12)
    return result.shape == expected.shape and bool((result - expected).abs().max() <= _CLOSE * scale)


def _copy_model(model: nn.Module) -> nn.Module:
    try:
        module = copy.deepcopy(model).cpu()
    except Exception as error:
        raise UnsupportedModelError(
            f"The model cannot be copied: {error}\nRemove what earlier runs left in it, such as stored activations."
        ) from error
    module.eval()
    return module


class _Probe:
    """The model with random weights, a head for another number of classes, and norms over channels reduced to affine maps."""

    def __init__(self, module: nn.Module, example: Inputs, channels: Channels, generator: torch.Generator):
        self.module, self.channels, self.generator = module, channels, generator
        originals = named_tensors(module)
        self.positive = {name for name, tensor in originals.items() if bool((tensor > 0).all())}  # variances and the like
        self.tensors = {name: self._draw(name, tensor) for name, tensor in originals.items()}
        self.input = random_inputs(example, 2, generator)
        if not bool(torch.isfinite(self._scores(self.tensors)).all()):
            self.tensors = originals | {name: self.tensors[name] for name in originals if channels.is_head(name)}
        self._scores(self.tensors, training=True)

    def _draw(self, name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        shape = (len(tensor) + 3, *tensor.shape[1:]) if self.channels.is_head(name) else tensor.shape
        noise = torch.randn(shape, generator=self.generator)
        if name == f"{self.channels.head}.bias":
            noise = torch.zeros(shape)  # the scores are then only what came through the network
        fan_in = max(1, tensor[0].numel()) if tensor.dim() > 1 else 2
        return (noise.abs() + 0.5 if name in self.positive else noise * (2 / fan_in) ** 0.5).to(tensor.dtype)

    def find_failure(self, only: int | None = None) -> str | None:
        """Narrow all groups, or only one, in several ways: the reason of the first failure, None if all succeed."""
        for trial in ("random", "random", "first", "last"):
            keep = self.channels.all_units()
            for number, group in enumerate(self.channels.groups):
                if only in (None, number):
                    size = len(group.units)
                    count = int(torch.randint(1, size, (1,), generator=self.generator)) if trial == "random" else 1
                    order = torch.randperm(size, generator=self.generator) if trial == "random" else torch.arange(size)
                    removed = order[:-count] if trial == "last" else order[count:]
                    keep[group.units[removed]] = False
            reason = self.compare(keep)
            if reason:
                return reason
        return None

    def compare(self, keep: Tensor) -> str | None:
        """Compare the narrowed with the masked network: the reason of a failure, None if they compute the same."""
        expected = self._scores(self._mask_tensors(keep))
        small: Tensors = self.channels.gather(self.tensors, keep)
        try:
            result = self._run(small, training=False)
            self._run(small, training=True)
        except Exception as error:
            return f"its code needs all channels{source_of_exception(error)}: {first_line(error)}"
        if is_close(result, expected) or self._is_close_in_double(small, self._mask_tensors(keep)):
            return None
        return "its channels are used by their number somewhere in forward()"

    def _is_close_in_double(self, small: Tensors, masked: Tensors) -> bool:
        """Whether the networks agree in double precision: in single, a deep one can make rounding errors large."""
        try:
            result, expected = (self._run(tensors, training=False, dtype=torch.float64) for tensors in (small, masked))
        except Exception:  # code that needs single precision
            return False
        return is_close(result, expected)

    def _mask_tensors(self, keep: Tensor) -> Tensors:
        """The tensors of the full network with everything zero that the narrowed one lacks."""
        masked = dict(self.tensors)
        for name in self.tensors.keys() - self.positive:  # a variance must not be zero
            mask = self.channels.mask(name, keep)
            mask = mask[:1] if self.channels.is_head(name) else mask  # the head has another number of rows here
            masked[name] = torch.where(mask, self.tensors[name], 0)
        return masked

    def _scores(self, tensors: Tensors, training: bool = False) -> Tensor:
        """The scores of the full network; an error if the model cannot compute any."""
        try:
            scores = self._run(tensors, training)
        except Exception as error:
            raise UnsupportedModelError(
                f"The model does not run{source_of_exception(error)}: {type(error).__name__}: {first_line(error)}\n"
                "It must run in training and in eval mode, for two examples, and with a head for any number of classes."
            ) from error
        if not isinstance(scores, Tensor):
            mode = "training" if training else "eval"
            raise UnsupportedModelError(
                f"In {mode} mode forward() returns a {type(scores).__name__}; a classifier returns its scores alone."
            )
        return scores

    def _run(self, tensors: Tensors, training: bool, dtype: torch.dtype | None = None) -> Any:
        network = rebuild(self.module, tensors, self.channels).to(dtype)
        network.train(training)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _AffineNorms(self.channels.statistics):
            args, kwargs = to_arguments(map_tensors(partial(_copy_input, dtype=dtype), self.input))
            return network(*args, **kwargs)


def _copy_input(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x.to(dtype, copy=True) if x.is_floating_point() else x.clone()


class _AffineNorms(TorchFunctionMode):
    """Replaces norms over channels by their affine maps, because the norms themselves rightly differ with fewer channels.

    Means over channels, of which `statistics` has the numbers in the order of calls, are replaced by one.
    """

    def __init__(self, statistics: Collection[int] = ()):
        super().__init__()
        self.statistics, self.means = statistics, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        names: dict[Any, tuple[str, ...]] = {
            F.layer_norm: ("input", "normalized_shape", "weight", "bias"),
            F.rms_norm: ("input", "normalized_shape", "weight"),
            F.group_norm: ("input", "num_groups", "weight", "bias"),
        }
        if func not in names:
            result = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") == "mean":
                self.means += 1
                return torch.ones_like(result) if self.means - 1 in self.statistics else result
            return result
        arguments = dict(zip(names[func], args)) | (kwargs or {})
        x, weight, bias = arguments["input"], arguments.get("weight"), arguments.get("bias")
        for tensor, apply in ((weight, torch.mul), (bias, torch.add)):
            if tensor is not None:
                x = apply(x, tensor.reshape(-1, *[1] * (x.dim() - 2)) if func is F.group_norm else tensor)
        return x
