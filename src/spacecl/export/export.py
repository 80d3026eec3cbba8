"""Write one task's network to a file for other programs, and describe the file."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from .. import disk
from ..errors import ConfigError
from ..structure.blueprint import random_inputs
from ..structure.calling import Inputs, call_model, map_tensors, name_tensors
from ..structure.tensors import named_tensors
from .fold_batchnorm import fold_batchnorm
from .formats import WRITERS, name_output, quantize
from .formats import NetworkInfo as NetworkInfo
from .formats import open_session as open_session

FORMATS = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}


class TensorInfo(TypedDict):
    """The input or output of an exported network."""

    name: str
    dtype: str
    shape: list[int | None]  # None for the number of rows


class ScoreInfo(TypedDict):
    """The score on test data before and after weights and activations became int8."""

    before: float
    after: float


class ExportInfo(NetworkInfo, total=False):
    """An exported file, as `index.json` lists it. Files that were tuned have `tuned`, and int8 files of runs the
    keys after it."""

    inputs: list[TensorInfo]
    input: TensorInfo  # if there is one
    output: TensorInfo
    folded: dict[str, str]  # batch norm -> the layer that it was folded into
    parameters: int
    int8: bool
    format: str
    file: str
    bytes: int
    sha256: str
    tuned: list[dict[str, Any]]  # what was measured, as `TunedInfo`; the first is what the file has
    calibrated: int  # inputs that the ranges were computed from
    metric: str
    score: ScoreInfo | None
    accuracy: ScoreInfo | None  # the same, if the metric is accuracy
    not_measured: str | None  # why there is no score


def export_network(
    module: nn.Module,
    example: Inputs,
    file: str | os.PathLike[str],
    about: NetworkInfo,
    *,
    format: str | None = None,
    fold: bool = True,
    int8: Inputs | None = None,
) -> ExportInfo:
    """Write a network in eval mode to a file, and return a description of it that can be stored as JSON.

    Parameters
    ----------
    module : the network; `example` is a batch of at least one input.
    file : the path. Its ending says the format, unless `format` does: `"onnx"`, `"torch"` or `"safetensors"`.
    about : becomes part of the file and of the description.
    fold : fold batch norms into the layers before them, where that is possible.
    int8 : inputs to calibrate by. They make the weights and activations of an ONNX file int8.
    """
    path = Path(file)
    kind = format or next((name for name, ending in FORMATS.items() if path.suffix == ending), "")
    if kind not in FORMATS:
        endings = ", ".join(f"{name} ({ending})" for name, ending in FORMATS.items())
        raise ConfigError(f"{format or path.name} is not a format to export to. The formats are {endings}.")
    if path.suffix == ".json":
        raise ConfigError(
            f"{path.name} is a name for JSON, not for a network. Give it another ending, such as {FORMATS[kind]}."
        )
    if int8 is not None and kind != "onnx":
        raise ConfigError(f"int8 is for ONNX files, not for {kind}. Leave one of the two out.")
    network, layers = fold_batchnorm(module.cpu(), example) if fold else (module.cpu().eval(), {})
    network.requires_grad_(False)
    probe = random_inputs(example, 3)  # several rows, so that the number of rows is not fixed by accident
    with torch.no_grad():
        expected = call_model(network, probe)
    data = WRITERS[kind](network, probe, expected, about)
    if int8 is not None:
        data = quantize(data, map_tensors(lambda x: x.to(expected.dtype) if x.is_floating_point() else x, int8))
    disk.make_folder(path.parent)
    disk.write_file(path, data)
    inputs = [describe_tensor(name, tensor) for name, tensor in name_tensors(example).items()]
    info: ExportInfo = {
        **about,
        "inputs": inputs,
        "output": describe_tensor(name_output(about.get("target_kind", "classes")), expected),
        "folded": layers,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "int8": int8 is not None,
        "format": kind,
        "file": path.name,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    if len(inputs) == 1:
        info["input"] = inputs[0]
    if kind == "safetensors":
        _write_description(path.with_suffix(".json"), network, info)
    return info


def _write_description(file: Path, network: nn.Module, info: ExportInfo) -> None:
    """Write what is needed to build a network by hand that can load plain weights."""
    layers = {name: repr(layer) for name, layer in network.named_modules() if name and not [*layer.children()]}
    tensors = {name: list(tensor.shape) for name, tensor in named_tensors(network).items()}
    disk.write_file(file, json.dumps({**info, "layers": layers, "tensors": tensors}, indent=1).encode())


def file_names(tasks: Sequence[str], format: str) -> dict[str, str]:
    """Choose a file name for every task: the task's name, made valid on every system, and unique.

    >>> file_names(["cats & dogs", "cats / dogs", "Öl"], "onnx")
    {'cats & dogs': 'cats-dogs.onnx', 'cats / dogs': 'cats-dogs-2.onnx', 'Öl': 'Öl.onnx'}
    """
    names: dict[str, str] = {}
    used = {"index"}  # index.json lists the files
    for task in tasks:
        plain = re.sub(r"[^\w.]+", "-", task)[:60].strip("-.") or "task"
        name, number = plain, 1
        while name.lower() in used:
            number += 1
            name = f"{plain}-{number}"
        used.add(name.lower())
        names[task] = name + FORMATS[format]
    return names


def write_index(folder: Path, entries: Sequence[ExportInfo]) -> Path:
    """Write the file that lists what is exported in a folder."""
    file = folder / "index.json"
    disk.write_file(file, json.dumps({"tasks": list(entries)}, indent=1).encode())
    return file


def describe_tensor(name: str, tensor: Tensor) -> TensorInfo:
    """The name, type and shape of a network's input or output."""
    return {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": [None, *tensor.shape[1:]]}
