"""Interpret the operations of a pickle without calling anything: values on a stack, and calls as descriptions of them.

Python's own unpickler does what a pickle says: 60 kB can make it use gigabytes, or hash a key for hours. This one knows
only the operations that published datasets need. It limits the number of values by the size of the file.
"""

from __future__ import annotations

import codecs
import os
import struct
from collections.abc import Callable
from typing import Any, BinaryIO


class PickleError(ValueError):
    """A pickle contains something that a file of images does not need, or is damaged."""


class Call:
    """A global that a pickle names, with the arguments and the state it gives to it. Nothing is called."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] | None = None):
        self.name = name
        self.arguments = arguments  # None: the global itself, such as a type
        self.state: Any = None


class PickleMachine:
    """A stack machine for the operations of pickles (Python's `pickletools` documents them)."""

    def __init__(self, stream: BinaryIO):
        self.stream = stream
        self.size = os.fstat(stream.fileno()).st_size
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        # An operation of one byte can make a value of a hundred bytes. Published files need a few per image of 3,072 bytes.
        self.values_left = 4 * (100_000 + self.size // 100)
        self.encoded_left = self.size

    def count_value(self) -> None:
        """Count an operation or a value against the limit. A value that is used in several places counts for each."""
        self.values_left -= 1
        if self.values_left < 0:
            raise PickleError(f"it has more values than a file of {self.size:,} bytes may have")

    def run(self) -> Any:
        """Run all operations and return the value that the pickle stands for, with a `Call` for every array and type."""
        while True:
            code = self.stream.read(1)
            if code == b".":
                return self.pop()
            operation = OPERATIONS.get(code)
            if operation is None:
                raise PickleError(f"the operation {code!r} is not allowed in a file of images" if code else "it is truncated")
            self.count_value()
            operation(self)

    def read(self, count: int) -> bytes:
        """Read bytes. A length that exceeds the file is refused before anything is read."""
        if not 0 <= count <= self.size:
            raise PickleError(f"a value of {count:,} bytes in a file of {self.size:,}")
        data = self.stream.read(count)
        if len(data) < count:
            raise PickleError("it is truncated")
        return data

    def read_number(self, form: str) -> int:
        return struct.unpack(f"<{form}", self.read(struct.calcsize(f"<{form}")))[0]

    def read_line(self) -> bytes:
        data = self.stream.readline()
        if not data.endswith(b"\n"):
            raise PickleError("it is truncated")
        return data[:-1].rstrip(b"\r")

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise PickleError("a value is missing")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        """Return the value on top of the stack, which must be of a type."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0) or not isinstance(self.stack[-1], kind):
            raise PickleError(f"a {kind.__name__} is missing")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        """Remove and return all values above the last mark."""
        if not self.marks:
            raise PickleError("a mark is missing")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def add_items(self, values: list[Any]) -> None:
        items = self.top(dict)
        if len(values) % 2:
            raise PickleError("a key has no value")
        for key, value in zip(values[::2], values[1::2]):
            items[to_text(key)] = value  # only text: hashing other keys may take for ever

    def recall(self, index: int) -> Any:
        if index not in self.memo:
            raise PickleError(f"the value {index} is missing")
        return self.memo[index]

    def find_global(self, module: Any, name: Any) -> Call:
        module, name = to_text(module), to_text(name)
        allowed = {"_reconstruct", "scalar", "_frombuffer", "ndarray", "dtype"} if module.split(".")[0] == "numpy" else set()
        if name in allowed or (module, name) == ("_codecs", "encode"):
            return Call(name)
        raise PickleError(f"{module}.{name} is not allowed in a file of images")

    def record_call(self) -> Call | bytes:
        """Record a call without making it. Only `encode` is computed: old protocols write bytes as text to be encoded."""
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Call) or function.arguments is not None or not isinstance(arguments, tuple):
            raise PickleError("something that is not a function is called, or a call has no arguments")
        if function.name == "encode":
            text, encoding = map(to_text, arguments)
            if encoding != "latin1":
                raise PickleError(f"bytes in the encoding {encoding}")
            self.encoded_left -= len(text)
            if self.encoded_left < 0:
                raise PickleError("it repeats its values over and over")
            return text.encode("latin1")
        return Call(function.name, arguments)

    def set_state(self) -> None:
        state = self.pop()
        call = self.top(Call)
        if call.arguments is None or call.state is not None:
            raise PickleError("a state is given to a value that cannot have one")
        call.state = state


def to_text(value: Any) -> str:
    """Convert a text or ASCII bytes to text."""
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise PickleError(f"text is expected; got a {type(value).__name__}")
    return value


def _unquote(line: bytes) -> bytes:
    if len(line) < 2 or line[:1] not in b"'\"" or line[:1] != line[-1:]:
        raise PickleError("text without quotation marks")
    return codecs.escape_decode(line[1:-1])[0]  # type: ignore[attr-defined, no-any-return]


def _to_integer(line: bytes) -> int | bool:
    return line == b"01" if line in (b"00", b"01") else int(line)  # protocol 0 writes booleans like this


def _push(value: Callable[[PickleMachine], Any]) -> Callable[[PickleMachine], None]:
    return lambda machine: machine.stack.append(value(machine))


def _put(index: Callable[[PickleMachine], int]) -> Callable[[PickleMachine], None]:
    return lambda machine: machine.memo.__setitem__(index(machine), machine.top(object))


def _push_tuple(count: int) -> Callable[[PickleMachine], None]:
    return _push(lambda m: tuple([m.pop() for _ in range(count)][::-1]))


def _append(machine: PickleMachine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _set_item(machine: PickleMachine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.add_items([key, value])


def _extend(machine: PickleMachine) -> None:
    values = machine.pop_to_mark()
    machine.top(list).extend(values)


def _push_dictionary(machine: PickleMachine) -> None:
    values = machine.pop_to_mark()
    machine.stack.append({})
    machine.add_items(values)


def _push_global(machine: PickleMachine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.stack.append(machine.find_global(module, name))


OPERATIONS: dict[bytes, Callable[[PickleMachine], Any]] = {
    b"\x80": lambda m: m.read(1),  # PROTO
    b"\x95": lambda m: m.read(8),  # FRAME
    b"(": lambda m: m.marks.append(len(m.stack)),
    b"0": lambda m: m.pop(),
    b"1": lambda m: m.pop_to_mark(),
    b"N": _push(lambda m: None),
    b"\x88": _push(lambda m: True),
    b"\x89": _push(lambda m: False),
    b"I": _push(lambda m: _to_integer(m.read_line())),
    b"L": _push(lambda m: int(m.read_line().rstrip(b"L"))),
    b"J": _push(lambda m: m.read_number("i")),
    b"K": _push(lambda m: m.read_number("B")),
    b"M": _push(lambda m: m.read_number("H")),
    b"\x8a": _push(lambda m: int.from_bytes(m.read(m.read_number("B")), "little", signed=True)),
    b"F": _push(lambda m: float(m.read_line())),
    b"G": _push(lambda m: struct.unpack(">d", m.read(8))[0]),
    b"S": _push(lambda m: _unquote(m.read_line())),
    b"T": _push(lambda m: m.read(m.read_number("i"))),
    b"U": _push(lambda m: m.read(m.read_number("B"))),
    b"B": _push(lambda m: m.read(m.read_number("I"))),
    b"C": _push(lambda m: m.read(m.read_number("B"))),
    b"\x8e": _push(lambda m: m.read(m.read_number("Q"))),
    b"\x96": _push(lambda m: m.read(m.read_number("Q"))),
    b"V": _push(lambda m: m.read_line().decode("raw-unicode-escape")),
    b"X": _push(lambda m: m.read(m.read_number("I")).decode("utf-8", "surrogatepass")),
    b"\x8c": _push(lambda m: m.read(m.read_number("B")).decode("utf-8", "surrogatepass")),
    b"\x8d": _push(lambda m: m.read(m.read_number("Q")).decode("utf-8", "surrogatepass")),
    b")": _push(lambda m: ()),
    b"t": _push(lambda m: tuple(m.pop_to_mark())),
    b"\x85": _push_tuple(1),
    b"\x86": _push_tuple(2),
    b"\x87": _push_tuple(3),
    b"]": _push(lambda m: []),
    b"l": _push(lambda m: m.pop_to_mark()),
    b"a": _append,
    b"e": _extend,
    b"}": _push(lambda m: {}),
    b"d": _push_dictionary,
    b"s": _set_item,
    b"u": lambda m: m.add_items(m.pop_to_mark()),
    b"p": _put(lambda m: int(m.read_line())),
    b"q": _put(lambda m: m.read_number("B")),
    b"r": _put(lambda m: m.read_number("I")),
    b"\x94": _put(lambda m: len(m.memo)),
    b"g": _push(lambda m: m.recall(int(m.read_line()))),
    b"h": _push(lambda m: m.recall(m.read_number("B"))),
    b"j": _push(lambda m: m.recall(m.read_number("I"))),
    b"c": _push(lambda m: m.find_global(m.read_line(), m.read_line())),
    b"\x93": _push_global,
    b"R": _push(lambda m: m.record_call()),
    b"b": lambda m: m.set_state(),
}
