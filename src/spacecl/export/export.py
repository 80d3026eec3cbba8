"""One task's network as a file for other programs: ONNX, torch.export, or plain weights; the weights and no more.

What is written is asked a question before it counts, and its answer held against PyTorch's.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from .. import disk
from ..errors import ConfigError, DataError, SpaceError, first_line
from ..structure.blueprint import named_tensors, random_inputs
from .fold_batchnorm import folded

FORMATS = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}
INPUT, OUTPUT = "input", "logits"  # the names that a network's ends have in files and on servers
CLOSE = 1e-4  # how far a file's answers may be from PyTorch's
About = dict[str, Any]
_SAID = ("task", "classes", "digest", "widths", "pictures")  # in the files themselves


def export_network(
    module: nn.Module,
    example: Tensor,
    file: str | os.PathLike[str],
    about: Mapping[str, Any],
    *,
    format: str | None = None,
    fold: bool = True,
    int8: Tensor | None = None,
) -> About:
    """Write a network in eval mode and return what is to be said of the file, `about` with it, as JSON can hold it.

    The format is that of the file's ending if none is named. `int8` has inputs to calibrate by, and makes the weights
    and activations of an ONNX file bytes.
    """
    path = Path(file)
    kind = format or next((name for name, ending in FORMATS.items() if path.suffix == ending), "")
    if kind not in FORMATS:
        endings = ", ".join(f"{name} ({ending})" for name, ending in FORMATS.items())
        raise ConfigError(f"{format or path.name} is no format to export to. There are {endings}.")
    if path.suffix == ".json":
        raise ConfigError(
            f"{path.name} is a name for JSON, not for a network. Give it another ending, such as {FORMATS[kind]}."
        )
    if int8 is not None and kind != "onnx":
        raise ConfigError(f"int8 is for ONNX files, not for {kind}. Leave one of the two out.")
    network, into = folded(module.cpu(), example) if fold else (module.cpu().eval(), {})
    network.requires_grad_(False)
    probe = random_inputs(example, 3)  # more than one, so that no number of rows is taken for granted
    with torch.no_grad():
        expected = network(probe)
    about = {
        **about,
        "input": {"name": INPUT, "dtype": _dtype(example), "shape": [None, *example.shape[1:]]},
        "output": {"name": OUTPUT, "dtype": _dtype(expected), "shape": [None, *expected.shape[1:]]},
        "folded": into,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "int8": int8 is not None,
        "format": kind,
    }
    data = _WRITERS[kind](network, probe, expected, about)
    if int8 is not None:
        data = _quantised(data, int8.numpy())
    disk.make_folder(path.parent)
    disk.write_file(path, data)
    about |= {"file": path.name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if kind == "safetensors":
        layers = {name: repr(layer) for name, layer in network.named_modules() if name and not [*layer.children()]}
        tensors = {name: list(tensor.shape) for name, tensor in named_tensors(network).items()}
        text = json.dumps(about | {"layers": layers, "tensors": tensors}, indent=1)
        disk.write_file(path.with_suffix(".json"), text.encode())
    return about


def file_names(tasks: Sequence[str], format: str) -> dict[str, str]:
    """A file name for every task: its own name, as far as every system can have it, none twice.

    >>> file_names(["cats & dogs", "cats / dogs", "Öl"], "onnx")
    {'cats & dogs': 'cats-dogs.onnx', 'cats / dogs': 'cats-dogs-2.onnx', 'Öl': 'Öl.onnx'}
    """
    found: dict[str, str] = {}
    taken = {"index"}  # is for the list of them
    for task in tasks:
        plain = re.sub(r"[^\w.]+", "-", task)[:60].strip("-.") or "task"
        name, number = plain, 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name.lower())
        found[task] = name + FORMATS[format]
    return found


def write_index(folder: Path, entries: Sequence[About]) -> Path:
    """A file that lists what is exported in a folder."""
    file = folder / "index.json"
    disk.write_file(file, json.dumps({"tasks": list(entries)}, indent=1).encode())
    return file


def open_session(file: str | os.PathLike[str] | bytes) -> Callable[[Tensor], Tensor]:
    """An ONNX file as a function of inputs, run by onnxruntime."""
    runtime = _needed("onnxruntime")
    given = file if isinstance(file, bytes) else os.fspath(file)
    made = runtime.InferenceSession(given, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(made.run([OUTPUT], {INPUT: x.cpu().numpy()})[0])


def _program(network: nn.Module, probe: Tensor) -> torch.export.ExportedProgram:
    """The network's graph for any number of rows."""
    rows, error = ({0: torch.export.Dim("batch", min=1)},), None
    for strict in (False, True):  # the second follows Python's len(), too
        try:
            return torch.export.export(network, (probe,), dynamic_shapes=rows, strict=strict)
        except Exception as found:
            error = error or found
    raise SpaceError(
        f"The network cannot be written for any number of rows: {type(error).__name__}: {first_line(error)}\n"  # type: ignore[arg-type]
        "Let forward() ask for x.shape[0] and never for a number of rows that is fixed. "
        'The weights alone can be written: format "safetensors".'
    ) from error


