"""The registry of rules: how each operator passes owner ids through."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, UnsupportedModelError
from ..validation import show
from . import (  # noqa: F401 (register rules, after those above)
    contractions,
    rules_convolution,
    rules_indexing,
    rules_linear,
    rules_recurrent,
    rules_shapes,
)
from .operation import Operation
from .rules import BUILT_IN, SINCE_2, Rule, combine_elements, create_constant
from .rules_shapes import keep_elements, resample

_RULES: dict[str, Rule] = {f"aten::{name}": rule for name, rule in BUILT_IN.items()}

_NAME = re.compile(r"\w+(::\w+)?")
_POOL = re.compile(r"(?:(?:adaptive_)?(?:max|avg)_pool|upsample_\w+?|(?:reflection|replication)_pad)([123])d(?:_with_indices)?")
_NEW = re.compile(r"new_\w+|zeros|ones|full|arange|empty|eye|linspace|scalar_tensor|tensor|_assert\w*|sym_\w+")


def register_operator(*names: str, override: bool = False) -> Callable[[Rule], Rule]:
    """Make a function the rule that says what some operators do to channels; used as a decorator.

    spacecl has to know which channels of a model belong together. It knows PyTorch's own operators; a model with any other
    operator, such as a kernel of your own, is refused until a rule describes it. docs/extending.md has a complete example.

    Parameters
    ----------
    names : operators such as `"mylib::scale"`, as in the model's exported graph; a name without `::` is one of `aten`.
        An in-place variant follows the rule of the plain one: `"relu"` serves `relu_`, too.
    override : replace a rule that exists. Without it, such a name is an error.

    The rule gets an `Operation` and returns the owner ids of the result. Rules must be registered before a learner is
    made or loaded, in every process: best in the file that defines the model.

    >>> @torch.library.custom_op("doctest::swap_halves", mutates_args=())
    ... def swap_halves(x: Tensor) -> Tensor:
    ...     return torch.cat([x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1)
    >>> @swap_halves.register_fake
    ... def _(x):
    ...     return torch.empty_like(x)
    >>> @register_operator("doctest::swap_halves")
    ... def rule(op):
    ...     first, second = op.ids("x").chunk(2, 1)
    ...     op.tie(first, second)  # the code halves the channels, so both halves must keep equally many
    ...     return op.run_on_ids()
    >>> class Swapping(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.hidden, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
    ...     def forward(self, x):
    ...         return self.head(torch.relu(swap_halves(self.hidden(x))))
    >>> from spacecl.structure.validate import validate_model
    >>> [len(group.units) for group in validate_model(Swapping(), torch.zeros(1, 4)).channels.groups]
    [4]
    """
    invalid = [name for name in names if not isinstance(name, str) or not _NAME.fullmatch(name)]
    if invalid or not names:
        raise ConfigError(f'register_operator({show(names)}): give names of operators, such as "mylib::scale".')
    qualified = [name if "::" in name else f"aten::{name}" for name in names]
    existing = [name for name in qualified if _has_rule(name)]
    if existing and not override:
        raise ConfigError(f"There is a rule for {', '.join(existing)} already. Replace it with override=True.")

    def register(rule: Rule) -> Rule:
        if not callable(rule):
            raise ConfigError(f"The rule {show(rule)} must be a function of an Operation.")
        _RULES.update(dict.fromkeys(qualified, rule))
        return rule

    return register


def apply_rule(op: Operation) -> Any:
    """The owner ids of an operation's result, by the rule of its operator."""
    target: Any = op.node.target
    training = op.arguments.get("train", op.arguments.get("training", True))
    if torch.Tag.nondeterministic_seeded in target.tags and training and op.arguments.get("dropout_p") != 0:
        op.report_problem(f"{op.name} is random in eval mode too; pass training=self.training")
        return op.no_owner()
    newer = op.owners.rules < 2 and op.name in SINCE_2
    tags = target.tags if op.owners.rules < 4 else [*target.tags, *_list_tags(op.name)]
    rule = None if newer else _find_rule(op.name if "::" in op.name else f"aten::{op.name}", tags)
    if rule is None:
        return op.reject(f"unknown operation {op.name}; describe it with spacecl.register_operator")
    ids = rule(op)
    problem = _find_problem(ids, op.output)
    if problem:
        raise UnsupportedModelError(f"The rule for {op.name} returned {problem}. A rule returns one owner id per element.")
    return ids


def _find_rule(name: str, tags: Iterable[torch.Tag]) -> Rule | None:
    namespace, _, plain = name.partition("::")
    if name in _RULES:
        return _RULES[name]
    if namespace == "aten":
        pool = _POOL.fullmatch(plain)
        if pool:
            return partial(resample, spatial=int(pool[1]))
        if _NEW.fullmatch(plain):
            return create_constant
        if plain.endswith("_like"):
            return keep_elements
    return combine_elements if torch.Tag.pointwise in tags else None


def _has_rule(name: str) -> bool:
    """Whether an operator has a rule of its own, or one by the family of PyTorch's operators that it belongs to."""
    namespace, _, plain = name.partition("::")
    return _find_rule(name, _list_tags(plain) if namespace == "aten" else []) is not None


def _list_tags(name: str) -> list[torch.Tag]:
    """The tags of PyTorch's operator of a name, which its in-place variant may lack."""
    packet = getattr(torch.ops.aten, name, None)
    return [tag for overload in packet.overloads() for tag in getattr(packet, overload).tags] if packet else []


def _find_problem(ids: Any, output: Any) -> str | None:
    """Why ids cannot be those of an operation's result."""
    if isinstance(output, (list, tuple)):
        if not isinstance(ids, (list, tuple)) or len(ids) != len(output):
            return f"{show(ids)} for a list of {len(output)} tensors"
        return next((problem for pair in zip(ids, output) if (problem := _find_problem(*pair))), None)
    if not isinstance(output, Tensor):
        return None
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        return f"{show(ids)} instead of a tensor of integers"
    return None if ids.shape == output.shape else f"ids of shape {tuple(ids.shape)} for a result of shape {tuple(output.shape)}"
