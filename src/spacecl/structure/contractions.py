"""Products of activations, as in attention: what matmul, einsum and scaled_dot_product_attention do to owner ids.

Where the channels of several heads are multiplied head by head, a head is kept or removed as a whole. Otherwise a channel that
is summed over is kept or removed in both factors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from .graph import RESHAPES, name_of
from .operation import Operation
from .owners import NO_OWNER
from .rules import combine, mix, rule

_PRODUCTS = frozenset({"matmul", "bmm", "baddbmm", "einsum", "scaled_dot_product_attention"})
_LAYERS = frozenset({"linear", "conv1d", "conv2d", "conv3d", "embedding"})


def find_head_splits(graph: Graph) -> set[Node]:
    """The reshapes between a layer and a product of activations: they divide the layer's channels into heads."""
    splits: set[Node] = set()
    pending = [node for product in graph.nodes if name_of(product) in _PRODUCTS for node in product.all_input_nodes]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if name_of(node) in RESHAPES:
            splits.add(node)
        if node.op == "call_function" and name_of(node) not in _LAYERS | _PRODUCTS:
            pending += [parent for parent in node.all_input_nodes if parent not in seen]
            seen.update(node.all_input_nodes)
    return splits


@rule("matmul", "bmm", "mm")
def multiply(op: Operation) -> Any:
    left, right = op.ids(0), op.ids(1)
    if _is_opaque(op) or min(left.dim(), right.dim()) < 2:
        return mix(op)
    batch = "abcdefgh"[: max(left.dim(), right.dim()) - 2]
    own, other = (batch[len(batch) - ids.dim() + 2 :] for ids in (left, right))
    return contract(op, left, own + "ik", right, other + "kj", batch + "ij")


@rule("einsum")
def einsum(op: Operation) -> Any:
    equation, operands = op.arguments["equation"].replace(" ", ""), op.ids("tensors")
    inputs, _, output = equation.partition("->")
    labels = inputs.split(",")
    repeated = any(len(set(text)) < len(text) for text in labels)
    if _is_opaque(op) or len(operands) != 2 or "." in equation or "->" not in equation or repeated:
        return mix(op)
    return contract(op, operands[0], labels[0], operands[1], labels[1], output)


@rule("scaled_dot_product_attention")
def attention(op: Operation) -> Any:
    query, key, value = (op.ids(name) for name in ("query", "key", "value"))
    batch = "abcdefgh"[: query.dim() - 2]
    parameters = [name for name in ("query", "key", "value") if op.parameter_name(name) is not None]
    if op.owners.rules < 2 or parameters or not query.dim() == key.dim() == value.dim() or op.arguments.get("enable_gqa"):
        return mix(op)
    in_heads = any(op.owners.varies(ids, range(ids.dim() - 2)) for ids in (query, key))
    if op.arguments.get("scale") is None and not in_heads:
        for ids in (query, key):
            if op.owners.varies(ids, [-1]):
                op.mark_unprunable(ids, "attention is scaled by their number")
    scores = contract(op, query, batch + "ik", key, batch + "jk", batch + "ij")
    mask = op.ids("attn_mask") if op.arguments.get("attn_mask") is not None else None
    if mask is not None:
        scores = combine(op, [scores, mask])
    return contract(op, scores, batch + "ik", value, batch + "kj", batch + "ij")


def _is_opaque(op: Operation) -> bool:
    """Whether nothing is known about a product: one of its factors is a parameter."""
    return op.owners.rules < 2 or op.has_parameters()


def contract(op: Operation, left: Tensor, left_labels: str, right: Tensor, right_labels: str, output: str) -> Tensor:
    """The ids of a product of two tensors, summed over the labels that the output lacks, as in einsum."""
    factors = [(left, left_labels), (right, right_labels)]
    summed = (set(left_labels) | set(right_labels)) - set(output)
    if any(_vary(op, *factor, set(left_labels) & set(right_labels) & set(output)) for factor in factors):
        return _contract_heads(op, factors, summed, output)
    sizes = {label: size for ids, labels in factors for label, size in zip(labels, ids.shape) if size > 1}
    result = torch.full([sizes.get(label, 1) for label in output], NO_OWNER)
    order = sorted(summed) + list(output)
    contracted = [_vary(op, *factor, summed) for factor in factors]
    twice = any(_vary(op, *factor, set(output)) for factor, yes in zip(factors, contracted) if yes)
    rest = [_drop(_align(*factor, order), len(summed)) for factor, yes in zip(factors, contracted) if not yes]
    if twice or sum(bool((ids >= 0).any()) for ids in rest) > 1:  # an element has one owner
        for ids in op.all_ids():
            op.mark_unprunable(ids, f"mixed by {op.name}")
        return result
    if any(contracted):  # summed over: kept or removed in both
        one, other = torch.broadcast_tensors(*(_align(*factor, order) for factor in factors))
        op.tie(one, other)
        for mine, others in ((one, other), (other, one)):
            op.mark_unprunable(mine[(mine >= 0) & (others == NO_OWNER)], "multiplied by values that no layer owns")
    for ids in rest:
        result = torch.maximum(result, ids)
    return result


def _contract_heads(op: Operation, factors: Sequence[tuple[Tensor, str]], summed: set[str], output: str) -> Tensor:
    """Heads are multiplied one by one: all channels of a head belong together."""
    parts = []
    for ids, labels in factors:
        for dim, label in enumerate(labels):
            if label in summed:
                op.tie(ids, ids.narrow(dim, 0, 1))
                ids = ids.narrow(dim, 0, 1)
        parts.append(_drop(_align(ids, labels, sorted(summed) + list(output)), len(summed)))
    left, right = torch.broadcast_tensors(*parts)
    op.tie(left, right)
    for mine, others, other in ((left, right, parts[1]), (right, left, parts[0])):
        if op.owners.varies(mine, [dim for dim, size in enumerate(other.shape) if size > 1]):
            op.mark_unprunable(mine[(mine >= 0) & (others == NO_OWNER)], "multiplied by values that no layer owns")
    result = torch.where(left >= 0, left, right)
    for dim in range(result.dim()):  # of ids that are tied, the first stands for all
        if not op.owners.varies(result, [dim]):
            result = result.narrow(dim, 0, 1).expand(left.shape)
    return result


def _vary(op: Operation, ids: Tensor, labels: str, some: Collection[str]) -> bool:
    return op.owners.varies(ids, [dim for dim, label in enumerate(labels) if label in some])


def _align(ids: Tensor, labels: str, order: list[str]) -> Tensor:
    """The ids with their dimensions in another order; those that they lack have size 1."""
    present = [label for label in order if label in labels]
    ids = ids.permute([labels.index(label) for label in present])
    return ids.reshape([ids.shape[present.index(label)] if label in present else 1 for label in order])


def _drop(ids: Tensor, dims: int) -> Tensor:
    """The ids without their first dimensions, along which they do not vary."""
    return ids[(0,) * dims]
