"""Write the networks of several tasks as one ONNX file with an output for each; weights that tasks share are in it once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from .. import disk
from ..errors import ConfigError
from ..structure.blueprint import Blueprint, random_inputs
from ..structure.calling import call_model, name_tensors
from ..structure.channels import Channels
from .export import FORMATS, TensorInfo, describe_tensor
from .formats import NetworkInfo, check_output, import_package, name_output, open_session, select_embedded, to_onnx


@dataclass(frozen=True)
class TaskNetwork:
    """A task's network: the units that it has of the model, its own tensors, and what is known of it."""

    units: Tensor
    tensors: Mapping[str, Tensor]
    about: NetworkInfo

    @property
    def output(self) -> str:
        """The name of its output in the file."""
        return f"{self.about['task']}/{name_output(self.about.get('target_kind', 'classes'))}"


class TogetherInfo(TypedDict):
    """A file with several tasks; each of `tasks` has the name of its output."""

    tasks: list[dict[str, Any]]
    inputs: list[TensorInfo]
    file: str
    bytes: int
    sha256: str
    shared_bytes: int  # of weights that are stored once for all tasks


def export_together(
    blueprint: Blueprint, shared: Mapping[str, Tensor], networks: Sequence[TaskNetwork], file: str | os.PathLike[str]
) -> TogetherInfo:
    """Write the networks of several tasks to one ONNX file.

    Each network is converted and compared with PyTorch's by itself; then all are joined. Where a weight of a network is a part
    of the full `shared` tensor, the file has that tensor once, with the channels that any of the tasks has, and the network
    gathers its part. Runtimes do so once, when they load the file. Everything is compared again before the file is written.

    Parameters
    ----------
    shared : full-width tensors; those that a network has other values of are stored with that network.
    """
    path = Path(file)
    if path.suffix != FORMATS["onnx"]:
        raise ConfigError(
            f"{path.name} is not a name for an ONNX file. Several tasks are written to one file as {FORMATS['onnx']}."
        )
    probe = random_inputs(blueprint.example, 3)
    union = torch.stack([network.units for network in networks]).any(0)
    joined, expected = _Joined(blueprint.channels, shared, union), []
    for number, network in enumerate(networks):
        module = blueprint.build(network.tensors).eval().requires_grad_(False)
        with torch.no_grad():
            expected.append(call_model(module, probe))
        joined.add(to_onnx(module, probe, expected[-1], network.about, optimize=False), network, f"{number}/")
    data = joined.serialize([network.about for network in networks])
    for network, outputs in zip(networks, expected):
        check_output(
            open_session(data, output=network.output), probe, outputs, f"onnxruntime, for task {network.about['task']!r},"
        )
    disk.make_folder(path.parent)
    disk.write_file(path, data)
    return {
        "tasks": [{**n.about, "output": describe_tensor(n.output, outputs)} for n, outputs in zip(networks, expected)],
        "inputs": [describe_tensor(name, tensor) for name, tensor in name_tensors(blueprint.example).items()],
        "file": path.name,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "shared_bytes": joined.shared_bytes,
    }


class _Joined:
    """An ONNX model to which the graphs of networks are added, with one copy of what they have in common."""

    def __init__(self, channels: Channels, shared: Mapping[str, Tensor], union: Tensor):
        self.onnx = import_package("onnx")
        self.channels, self.full, self.union = channels, shared, union
        self.model: Any = None
        self.shared_bytes = 0
        self._stored: dict[tuple[Any, ...], str] = {}  # type, shape and bytes of a tensor -> its name in the file

    def add(self, data: bytes, network: TaskNetwork, prefix: str) -> None:
        """Add the graph of a network, with all its names prefixed but those of its inputs."""
        model = self.onnx.load_from_string(data)
        output = f"{prefix}{model.graph.output[0].name}"
        self.onnx.compose.add_prefix(model, prefix, rename_inputs=False, inplace=True)
        if self.model is None:
            self.model = self.onnx.ModelProto()
            self.model.CopyFrom(model)
            for field in ("node", "initializer", "output"):
                self.model.graph.ClearField(field)
            self.model.ClearField("functions")
            self.model.ClearField("metadata_props")
        graph = self.model.graph
        renamed = {output: network.output}
        for initializer in model.graph.initializer:
            renamed[initializer.name] = self._store(initializer, network, prefix)
        inputs = {entry.name for entry in graph.input}
        graph.input.extend(entry for entry in model.graph.input if entry.name not in inputs)
        self.model.functions.extend(model.functions)
        for node in model.graph.node:
            _rename(node, renamed)
        graph.node.extend(model.graph.node)
        for entry in model.graph.output:
            entry.name = renamed[entry.name]
        graph.output.extend(model.graph.output)

    def serialize(self, about: Sequence[NetworkInfo]) -> bytes:
        """The file, which says of each network what a file of its own would."""
        self.model.metadata_props.add(key="tasks", value=json.dumps([select_embedded(network) for network in about]))
        return self.model.SerializeToString()

    def _store(self, initializer: Any, network: TaskNetwork, prefix: str) -> str:
        """Store a network's tensor, as a part of a shared one if it is one; returns the name under which nodes find it."""
        name = initializer.name.removeprefix(prefix)
        values = torch.from_numpy(self.onnx.numpy_helper.to_array(initializer).copy())
        full = self.full.get(name)
        if full is None or not self._is_part(name, values, network.units):
            return self._add_tensor(values, initializer.name)
        whole = self.channels.gather({name: full}, self.union)[name]
        known = len(self.model.graph.initializer)
        found = self._add_tensor(whole, f"shared/{name}")
        self.shared_bytes += whole.nbytes * (len(self.model.graph.initializer) - known)
        pairs = zip(self.channels.indices(name, network.units), self.channels.indices(name, self.union))
        for dim, (part, everything) in enumerate(pairs):
            if part is not None and everything is not None and len(part) < len(everything):
                index = self._add_tensor(torch.searchsorted(everything, part).to(torch.int32), f"{prefix}{name}/{dim}/indices")
                gathered = f"{prefix}{name}/{dim}"
                self.model.graph.node.append(self.onnx.helper.make_node("Gather", [found, index], [gathered], axis=dim))
                found = gathered
        return found

    def _is_part(self, name: str, values: Tensor, units: Tensor) -> bool:
        part = self.channels.gather({name: self.full[name]}, units)[name]
        return part.dtype == values.dtype and torch.equal(part, values)

    def _add_tensor(self, values: Tensor, name: str) -> str:
        """Store a tensor unless the file has an equal one; returns the name of that."""
        array = values.contiguous().numpy()
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._stored:
            self._stored[key] = name
            self.model.graph.initializer.append(self.onnx.numpy_helper.from_array(array, name))
        return self._stored[key]


def _rename(node: Any, names: Mapping[str, str]) -> None:
    """Rename what a node, or a graph inside it, reads and writes."""
    for field in (node.input, node.output):
        for number, name in enumerate(field):
            field[number] = names.get(name, name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                _rename(inner, names)
