"""A model's exported graph, and the line of the user's code that each of its operations comes from."""

from __future__ import annotations

import copy
import fnmatch
import functools
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from .. import errors
from ..errors import UnsupportedModelError, first_line
from .calling import Inputs, find_scores, map_tensors, name_tensors, to_arguments

# Operations that arrange elements in another shape, and keep their order.
RESHAPES = ("view", "reshape", "unflatten", "_unsafe_view", "view_as", "reshape_as")


def export_graph(model: nn.Module, example: Inputs) -> torch.export.ExportedProgram:
    """Export the graph of a model's scores on two copies of the first example; an error names the line that prevents it."""
    probe = make_probe(example)
    args, kwargs = to_arguments(probe)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever is unusual is either handled or refused with a reason
            return torch.export.export(_return_scores(model), args, kwargs)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"The model cannot be traced with {_describe_shapes(probe)}: "
            f"{type(error).__name__}: {first_line(error)}{source_of_exception(error)}\n"
            "Check that model(example_input) runs, and that forward() does not branch on the values of tensors."
        ) from error


def _describe_shapes(inputs: Inputs) -> str:
    if isinstance(inputs, Tensor):
        return f"an input of shape {tuple(inputs.shape)}"
    return "inputs of shape " + ", ".join(f"{tuple(tensor.shape)} ({name})" for name, tensor in name_tensors(inputs).items())


def _return_scores(model: nn.Module) -> nn.Module:
    """A copy of a model that returns its scores alone. A copy, because forward() may store activations in the module."""
    copied = copy.deepcopy(model)
    forward = copied.forward

    @functools.wraps(forward)
    def return_scores(*args: Any, **kwargs: Any) -> Tensor:
        return find_scores(forward(*args, **kwargs))

    copied.forward = return_scores
    return copied


def make_probe(example: Inputs) -> Inputs:
    """Two copies of the first example."""
    return map_tensors(lambda tensor: tensor[:1].repeat(2, *[1] * (tensor.dim() - 1)), example)


def name_of(node: Node) -> str:
    """The name of the operator of PyTorch that a node calls; empty for anything else."""
    schema = getattr(node.target, "_schema", None)
    namespace, _, name = schema.name.partition("::") if schema is not None else ("", "", "")
    return name if namespace == "aten" else ""


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a dotted layer name is one of `patterns`, matches one as a wildcard, or lies inside one.

    >>> matches("blocks.0.attn.proj", ["blocks.*.attn"]), matches("conv1", ["conv2"])
    (True, False)
    """
    parents = [name]
    while "." in parents[-1]:
        parents.append(parents[-1].rpartition(".")[0])
    return any(fnmatch.fnmatchcase(parent, pattern) for pattern in patterns for parent in parents)


def layer_of(weight: str) -> str:
    """The dotted name of a weight's layer: `conv1` for `conv1.weight`. A loose parameter is its own layer.

    >>> layer_of("conv1.weight"), layer_of("lstm.weight_hh_l0"), layer_of("scale")
    ('conv1', 'lstm', 'scale')
    """
    return _WEIGHT.sub("", weight)


_WEIGHT = re.compile(r"\.weight(_[ih]h(_l\d+(_reverse)?)?)?$")


def module_of(tensor: str) -> str:
    """The dotted name of the module that holds a tensor."""
    return tensor.rpartition(".")[0]


def fix_sizes(exported: torch.export.ExportedProgram) -> None:
    """Give values whose sizes depend on the values of tensors, as those selected by a mask, their sizes for the example."""
    graph = exported.graph
    if all(isinstance(size, int) for node in graph.nodes for size in getattr(node.meta.get("val"), "shape", ())):
        return
    tensors, given = (
        {**exported.state_dict, **exported.constants},
        iter(torch.utils._pytree.tree_leaves(exported.example_inputs)),
    )
    inputs = [tensors[spec.target] if spec.target in tensors else next(given) for spec in exported.graph_signature.input_specs]
    with torch.no_grad():
        _Recorder(exported.graph_module).run(*inputs)


class _Recorder(torch.fx.Interpreter):
    """Runs a graph, and records the value of every node."""

    def run_node(self, n: Node) -> Any:
        n.meta["val"] = value = super().run_node(n)
        return value


def find_effects(graph: torch.fx.Graph) -> set[Node]:
    """The operations on which a graph's result depends: not those whose random numbers training alone uses, for instance."""
    live: set[Node] = set()
    for node in reversed(graph.nodes):
        changes = getattr(getattr(node.target, "_schema", None), "is_mutable", False)
        if node.op == "output" or changes or any(user in live for user in node.users):
            live.add(node)
    return live


def layers_of(node: Node) -> list[tuple[str, str]]:
    """The layers that an operation runs in, outermost first, as (dotted name, type); the model itself has no name."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return [(path, kind if isinstance(kind, str) else kind.__qualname__) for path, kind in stack]


def place_of(node: Node) -> str:
    """The layer that runs an operation, as `stem.3 (Conv2d)`, or `forward() (Net)` for the model itself."""
    path, kind = (layers_of(node) or [("", "")])[-1]
    return f"{path or 'forward()'} ({kind.rpartition('.')[2]})"


_NAMED = 4  # places with the same reason that are named before others are counted


def format_reasons(reasons: Iterable[tuple[str, str]]) -> str:
    """A line for every reason, after the places that have it; of many, the first and the number of the others.

    >>> format_reasons([("stem", "shared"), ("conv1", "mixed"), ("conv2", "mixed"), ("stem", "shared")])
    '\\n  stem: shared\\n  conv1, conv2: mixed'
    """
    places: dict[str, dict[str, None]] = {}
    for place, reason in reasons:
        places.setdefault(reason, {})[place] = None
    return "".join(f"\n  {_shorten(list(names))}: {reason}" for reason, names in places.items())


def _shorten(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _NAMED else f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} more"


def source_of(node: Node) -> str:
    """Where the user's own code called an operation, as ` (model.py, line 31: x.view(-1, 1024))`."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in .*\n\s*(.*)', node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not _is_library(frame[0])]
    if not own:
        return ""
    file, line, text = own[-1]
    return f" ({os.path.basename(file)}, line {line}: {text.strip()})"


def source_of_exception(error: BaseException) -> str:
    """The last line of the user's forward() in an exception's traceback, as ` (model.py, line 31)`."""
    line, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == "forward" and not _is_library(code.co_filename):
            line = f" ({os.path.basename(code.co_filename)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return line


def _is_library(file: str) -> bool:
    return file.startswith((os.path.dirname(torch.__file__) + os.sep, os.path.dirname(errors.__file__) + os.sep))
