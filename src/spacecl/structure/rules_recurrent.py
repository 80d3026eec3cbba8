"""What recurrent layers do to owner ids: the gates of a hidden channel, in all layers and directions, are one unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .graph import layer_of, matches
from .operation import Operation
from .owners import spread_along
from .rules import rule

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(op: Operation) -> Any:
    """An `nn.LSTM`, `nn.GRU` or `nn.RNN` has one hidden size, so all its layers and directions have the same channels."""
    if "batch_sizes" in op.arguments:
        return op.reject("packed sequences; pass padded ones, and select the last step of each")
    directions, layers = 2 if op.arguments["bidirectional"] else 1, op.arguments["num_layers"]
    kinds = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if op.arguments["has_biases"] else [])]
    params = op.arguments["params"]
    if len(params) > len(kinds) * layers * directions:
        kinds.append("weight_hr")  # a projection of the hidden state
    cells = [[f"{kind} {cell}" for kind in kinds] for cell in range(layers * directions)]
    op.name_arguments(dict(zip((name for names in cells for name in names), params)))
    gates = _GATES[op.name]
    hidden = _create_state(op, [names[1] for names in cells], gates)
    state = _create_state(op, [names[-1] for names in cells], 1) if "weight_hr" in kinds else hidden
    if hidden is None or state is None:
        return op.reject_computed_weight()
    if state is not hidden:
        op.mark_unprunable(hidden, "its projection must stay smaller than its hidden state")
    _tie_initial_state(op, [state, hidden])
    x = op.ids("input")
    for cell, names in enumerate(cells):
        reads = op.channel_ids(x, -1) if cell < directions else state.repeat(directions)
        _assign_cell(op, names, reads, hidden.repeat(gates), state, x.dim() - 1 if cell < directions else None)
        if state is not hidden:
            op.assign_owner(names[-1], 1, hidden)
    results = [state.repeat(directions), state, hidden]
    return [spread_along(ids, -1, tuple(output.shape)) for ids, output in zip(results, op.output)]


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def recurrent_cell(op: Operation) -> Any:
    gates = _GATES[op.name.removesuffix("_cell")]
    hidden = _create_state(op, ["w_hh"], gates)
    if hidden is None:
        return op.reject_computed_weight()
    _tie_initial_state(op, [hidden, hidden])
    x = op.ids("input")
    _assign_cell(op, ["w_ih", "w_hh", "b_ih", "b_hh"], op.channel_ids(x, -1), hidden.repeat(gates), hidden, x.dim() - 1)
    outputs = op.output if isinstance(op.output, (list, tuple)) else [op.output]
    results = [spread_along(hidden, -1, tuple(output.shape)) for output in outputs]
    return results if isinstance(op.output, (list, tuple)) else results[0]


def _create_state(op: Operation, weights: Sequence[str], gates: int) -> Tensor | None:
    """The channels of a state, one for all `weights` that make it, with `gates` rows each; None if they are no parameters."""
    names = [op.parameter_name(weight) for weight in weights]
    if any(name is None for name in names):
        return None
    first = names[0]
    assert first is not None
    owners = op.owners
    if first not in owners.outputs:
        ids = owners.new_ids(op.shape(weights[0])[0] // gates)
        for name in filter(None, names):
            owners.outputs[name], owners.filters[name] = (int(ids[0]), int(ids[-1]) + 1), 0
    ids = torch.arange(*owners.outputs[first])
    if matches(layer_of(first), op.shared):
        owners.mark_unprunable(ids, None)
    for weight in weights:
        op.assign_owner(weight, 0, ids.repeat(gates))
    return ids


def _tie_initial_state(op: Operation, states: Sequence[Tensor]) -> None:
    """The states that a layer begins with, if they are not zeros, have the channels of those that it puts out."""
    initial = op.ids("hx")
    for ids, state in zip(initial if isinstance(initial, list) else [initial], states):
        op.tie(op.channel_ids(ids, -1), state)


def _assign_cell(op: Operation, names: Sequence[str], reads: Tensor, rows: Tensor, state: Tensor, dim: int | None) -> None:
    """Assign the tensors of one cell: what its weights read, and the gates that own their rows.

    `dim` is the dimension of the channels in the layer's input; None for a cell that reads another one.
    """
    weight, recurrent_weight, *others = names
    owners, read = op.owners, op.parameter_name(weight)
    op.assign_owner(weight, 0, rows)
    op.assign_owner(weight, 1, reads)
    op.assign_owner(recurrent_weight, 1, state)
    span = owners.outputs[op.parameter_name(recurrent_weight) or ""]
    for name in (read, op.parameter_name(recurrent_weight)):
        if name is not None:
            owners.outputs[name], owners.filters[name], owners.readers[name] = span, 0, 1
    if read is not None and dim is not None:
        owners.input_dims[read] = dim
    for bias in (name for name in others if name.startswith("b")):
        op.assign_owner(bias, 0, rows)
    bias_name = op.parameter_name(others[0]) if others and others[0].startswith("b") else None
    if read is not None and bias_name is not None:
        owners.biases[read] = [bias_name]
