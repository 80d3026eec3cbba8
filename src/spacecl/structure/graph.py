"""A model's exported graph, and the line of the user's code that each of its operations comes from."""

from __future__ import annotations

import copy
import fnmatch
import os
import re
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.fx import Node

from .. import errors
from ..errors import UnsupportedModelError, first_line


def export_graph(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """Export the model's graph on two copies of the first example; an error names the line of code that prevents it."""
    probe = make_probe(example)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever is unusual is either handled or refused with a reason
            return torch.export.export(copy.deepcopy(model), (probe,))  # forward() may store activations in the module
    except Exception as error:
        raise UnsupportedModelError(
            f"The model cannot be traced with an input of shape {tuple(probe.shape)}: "
            f"{type(error).__name__}: {first_line(error)}{source_of_exception(error)}\n"
            "Check that model(example_input) runs, and that forward() does not branch on the values of tensors."
        ) from error


def make_probe(example: Tensor) -> Tensor:
    """Two copies of the first example."""
    return example[:1].repeat(2, *[1] * (example.dim() - 1))


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
    """The dotted name of a weight's layer: `conv1` for `conv1.weight`. A loose parameter is its own layer."""
    return weight.removesuffix(".weight")


def module_of(tensor: str) -> str:
    """The dotted name of the module that holds a tensor."""
    return tensor.rpartition(".")[0]


def layers_of(node: Node) -> list[tuple[str, str]]:
    """The layers that an operation runs in, outermost first, as (dotted name, type); the model itself has no name."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return [(path, kind if isinstance(kind, str) else kind.__qualname__) for path, kind in stack]


def place_of(node: Node) -> str:
    """The layer that runs an operation, as `stem.3 (Conv2d)`, or `forward() (Net)` for the model itself."""
    path, kind = (layers_of(node) or [("", "")])[-1]
    return f"{path or 'forward()'} ({kind.rpartition('.')[2]})"


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
