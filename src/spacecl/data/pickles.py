"""A reader of pickles that hold plain values and arrays of numbers, and nothing else.

Python's own unpickler does what a pickle says: 60 kB can make it take gigabytes, or hash a key for hours. This one knows
only the operations that such files need, calls nothing, and makes no more of a file than its bytes can honestly give.
"""

from __future__ import annotations

import codecs
import math
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import DataError
from .files import open_file

DEPTH = 50  # of values in one another; honest files need five


class PickleError(ValueError):
    """A pickle with something that has no place in a file of images."""


def read_pickle(file: Path) -> dict[str, Any]:
    """The dictionary in a pickle: keys as text; values as numbers, text, bytes, lists and arrays."""
    try:
        with open_file(file) as stream:
            machine = _Machine(stream)
            found = _make(machine.run(), machine)
        if not isinstance(found, dict):
            raise PickleError("it holds no dictionary")
        return found
    except (DataError, OSError):
        raise
    except Exception as error:  # a damaged pickle may fail in any way
        raise DataError(f"{file} cannot be read: {type(error).__name__}: {str(error)[:300]}. Fetch it again.") from error


class _Call:
    """What a pickle says of an array or a type: a name, arguments and a state that nothing has been done with yet."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str):
        self.name = name
        self.arguments: tuple[Any, ...] | None = None
        self.state: Any = None


class _Machine:
    """The operations of pickles on a stack, as far as data need them (see `pickletools` of Python for their meanings)."""

    def __init__(self, stream: BinaryIO):
        self.stream = stream
        self.size = os.fstat(stream.fileno()).st_size
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        # An operation of one byte may make a value of a hundred. Honest files have a few for each image of 3,072 bytes.
        self.values_left = 4 * (100_000 + self.size // 100)
        self.encoded_left = self.size

    def count_value(self) -> None:
        """Count an operation, or a value that is made of what it says: what stands in many places is made as often."""
        self.values_left -= 1
        if self.values_left < 0:
            raise PickleError(f"it has more values than a file of {self.size:,} bytes can honestly have")

    def run(self) -> Any:
        while True:
            code = self.stream.read(1)
            if code == b".":
                return self.pop()
            operation = OPERATIONS.get(code)
            if operation is None:
                raise PickleError(f"the operation {code!r} has no place in a file of images" if code else "it is cut off")
            self.count_value()
            operation(self)

    def take(self, count: int) -> bytes:
        """The next bytes; a length that the file cannot have is refused before anything is read."""
        if not 0 <= count <= self.size:
            raise PickleError(f"a value of {count:,} bytes in a file of {self.size:,}")
        data = self.stream.read(count)
        if len(data) < count:
            raise PickleError("it is cut off")
        return data

    def number(self, form: str) -> int:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]

    def line(self) -> bytes:
        data = self.stream.readline()
        if not data.endswith(b"\n"):
            raise PickleError("it is cut off")
        return data[:-1].rstrip(b"\r")

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise PickleError("a value is missing")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0) or not isinstance(self.stack[-1], kind):
            raise PickleError(f"a {kind.__name__.lstrip('_')} is missing")
        return self.stack[-1]

    def marked(self) -> list[Any]:
        """All values above the last mark, taken off the stack."""
        if not self.marks:
            raise PickleError("a mark is missing")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def add_items(self, values: list[Any]) -> None:
        items = self.top(dict)
        if len(values) % 2:
            raise PickleError("a key without a value")
        for key, value in zip(values[::2], values[1::2]):
            items[_text(key)] = value  # text alone: the hash of anything else may take for ever

    def recall(self, place: int) -> Any:
        if place not in self.memo:
            raise PickleError(f"the value {place} is missing")
        return self.memo[place]

    def find(self, module: Any, name: Any) -> _Call:
        module, name = _text(module), _text(name)
        known = {"_reconstruct", "scalar", "_frombuffer", "ndarray", "dtype"} if module.split(".")[0] == "numpy" else set()
        if name in known or (module, name) == ("_codecs", "encode"):
            return _Call(name)
        raise PickleError(f"{module}.{name} has no place in a file of images")

    def call(self) -> _Call | bytes:
        """Note what a function would be called with; it is not. Old protocols write bytes as text that is to be encoded."""
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, _Call) or function.arguments is not None or not isinstance(arguments, tuple):
            raise PickleError("something is called that is no function, or with no arguments")
        if function.name == "encode":
            text, encoding = map(_text, arguments)
            if encoding != "latin1":
                raise PickleError(f"bytes in the encoding {encoding}")
            self.encoded_left -= len(text)
            if self.encoded_left < 0:
                raise PickleError("it repeats its values over and over")
            return text.encode("latin1")
        found = _Call(function.name)
        found.arguments = arguments
        return found

    def build(self) -> None:
        state = self.pop()
        made = self.top(_Call)
        if made.arguments is None or made.state is not None:
            raise PickleError("a state is given to something that has none")
        made.state = state


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise PickleError(f"a {type(value).__name__.lstrip('_')} stands where text belongs")
    return value


def _quoted(line: bytes) -> bytes:
    if len(line) < 2 or line[:1] not in b"'\"" or line[:1] != line[-1:]:
        raise PickleError("text without its quotation marks")
    return codecs.escape_decode(line[1:-1])[0]  # type: ignore[attr-defined, no-any-return]


def _integer(line: bytes) -> int | bool:
    return line == b"01" if line in (b"00", b"01") else int(line)  # how protocol 0 writes truth values


def _push(value: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value(machine))


def _put(place: Callable[[_Machine], int]) -> Callable[[_Machine], None]:
    return lambda machine: machine.memo.__setitem__(place(machine), machine.top(object))


def _tuple_of(count: int) -> Callable[[_Machine], None]:
    return _push(lambda m: tuple([m.pop() for _ in range(count)][::-1]))


def _append(machine: _Machine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.add_items([key, value])


def _extend(machine: _Machine) -> None:
    values = machine.marked()
    machine.top(list).extend(values)


def _dictionary(machine: _Machine) -> None:
    values = machine.marked()
    machine.stack.append({})
    machine.add_items(values)


def _stack_global(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.stack.append(machine.find(module, name))


OPERATIONS: dict[bytes, Callable[[_Machine], Any]] = {
    b"\x80": lambda m: m.take(1),  # PROTO
    b"\x95": lambda m: m.take(8),  # FRAME
    b"(": lambda m: m.marks.append(len(m.stack)),
    b"0": lambda m: m.pop(),
    b"1": lambda m: m.marked(),
    b"N": _push(lambda m: None),
    b"\x88": _push(lambda m: True),
    b"\x89": _push(lambda m: False),
    b"I": _push(lambda m: _integer(m.line())),
    b"L": _push(lambda m: int(m.line().rstrip(b"L"))),
    b"J": _push(lambda m: m.number("i")),
    b"K": _push(lambda m: m.number("B")),
    b"M": _push(lambda m: m.number("H")),
    b"\x8a": _push(lambda m: int.from_bytes(m.take(m.number("B")), "little", signed=True)),
    b"F": _push(lambda m: float(m.line())),
    b"G": _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    b"S": _push(lambda m: _quoted(m.line())),
    b"T": _push(lambda m: m.take(m.number("i"))),
    b"U": _push(lambda m: m.take(m.number("B"))),
    b"B": _push(lambda m: m.take(m.number("I"))),
    b"C": _push(lambda m: m.take(m.number("B"))),
    b"\x8e": _push(lambda m: m.take(m.number("Q"))),
    b"\x96": _push(lambda m: m.take(m.number("Q"))),
    b"V": _push(lambda m: m.line().decode("raw-unicode-escape")),
    b"X": _push(lambda m: m.take(m.number("I")).decode("utf-8", "surrogatepass")),
    b"\x8c": _push(lambda m: m.take(m.number("B")).decode("utf-8", "surrogatepass")),
    b"\x8d": _push(lambda m: m.take(m.number("Q")).decode("utf-8", "surrogatepass")),
    b")": _push(lambda m: ()),
    b"t": _push(lambda m: tuple(m.marked())),
    b"\x85": _tuple_of(1),
    b"\x86": _tuple_of(2),
    b"\x87": _tuple_of(3),
    b"]": _push(lambda m: []),
    b"l": _push(lambda m: m.marked()),
    b"a": _append,
    b"e": _extend,
    b"}": _push(lambda m: {}),
    b"d": _dictionary,
    b"s": _set_item,
    b"u": lambda m: m.add_items(m.marked()),
    b"p": _put(lambda m: int(m.line())),
    b"q": _put(lambda m: m.number("B")),
    b"r": _put(lambda m: m.number("I")),
    b"\x94": _put(lambda m: len(m.memo)),
    b"g": _push(lambda m: m.recall(int(m.line()))),
    b"h": _push(lambda m: m.recall(m.number("B"))),
    b"j": _push(lambda m: m.recall(m.number("I"))),
    b"c": _push(lambda m: m.find(m.line(), m.line())),
    b"\x93": _stack_global,
    b"R": _push(lambda m: m.call()),
    b"b": lambda m: m.build(),
}


def _make(found: Any, machine: _Machine, depth: int = 0) -> Any:
    """Plain values and arrays, from what a pickle says of them."""
    machine.count_value()
    if depth > DEPTH:
        raise PickleError(f"values stand in one another more than {DEPTH} deep")
    if isinstance(found, dict):
        return {key: _make(value, machine, depth + 1) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [_make(value, machine, depth + 1) for value in found]
    if not isinstance(found, _Call):
        return found
    if found.arguments is None:
        return None  # a type that stands for itself, as an argument
    arguments, state = (_make(values, machine, depth + 1) for values in (found.arguments, found.state))
    if found.name == "dtype":
        name, order = _text(arguments[0]), _text(state[1]) if state is not None else "="
        if not re.fullmatch(r"[biuf][1248]", name) or order not in ("<", ">", "=", "|"):
            raise PickleError(f"values of type {order}{name} have no place in a file of images")
        return np.dtype(f"{'=' if order == '|' else order}{name}")
    if found.name == "scalar":
        return _array(arguments[1], arguments[0], (1,), "C")[0]
    if found.name == "_frombuffer":
        data, kind, shape, layout = arguments
        return _array(data, kind, shape, _text(layout))
    if found.name == "_reconstruct":
        _, shape, kind, columns, data = state
        return _array(data, kind, shape, "F" if columns else "C")
    raise PickleError(f"numpy.{found.name} is called")


def _array(data: Any, kind: Any, shape: Any, layout: str) -> np.ndarray:
    if not isinstance(kind, np.dtype) or not isinstance(data, bytes):
        raise PickleError("an array without a type of numbers, or without its bytes")
    if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) * kind.itemsize != len(data):
        raise PickleError(f"an array with {len(data):,} bytes for the shape {tuple(shape)} of {kind}")
    return np.frombuffer(data, kind).reshape(tuple(shape), order="F" if layout == "F" else "C")
