"""Read pickles that hold plain values and arrays of numbers, and nothing else. Nothing in them is executed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .files import open_file
from .pickle_machine import Call, PickleError, PickleMachine, to_text

DEPTH = 50  # of nested values; published files need five


def read_pickle(file: Path) -> dict[str, Any]:
    """Read the dictionary in a pickle: its keys are text, its values numbers, text, bytes, lists and arrays."""
    try:
        with open_file(file) as stream:
            machine = PickleMachine(stream)
            value = _to_value(machine.run(), machine)
        if not isinstance(value, dict):
            raise PickleError("it does not hold a dictionary")
        return value
    except (DataError, OSError):
        raise
    except Exception as error:  # a damaged pickle may fail in any way
        raise DataError(f"{file} cannot be read: {type(error).__name__}: {str(error)[:300]}. Fetch it again.") from error


def _to_value(value: Any, machine: PickleMachine, depth: int = 0) -> Any:
    """Replace every `Call` in a value by the array or type that it describes."""
    machine.count_value()
    if depth > DEPTH:
        raise PickleError(f"values are nested more than {DEPTH} deep")
    if isinstance(value, dict):
        return {key: _to_value(item, machine, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_value(item, machine, depth + 1) for item in value]
    if not isinstance(value, Call):
        return value
    if value.arguments is None:
        return None  # a type that is an argument itself
    arguments, state = (_to_value(values, machine, depth + 1) for values in (value.arguments, value.state))
    if value.name == "dtype":
        name, order = to_text(arguments[0]), to_text(state[1]) if state is not None else "="
        if not re.fullmatch(r"[biuf][1248]", name) or order not in ("<", ">", "=", "|"):
            raise PickleError(f"values of type {order}{name} are not allowed in a file of images")
        return np.dtype(f"{'=' if order == '|' else order}{name}")
    if value.name == "scalar":
        return _to_array(arguments[1], arguments[0], (1,), "C")[0]
    if value.name == "_frombuffer":
        data, kind, shape, layout = arguments
        return _to_array(data, kind, shape, to_text(layout))
    if value.name == "_reconstruct":
        _, shape, kind, columns_first, data = state
        return _to_array(data, kind, shape, "F" if columns_first else "C")
    raise PickleError(f"numpy.{value.name} is called")


def _to_array(data: Any, kind: Any, shape: Any, layout: str) -> np.ndarray:
    if not isinstance(kind, np.dtype) or not isinstance(data, bytes):
        raise PickleError("an array has no numeric type, or no bytes")
    if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) * kind.itemsize != len(data):
        raise PickleError(f"an array has {len(data):,} bytes for the shape {tuple(shape)} of {kind}")
    return np.frombuffer(data, kind).reshape(tuple(shape), order="F" if layout == "F" else "C")
