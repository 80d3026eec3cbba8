"""Validation: a model is accepted if its narrowed networks compute what the masked full network does.

Owner ids say what should belong together; Python code with hard-coded sizes may not agree. So the two are compared, by
`probe`. A group that fails is unprunable, with the reason. A model without any other is refused, before any training.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import ConfigError, UnsupportedModelError, warn_user
from ..validation import show
from .attention import replace_attention
from .auxiliary import without_auxiliary_layers
from .blueprint import Blueprint, check_head, describe_unsupported, is_pretrained, random_inputs, rebuild
from .calling import Inputs, map_tensors
from .channels import Channels
from .graph import format_reasons, matches
from .memory_format import run_model, set_memory_format
from .owners import RULES
from .probe import check_narrowing, is_close
from .trace import trace

_NO_LAYERS = " it has no convolution, linear layer or embedding beside its head and the shared layers"
_SQUASHING = ("softmax", "log_softmax", "sigmoid", "log_sigmoid", "log_sigmoid_forward", "hardsigmoid", "special_expit")


def validate_model(
    model: nn.Module, example: Inputs, head: str | None = None, shared: Sequence[str] = (), rules: int = RULES
) -> Blueprint:
    """Trace and check a model; returns its blueprint or raises an error that names layers and lines of code."""
    _check_arguments(model, example, head, shared)
    example = map_tensors(lambda tensor: tensor[:1].detach().cpu().clone(), example)
    module = without_auxiliary_layers(_copy_model(model, rules), example)
    traced = trace(module, example, head, shared, rules)
    check_head(module, traced.head)
    channels = check_narrowing(module, example, traced)
    if not channels.groups:
        reasons = format_reasons((layer, reason or "shared") for layer, reason in channels.unprunable.items())
        cause = (
            f"{reasons}\nChange the code of these lines, share fewer layers, or use another model." if reasons else _NO_LAYERS
        )
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
        names = ", ".join(f'"{layer}"' for layer in reasons)
        warn_user(
            "These layers cannot be pruned. They keep their full width, and are frozen after the first task:"
            f"{format_reasons(reasons.items())}\n"
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


def _supports_channels_last(module: nn.Module, example: Inputs) -> bool:
    """Whether a model with convolutions of images runs, and computes the same, in channels-last memory format.

    A model that calls view() on the output of a convolution does not.
    """
    if not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return False
    x = random_inputs(example, 2)
    network = rebuild(module, {})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            network.eval()
            expected = run_model(network, x)
            network = set_memory_format(network, channels_last=True)
            result = run_model(network, x, channels_last=True)
            network.train()
            run_model(network, x, channels_last=True)
        except Exception:
            return False
    return is_close(result, expected)


def _copy_model(model: nn.Module, rules: int) -> nn.Module:
    try:
        module = copy.deepcopy(model).cpu()
    except Exception as error:
        raise UnsupportedModelError(
            f"The model cannot be copied: {error}\nRemove what earlier runs left in it, such as stored activations."
        ) from error
    module.eval()
    if rules >= 3:
        replace_attention(module)
    return module