def _onnx(network: nn.Module, probe: Tensor, expected: Tensor, about: Mapping[str, Any]) -> bytes:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        _needed(package)
    with _quiet():
        program = _program(network, probe)
        try:
            made = torch.onnx.export(program, (), dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT])
        except Exception as error:
            raise SpaceError(
                f"The network cannot be written as ONNX: {type(error).__name__}: {first_line(error)}\n"
                'Its graph and its weights can: formats "torch" and "safetensors".'
            ) from error
        proto = made.model_proto  # type: ignore[union-attr]
    _bare(proto)
    for key in _SAID:
        value = about.get(key)
        if value is not None:
            proto.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    data = proto.SerializeToString()
    _held(open_session(data), probe, expected, "onnxruntime")
    return data


def _bare(proto: Any) -> None:
    """Leave out of an ONNX model what only its maker needs: lines of source, paths, shapes in between."""
    graph = proto.graph
    for part in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.ClearField("value_info")


def _torch(network: nn.Module, probe: Tensor, expected: Tensor, about: Mapping[str, Any]) -> bytes:
    with _quiet():
        program = _program(network, probe)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # lines of source, and where they lie
        program.example_inputs = None
        buffer, said = io.BytesIO(), {key: about[key] for key in _SAID if about.get(key) is not None}
        torch.export.save(program, buffer, extra_files={"about.json": json.dumps(said)})
        _held(program.module(), probe, expected, "torch.export")
    return buffer.getvalue()


def _safetensors(network: nn.Module, probe: Tensor, expected: Tensor, about: Mapping[str, Any]) -> bytes:
    tensors = {name: tensor.contiguous().clone() for name, tensor in named_tensors(network).items()}
    return safetensors.torch.save(tensors, {"task": str(about.get("task", "")), "digest": str(about.get("digest", ""))})


_WRITERS: dict[str, Callable[[nn.Module, Tensor, Tensor, Mapping[str, Any]], bytes]] = {
    "onnx": _onnx,
    "torch": _torch,
    "safetensors": _safetensors,
}


def _quantised(data: bytes, inputs: np.ndarray) -> bytes:
    """An ONNX model with weights and activations as bytes, the range of each found by running it on some inputs."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches: Iterator[np.ndarray] = iter(np.array_split(inputs, max(1, len(inputs) // 50)))

        def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
            batch = next(self.batches, None)
            return None if batch is None else {INPUT: batch}

    import onnx

    with tempfile.TemporaryDirectory() as folder, _quiet():
        plain, small = Path(folder) / "plain.onnx", Path(folder) / "small.onnx"
        disk.write_file(plain, data)
        kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        try:
            quantize_static(str(plain), str(small), Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **kinds)
        except Exception as error:  # such as tokens that the network does not know
            raise DataError(f"The network cannot be calibrated by these inputs: {first_line(error)}") from error
        given, proto = onnx.load(str(plain)), onnx.load(str(small))
    _bare(proto)
    proto.metadata_props.extend(given.metadata_props)
    return proto.SerializeToString()


def _held(network: Callable[[Tensor], Tensor], probe: Tensor, expected: Tensor, what: str) -> None:
    """All rows, and the first alone, must get the answers that PyTorch gives."""
    for rows in (len(probe), 1):
        found = network(probe[:rows])
        apart = float((found - expected[:rows]).abs().max()) if found.shape == expected[:rows].shape else float("inf")
        if not apart <= CLOSE * max(1.0, float(expected.abs().max())):
            raise SpaceError(f"The network that was exported does not answer as PyTorch does: {what} is off by {apart:.2g}.")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _needed(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f'ONNX files need {package}. Install it with: pip install "spacecl[onnx]"') from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters print and log of their own affairs; errors are raised all the same."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
