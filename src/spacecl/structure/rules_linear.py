"""What products with a parameter do to owner ids, where the parameter has a row for every channel that is read.

`torch.nn.Linear` has a row for every output instead; its rule is with the other layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from .graph import name_of
from .operation import Operation
from .rules import BUILT_IN, Rule, mix, rule


def map_transposed(op: Operation, input: str, weight: str, bias: str | None, dim: int) -> Tensor:
    """As `Operation.map_channels`, with rows and columns of the weight exchanged."""
    name = op.parameter_name(weight)
    assert name is not None
    op.assign_owner(weight, 0, op.channel_ids(op.ids(input), dim))
    result = op.create_channels(weight, 1, dim)
    if bias is not None:
        op.assign_owner(bias, 0, torch.arange(*op.owners.outputs[name]))
    op.owners.readers[name], op.owners.output_dims[name] = 0, dim
    return result


@rule("addmm")
def add_product(op: Operation) -> Any:
    if op.owners.rules < 2:
        return mix(op)
    if op.parameter_name("mat2") is None or op.parameter_name("self") is None or len(op.shape("self")) != 1:
        return BUILT_IN["mm"](op)
    return map_transposed(op, "mat1", "mat2", "self", -1)


def _with_parameter(otherwise: Rule, input: str, weight: str) -> Rule:
    """A rule for products with a matrix of the model's own, and the rule for products of activations."""

    def multiply(op: Operation) -> Any:
        rows_first = _find_transposed(op, weight) if op.owners.rules >= 4 else None
        if rows_first is not None and op.parameter_name(input) is None:
            op.name_arguments({"rows first": rows_first})
            op.owners.elements.pop(op.parameter_name("rows first") or "", None)
            return op.map_channels(input, "rows first", dim=-1)
        plain = op.owners.rules < 2 or op.parameter_name(weight) is None
        if plain or len(op.shape(weight)) != 2 or op.parameter_name(input) is not None:
            return otherwise(op)
        return map_transposed(op, input, weight, None, -1)

    return multiply


def _find_transposed(op: Operation, argument: str) -> Node | None:
    """The matrix of the model's own that an argument is the transpose of, if it serves nothing but such products."""
    node = op.arguments.get(argument)
    if not isinstance(node, Node) or name_of(node) not in _TRANSPOSES:
        return None
    matrix = node.args[0]
    op.name_arguments({"matrix": matrix})
    if not isinstance(matrix, Node) or op.parameter_name("matrix") is None or len(op.shape("matrix")) != 2:
        return None
    transposes = [user for user in matrix.users if name_of(user) in _TRANSPOSES]
    products = [user for transpose in transposes for user in transpose.users if name_of(user) in ("matmul", "mm")]
    return matrix if len(transposes) == len(matrix.users) and len(products) == sum(len(t.users) for t in transposes) else None


_TRANSPOSES = ("t", "numpy_T", "mT", "transpose")


BUILT_IN["matmul"] = _with_parameter(BUILT_IN["matmul"], "self", "other")
BUILT_IN["mm"] = _with_parameter(BUILT_IN["mm"], "self", "mat2")
