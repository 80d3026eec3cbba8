"""The formats of exported networks: ONNX, torch.export and plain weights. Only this module and `together` know ONNX.

An exported network is run before its file is written, and its output compared with PyTorch's.
"""

from __future__ import annotations

import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from .. import disk
from ..errors import ConfigError, DataError, SpaceError, first_line
from ..structure.calling import Inputs, call_model, name_tensors, select_rows, split_rows, to_arguments
from ..structure.tensors import named_tensors

TOLERANCE = 1e-4  # the largest difference between a file's output and PyTorch's
_EMBEDDED = (
    "task",
    "target_kind",
    "classes",
    "digest",
    "widths",
    "padded",
    "pictures",
)  # what the files themselves say of the network


class NetworkInfo(TypedDict, total=False):
    """What the caller knows of a network."""

    task: str
    target_kind: str  # what it predicts: "classes", "labels" or "values"
    classes: list[str]  # the names of these
    digest: str  # of the task's network, before export
    widths: dict[str, int]  # layer -> output channels
    padded: dict[str, int]  # the same with the zero filters that were added, if it was padded
    pictures: Mapping[str, Any] | None  # how pictures become inputs; None if that is unknown


def name_output(target_kind: str) -> str:
    """The name of a network's output, in files and on servers."""
    return "values" if target_kind == "values" else "logits"


def open_session(
    file: str | os.PathLike[str] | bytes, threads: int = 0, output: str | None = None
) -> Callable[[Inputs], Tensor]:
    """Open an ONNX file, or its content, as a function of inputs that onnxruntime computes. 0 threads: its own choice."""
    runtime = import_package("onnxruntime")
    model = file if isinstance(file, bytes) else os.fspath(file)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    known = {entry.name for entry in session.get_inputs()}  # without inputs that the network does not read

    outputs = None if output is None else [output]

    def run(inputs: Inputs) -> Tensor:
        arrays = {name: tensor.cpu().numpy() for name, tensor in name_tensors(inputs).items() if name in known}
        return torch.from_numpy(session.run(outputs, arrays)[0])

    return run


def _export_program(network: nn.Module, probe: Inputs) -> torch.export.ExportedProgram:
    """Export the network's graph for any number of rows."""
    rows, error = {0: torch.export.Dim("batch", min=1)}, None
    args, kwargs = to_arguments(probe)
    shapes: Any = dict.fromkeys(kwargs, rows) if kwargs else (rows,) * len(args)
    for strict in (False, True):  # strict mode is slower, but also traces Python's len()
        try:
            return torch.export.export(network, args, kwargs, dynamic_shapes=shapes, strict=strict)
        except Exception as failure:
            error = error or failure
    raise SpaceError(
        f"The network cannot be exported for any number of rows: {type(error).__name__}: {first_line(error)}\n"  # type: ignore[arg-type]
        "Use x.shape[0] in forward(), and no fixed number of rows. "
        'The weights alone can be exported: format "safetensors".'
    ) from error


def _name_inputs(program: torch.export.ExportedProgram, probe: Inputs) -> list[str]:
    """The names of a program's inputs in its own order, in which torch.export may have put those with names."""
    names = list(probe) if isinstance(probe, Mapping) else list(name_tensors(probe))
    placeholders = [str(name) for name in program.graph_signature.user_inputs]
    return placeholders if sorted(placeholders) == sorted(names) else names


def to_onnx(network: nn.Module, probe: Inputs, expected: Tensor, about: NetworkInfo, optimize: bool = True) -> bytes:
    """Convert a network to ONNX; unless `optimize`, its weights stay what they are: norms are not multiplied into them."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_package(package)
    with _silence():
        program = _export_program(network, probe)
        try:
            outputs = [name_output(about.get("target_kind", "classes"))]
            names: Any = {"input_names": _name_inputs(program, probe), "output_names": outputs}
            exported = torch.onnx.export(program, (), dynamo=True, verbose=False, optimize=optimize, **names)
        except Exception as error:
            raise SpaceError(
                f"The network cannot be exported to ONNX: {type(error).__name__}: {first_line(error)}\n"
                'Use another format: "torch" or "safetensors".'
            ) from error
        proto = exported.model_proto  # type: ignore[union-attr]
    _strip_metadata(proto)
    for key, value in select_embedded(about).items():
        proto.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    data = proto.SerializeToString()
    check_output(open_session(data), probe, expected, "onnxruntime")
    return data


def _strip_metadata(proto: Any) -> None:
    """Remove the exporter's notes from an ONNX model: lines of source code, paths, shapes of activations."""
    graph = proto.graph
    for part in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.ClearField("value_info")


def _to_program(network: nn.Module, probe: Inputs, expected: Tensor, about: NetworkInfo) -> bytes:
    with _silence():
        program = _export_program(network, probe)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # has lines of source code and paths
        program.example_inputs = None
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files={"about.json": json.dumps(select_embedded(about))})
        loaded = program.module()
        check_output(lambda inputs: call_model(loaded, inputs), probe, expected, "torch.export")
    return buffer.getvalue()


def _to_safetensors(network: nn.Module, probe: Inputs, expected: Tensor, about: NetworkInfo) -> bytes:
    tensors = {name: tensor.contiguous().clone() for name, tensor in named_tensors(network).items()}
    return safetensors.torch.save(tensors, {"task": str(about.get("task", "")), "digest": str(about.get("digest", ""))})


WRITERS: dict[str, Callable[[nn.Module, Inputs, Tensor, NetworkInfo], bytes]] = {
    "onnx": to_onnx,
    "torch": _to_program,
    "safetensors": _to_safetensors,
}


def select_embedded(about: NetworkInfo) -> dict[str, Any]:
    """What a file says of its own network."""
    return {key: value for key in _EMBEDDED if (value := about.get(key)) is not None}


def quantize(data: bytes, inputs: Inputs) -> bytes:
    """Turn the weights and activations of an ONNX model into int8, with ranges from a run on some inputs."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = split_rows(inputs, 50)

        def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
            batch = next(self.batches, None)
            return None if batch is None else {name: tensor.cpu().numpy() for name, tensor in name_tensors(batch).items()}

    import onnx

    with tempfile.TemporaryDirectory() as folder, _silence():
        plain, small = Path(folder) / "plain.onnx", Path(folder) / "small.onnx"
        disk.write_file(plain, data)
        kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        try:
            quantize_static(str(plain), str(small), Reader(), quant_format=QuantFormat.QDQ, per_channel=True, **kinds)
        except Exception as error:  # such as tokens outside the vocabulary
            raise DataError(f"The network cannot be calibrated with these inputs: {first_line(error)}") from error
        original, proto = onnx.load(str(plain)), onnx.load(str(small))
    _strip_metadata(proto)
    proto.metadata_props.extend(original.metadata_props)
    return proto.SerializeToString()


def check_output(network: Callable[[Inputs], Tensor], probe: Inputs, expected: Tensor, runtime: str) -> None:
    """Raise an error unless an exported network computes what PyTorch does, for all rows and for the first alone."""
    for rows in (len(expected), 1):
        output = network(select_rows(probe, slice(rows)))
        error = float((output - expected[:rows]).abs().max()) if output.shape == expected[:rows].shape else float("inf")
        if not error <= TOLERANCE * max(1.0, float(expected.abs().max())):
            raise SpaceError(f"The exported network does not compute what PyTorch does: {runtime} is off by {error:.2g}.")


def import_package(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f'ONNX files need {package}. Install it with: pip install "spacecl[onnx]"') from error


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress what exporters print and log. Errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
