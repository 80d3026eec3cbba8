"""What a rule sees of the model: one operation of its graph, and what can be said about the channels there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from ..errors import ConfigError
from .graph import layer_of, layers_of, matches, place_of, source_of
from .owners import NO_OWNER, Owners, spread_along, without_repetition

_NOT_OWNED = "its channels meet values that no layer owns"


@dataclass
class Attribute:
    """A parameter or buffer as it enters the graph; it gets ids only when an operation computes with it."""

    name: str
    shape: tuple[int, ...]


@dataclass
class Rejection:
    """An operation that only works if no channel is removed from what it reads."""

    node: Node
    reason: str
    inputs: list[Tensor]


class Operation:
    """One operation of a model's graph, as a rule sees it (see `register_operator`).

    Instead of numbers, a rule computes with *owner ids*: integer tensors of the same shape as the operation's tensors.
    An element's id says which output channel of which layer decides whether the element exists; -1 stands for no
    channel at all. A rule reads the ids of the arguments, states what must hold between them, and returns the ids of
    the result: a tensor of the result's shape, or a list of tensors if the operation returns several.

    Attributes
    ----------
    name : the operator's name, such as `"conv2d"` or, outside of `aten`, `"mylib::scale"`.
    arguments : the arguments by the operator's parameter names, defaults included. Numbers and strings are what
        the model passed; tensors are placeholders. Read their ids with `ids`.
    output : a tensor without values, of the shape and type of the result; a list if there are several.
    """

    def __init__(
        self,
        node: Node,
        name: str,
        arguments: Mapping[str, Any],
        owners: Owners,
        values: dict[Node, Any],
        shared: Sequence[str],
        rejections: list[Rejection],
        problems: list[tuple[str, str]],
    ):
        self.node, self.name, self.arguments = node, name, arguments
        self.output: Any = node.meta.get("val")
        self.owners, self.shared = owners, shared
        self._values, self._rejections, self._problems = values, rejections, problems

    # -- reading ids ----------------------------------------------------------------------------------------------

    def ids(self, argument: str | int) -> Any:
        """The owner ids of an argument, by its name or position.

        Returns an integer tensor of the argument's shape; a list for a list of tensors; anything else, such as a
        number or None, as it is.
        """
        if isinstance(argument, str):
            self._check_name(argument)
        value = self.arguments.get(argument) if isinstance(argument, str) else self.node.args[argument]
        return value_ids(value, self._values, self.owners)

    def all_ids(self, parameters: bool = True) -> list[Tensor]:
        """The owner ids of all tensors that the operation takes, with or without parameters and buffers."""
        nodes = [node for node in self.node.all_input_nodes if parameters or not isinstance(self._values[node], Attribute)]
        values = [value_ids(node, self._values, self.owners) for node in nodes]
        flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
        return [item for item in flat if isinstance(item, Tensor)]

    def has_parameters(self) -> bool:
        """Whether a parameter or buffer is among the tensors that the operation takes."""
        return any(isinstance(self._values[node], Attribute) for node in self.node.all_input_nodes)

    def parameter_name(self, argument: str) -> str | None:
        """The name of the parameter or buffer that an argument is; None if it is an activation or missing."""
        attribute = self._attribute(argument)
        return None if attribute is None else attribute.name

    def is_parameter(self, position: int) -> bool:
        """Whether an argument, by its position, is a parameter or buffer and not an activation."""
        return isinstance(self._values.get(self.node.args[position]), Attribute)  # type: ignore[arg-type]

    def takes_only_parameters(self) -> bool:
        """Whether the operation computes with parameters and buffers alone, as where a weight is standardised."""
        pending, seen = [self.node], {self.node}
        while pending:
            node = pending.pop()
            if node.op == "placeholder" and not isinstance(self._values[node], Attribute):
                return False
            pending += [parent for parent in node.all_input_nodes if parent not in seen]
            seen.update(node.all_input_nodes)
        return True

    def name_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Give tensors of a list argument names, by which rules can refer to them like to other arguments."""
        self.arguments = {**self.arguments, **arguments}

    def shape(self, argument: str) -> tuple[int, ...]:
        """The shape of an argument that is a tensor."""
        self._check_name(argument)
        return tuple(self.arguments[argument].meta["val"].shape)

    def channel_ids(self, ids: Tensor, dim: int) -> Tensor:
        """One id for every index along `dim`. Ids that meet at an index are tied."""
        places = without_repetition(ids.movedim(dim, -1))[0].expand(*[-1] * (ids.dim() - 1), ids.shape[dim])
        columns = places.reshape(-1, ids.shape[dim])  # (places, channels)
        highest = columns.max(0).values
        self.tie(columns, highest)
        self.owners.mark_unprunable(highest[(columns == NO_OWNER).any(0)], _NOT_OWNED)
        return highest

    # -- returning ids --------------------------------------------------------------------------------------------

    def run_on_ids(self) -> Any:
        """Run the operation itself on the ids of its arguments: the rule of everything that only moves elements."""
        positional = [value_ids(value, self._values, self.owners) for value in self.node.args]
        keywords = {key: value_ids(value, self._values, self.owners) for key, value in self.node.kwargs.items()}
        result = self.node.target(*positional, **keywords)  # type: ignore[operator]
        return list(result) if isinstance(result, (list, tuple)) else result

    def spread(self, channels: Tensor, dim: int) -> Tensor:
        """Ids of the result's shape, from one id per channel along `dim`."""
        return spread_along(channels, dim, tuple(self.output.shape))

    def no_owner(self) -> Any:
        """Ids of a result that no layer's width can change."""
        return unowned_ids(self.output)

    def map_channels(self, input: str = "input", weight: str = "weight", bias: str = "bias", *, dim: int = 1) -> Tensor:
        """The rule of layers that mix the channels they read, as linear layers and ordinary convolutions do.

        The weight has a row for every output channel and a column for every input channel; `dim` is the dimension of
        the channels in input and result. The result's channels can be pruned independently of the input's.
        """
        name = self.parameter_name(weight)
        if name is None:
            return self.reject_computed_weight()
        self.assign_owner(weight, 1, self.channel_ids(self.ids(input), dim))
        result = self.create_channels(weight, 0, dim)
        self.owners.readers[name] = 1
        self.owners.input_dims[name] = self.owners.output_dims[name] = dim
        rows = torch.arange(*self.owners.outputs[name])
        bias_name = self.assign_owner(bias, 0, rows) if bias in self.arguments else None
        if bias_name is None:
            self._tie_computed_bias(bias, rows)
        else:
            biases = self.owners.biases.setdefault(name, [])
            biases += [bias_name] if bias_name not in biases else []
        return result

    def _tie_computed_bias(self, bias: str, rows: Tensor) -> None:
        """A bias that is made of a parameter, as where a part of it is zeroed, has an element for every output channel."""
        ids = self.ids(bias) if bias in self.arguments and self.owners.rules >= 5 else None
        if isinstance(ids, Tensor):
            self.tie(ids, rows)
            self.mark_unprunable(rows[ids == NO_OWNER], _NOT_OWNED)

    def create_channels(self, weight: str, dim: int, output_dim: int) -> Tensor:
        """Create a channel for every index along a weight's dimension `dim`; the result has them along `output_dim`.

        A weight that is used twice creates its channels once.
        """
        attribute = self._attribute(weight)
        if attribute is None:
            return self.reject_computed_weight()
        name, size = attribute.name, attribute.shape[dim]
        if name not in self.owners.outputs:
            self.owners.outputs[name] = (self.owners.count, self.owners.count + size)
            self.owners.new_ids(size)
        ids = torch.arange(*self.owners.outputs[name])
        if len(ids) != size:
            self.report_problem(f"another layer uses its weight {name} in another way; give it one of its own")
            return self.no_owner()
        self.assign_owner(weight, dim, ids)
        self.owners.filters[name] = dim
        if matches(layer_of(name), self.shared):
            self.owners.mark_unprunable(ids, None)
        return self.spread(ids, output_dim)

    def reject(self, reason: str) -> Any:
        """Refuse the model, with the reason, unless no channel that reaches this operation can be pruned anyway."""
        for node in self.node.all_input_nodes:
            if isinstance(self._values[node], Attribute):
                self.owners.mark_unprunable(value_ids(node, self._values, self.owners), None)  # parameters keep their size
        inputs = self.all_ids(parameters=False)
        if any(matches(path, self.shared) for path, _ in layers_of(self.node) if path):
            for ids in inputs:
                self.owners.mark_unprunable(ids, None)
        elif inputs:
            self._rejections.append(Rejection(self.node, reason, inputs))
        return self.no_owner()

    def reject_computed_weight(self) -> Any:
        """As `reject`, for a layer whose weight is not a parameter but made of some, so that its channels stay."""
        reason = "its weight is computed, not a parameter of its own"
        path = (layers_of(self.node) or [("", "")])[-1][0]
        if path and not matches(path, self.shared):
            self.owners.computed[path] = f"{reason}{source_of(self.node)}"
        return self.reject(reason)

    # -- stating what must hold -----------------------------------------------------------------------------------

    def tie(self, left: Tensor, right: Tensor) -> None:
        """Let channels that meet, element by element, only be kept or removed together. The two are broadcast."""
        self.owners.tie(left, right)

    def assign_owner(self, argument: str, dim: int, ids: Tensor) -> str | None:
        """State that `ids` own the indices of a parameter's dimension; returns its name, None if it is not a parameter.

        The owners of a parameter that is used twice are tied.
        """
        self._check_name(argument)
        attribute = self._attribute(argument)
        if attribute is None:
            return None
        dims = self.owners.dims.setdefault(attribute.name, [None] * len(attribute.shape))
        before = dims[dim]
        if before is not None:
            self.tie(before, ids)
            mixed = torch.where((before >= 0) != (ids >= 0), torch.maximum(before, ids), NO_OWNER)
            self.owners.mark_unprunable(mixed, _NOT_OWNED)
            ids = torch.where(ids >= 0, ids, before)
        dims[dim] = ids
        return attribute.name

    def assign_norm(self, ids: Tensor, *arguments: str) -> None:
        """As `assign_owner` for the vectors of a norm, one number per channel. Every task gets its own copy of them."""
        for argument in arguments:
            name = self.assign_owner(argument, 0, ids)
            if name is not None:
                self.owners.norms.add(name)

    def mark_unprunable(self, ids: Tensor | None, reason: str) -> None:
        """Never remove these channels. The user sees the reason, with the layer and the line of code."""
        self.owners.mark_unprunable(ids, f"{reason}{source_of(self.node)}")

    def mark_unprunable_unless_tied(self, ids: Tensor, other: Tensor, reason: str) -> None:
        """Never remove these channels unless, in the whole model, each is tied to the one it meets in `other`."""
        self.owners.mark_unprunable_unless_tied(ids, other, f"{reason}{source_of(self.node)}")

    def mark_unprunable_unless_contained(self, ids: Tensor, result: Tensor, reason: str) -> None:
        """Never remove these channels unless all of them are found in `result`, too."""
        self.owners.mark_unprunable_unless_contained(ids, result, f"{reason}{source_of(self.node)}")

    def report_problem(self, reason: str) -> None:
        """Refuse the model, whatever the user shares. All problems are reported in one error."""
        self._problems.append((place_of(self.node), f"{reason}{source_of(self.node)}"))

    def _check_name(self, argument: str) -> None:
        if argument not in self.arguments:
            names = ", ".join(self.arguments)
            raise ConfigError(f"The rule of {self.name} reads the argument {argument!r}; the operator has: {names}.")

    def _attribute(self, argument: str) -> Attribute | None:
        node = self.arguments.get(argument)
        value = self._values.get(node) if isinstance(node, Node) else None
        return value if isinstance(value, Attribute) else None


def value_ids(value: Any, values: Mapping[Node, Any], owners: Owners) -> Any:
    """The ids of a value in the graph; the elements of a loose parameter get theirs here."""
    if isinstance(value, Node):
        return value_ids(values[value], values, owners)
    if isinstance(value, Attribute):
        if value.name not in owners.elements:
            size = int(np.prod(value.shape, dtype=np.int64))
            owners.elements[value.name] = owners.new_ids(size).reshape(value.shape)
        return owners.elements[value.name]
    if isinstance(value, (list, tuple)):
        return [value_ids(item, values, owners) for item in value]
    return value


def unowned_ids(value: Any) -> Any:
    """Ids without an owner, in the shape of a value; numbers, such as sizes, as they are."""
    if isinstance(value, (list, tuple)):
        return [unowned_ids(item) for item in value]
    if isinstance(value, Tensor):
        return torch.full(tuple(value.shape), NO_OWNER)
    return value if isinstance(value, (bool, int, float)) else None
