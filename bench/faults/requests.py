"""Send hostile requests to a server beside good ones, and compare the good ones' answers with the learner's.

The server is a real process (`spacecl serve`) on a small run; all traffic stays on this machine. Hostile are the wrong
requests of `bench/load.py`, pictures of odd kinds, inputs without sense, and clients that do not behave.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .guard import MEMORY, SECONDS
from .outcome import Outcome

try:
    from .. import load  # as python -m bench.faults
except ImportError:
    import load  # as the tests have it

TIMEOUT = 5  # seconds that the server waits for a client
MODELS = ("digits-1", "digits-2")
SHAPE = [64]
Client = Callable[[int, random.Random], Awaitable[int]]  # (port, draw) -> the status, 0 without an answer


@dataclass
class Server:
    """A server in a process of its own."""

    port: int
    process: subprocess.Popen[str]
    errors: Path

    def peak_memory(self) -> int:
        """Bytes of the most memory that it has held so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as place:
        errors = Path(place) / "errors.txt"
        command = [sys.executable, "-m", "spacecl", "serve", str(folder), "--port", "0", *options]
        with errors.open("w") as stream:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # so that a row alone has the bits that it has here
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True, env=environment)
        try:
            line = process.stdout.readline()  # type: ignore[union-attr]
            address = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            assert address, f"the server did not start: {line}{errors.read_text()}"
            yield Server(int(address[1]), process, errors)
            process.send_signal(signal.SIGINT)
            process.wait(30)
        finally:
            process.kill()
            process.communicate()


@contextmanager
def small_run(folder: Path | None) -> Iterator[Path]:
    """The folder of a run of two tasks of permuted digits: the one given, or a new one."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        options = "--tasks 2 --epochs 3 --retrain-epochs 2 --no-measure --quiet --device cpu --out"
        command = [sys.executable, "-m", "spacecl", "run", "permuted-digits", *options.split(), f"{place}/run"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield Path(place) / "run"


@dataclass(frozen=True)
class Question:
    """A good request, and what the learner answers to its row alone."""

    data: bytes
    logits: np.ndarray

    def deviation(self, status: int, head: bytes, body: bytes) -> float:
        """How far an answer is from the learner's; infinite if it is none."""
        if status != 200:
            return float("inf")
        found = re.search(rb"(?i)inference-header-content-length: (\d+)", head)
        if found:
            values = np.frombuffer(body[int(found[1]) :], "<f4")
        else:
            values = np.array(json.loads(body)["outputs"][0]["data"], "<f4")
        return float(np.abs(values - self.logits).max()) if values.shape == self.logits.shape else float("inf")


def make_questions(folder: Path, count: int, draw: random.Random) -> list[Question]:
    """Rows for both tasks, as JSON and as binary data."""
    import torch

    from spacecl.runs.open_run import open_run

    learner, found = open_run(folder).learner(), []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for number in range(count):
        model, row = MODELS[number % 2], np.array([draw.gauss(0, 1) for _ in range(64)], "<f4")
        given: dict[str, Any] = {"name": "input", "datatype": "FP32", "shape": [1, 64]}
        wanted = {"name": "logits", "parameters": {"binary_data": number % 3 == 0}}
        tail = row.tobytes() if number % 4 < 2 else b""
        given |= {"parameters": {"binary_data_size": 256}} if tail else {"data": row.tolist()}
        head = json.dumps({"inputs": [given], "outputs": [wanted]}).encode()
        length = f"Inference-Header-Content-Length: {len(head)}\r\n" if tail else ""
        lines = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{length}Content-Length: {len(head) + len(tail)}\r\n\r\n"
        logits = learner.logits(torch.from_numpy(row)[None], model)[0].numpy()
        found.append(Question(lines.encode() + head + tail, logits))
    torch.set_num_threads(threads)
    return found


@dataclass
class Good:
    """What became of the good requests."""

    seconds: list[float] = field(default_factory=list)
    largest: float = 0.0  # deviation from the learner's answer
    busy: int = 0  # answers of 503
    wrong: list[str] = field(default_factory=list)


async def ask(port: int, questions: Sequence[Question], until: Callable[[], bool], found: Good) -> None:
    """Ask one question after another over one connection, a new one when it is closed."""
    number, reader, writer = 0, None, None
    while not until():
        question, number = questions[number % len(questions)], number + 1
        started = time.perf_counter()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(question.data)
            status, head, body = await asyncio.wait_for(_answer(reader), 60)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
            found.wrong.append(f"a good request was not answered: {type(error).__name__} {error}")
            writer = None
            continue
        found.seconds.append(time.perf_counter() - started)
        if status == 503:
            found.busy += 1
            await asyncio.sleep(0.1)
            continue
        deviation = question.deviation(status, head, body)
        found.largest = max(found.largest, deviation)
        if deviation > 1e-5:
            found.wrong.append(f"a good request got {status}, {deviation:g} away from the learner's answer: {body[:200]!r}")
    if writer is not None:
        writer.close()


async def _answer(reader: Any) -> tuple[int, bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"(?i)\ncontent-length: (\d+)", head)[1])  # type: ignore[index]
    return int(head.split(b" ", 2)[1]), head, await reader.readexactly(length)


def run(count: int, seed: int, folder: Path | None = None) -> Outcome:
    outcome, draw = Outcome("requests"), random.Random(seed)
    with small_run(folder) as made, serving(made, "--timeout", str(TIMEOUT)) as server:
        questions = make_questions(made, 60, draw)
        asyncio.run(_compare_alone(server.port, questions, outcome))
        asyncio.run(_attack(server, questions, list(_cases(count, draw)), outcome))
        asyncio.run(_compare_alone(server.port, questions, outcome))
        outcome.peak_memory = server.peak_memory()
        if outcome.peak_memory > MEMORY:
            outcome.failures.append(f"the server held {outcome.peak_memory / 2**30:.1f} GB")
        log = server.errors.read_text(errors="replace")
        if log:
            outcome.failures.append(f"the server wrote to its log: {log[-3000:]}")
    return outcome


async def _compare_alone(port: int, questions: Sequence[Question], outcome: Outcome) -> None:
    """Rows that nobody else disturbs have the learner's bits."""
    for question in questions:
        found, rest = Good(), iter([False, True])
        await ask(port, [question], lambda rest=rest: next(rest), found)
        outcome.failures += found.wrong
        if found.largest:
            outcome.failures.append(f"a row alone differs by {found.largest:g} from the learner's answer")


async def _attack(server: Server, questions: Sequence[Question], cases: list[tuple[str, Client]], outcome: Outcome) -> None:
    good, done = Good(), False
    todo = list(enumerate(cases))[::-1]

    async def work(draw: random.Random) -> None:
        while todo and server.process.poll() is None:
            number, (kind, client) = todo.pop()
            started = time.perf_counter()
            try:
                status = await asyncio.wait_for(client(server.port, draw), SECONDS + TIMEOUT)
            except asyncio.TimeoutError:
                outcome.add(kind, "hang", f"no answer within {SECONDS + TIMEOUT:g} s (case {number})")
                continue
            outcome.longest = max(outcome.longest, time.perf_counter() - started)
            broken = f"status {status} (case {number})" if status >= 500 and status != 503 else None
            outcome.add(kind, str(status) if status else "closed", broken)

    asking = [asyncio.create_task(ask(server.port, questions[n::4], lambda: done, good)) for n in range(4)]
    await asyncio.gather(*(work(random.Random(n)) for n in range(8)))
    done = True
    await asyncio.gather(*asking)
    if server.process.poll() is not None:
        outcome.failures.append(f"the server ended with exit code {server.process.returncode}")
    outcome.failures += good.wrong
    slowest = max(good.seconds, default=0.0)
    if slowest > SECONDS:
        outcome.failures.append(f"a good request waited {slowest:.1f} s")
    outcome.notes.update(
        good_requests=len(good.seconds), good_slowest_seconds=slowest, good_largest_deviation=good.largest, good_busy=good.busy
    )


def _cases(count: int, draw: random.Random) -> Iterator[tuple[str, Client]]:
    """As many hostile cases, of all kinds in turn."""
    wrong = load.malformed(count, MODELS[0], SHAPE, draw.randrange(2**32))
    kinds = len({kind for kind, _ in load.malformed(200, MODELS[0], SHAPE)})
    others = [*CLIENTS.items(), *((kind, _sender(data)) for kind, data in _odd())]
    for number in range(count):
        turn = number % (kinds + len(others))
        if turn < kinds:
            kind, data = next(wrong)
            yield kind, _sender(data)
        else:
            yield others[turn - kinds]


def _sender(data: bytes) -> Client:
    async def send(port: int, draw: random.Random) -> int:
        return (await load.send(port, data))[0]

    return send


def _post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _odd() -> Iterator[tuple[str, bytes]]:
    """Pictures of kinds that few programs make, and inputs that no task has: answered or refused."""
    from PIL import Image

    frames = [Image.new("P", (9, 7), n) for n in range(5)]
    pictures: list[tuple[str, Any, str, dict[str, Any]]] = [
        ("an animated picture", frames[0], "GIF", {"save_all": True, "append_images": frames[1:]}),
        ("a picture of 16 bits", Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000), "PNG", {}),
        ("a picture of four inks", Image.new("CMYK", (30, 20), (10, 200, 30, 4)), "JPEG", {}),
        ("a palette with transparency", frames[1], "PNG", {"transparency": 1}),
        ("a picture of single bits", Image.new("1", (300, 1)), "PNG", {}),
        ("a picture of floats", Image.new("F", (5, 5), 1e30), "TIFF", {}),
        ("a picture of one pixel", Image.new("RGBA", (1, 1), (1, 2, 3, 0)), "WEBP", {}),
        ("a long thin picture", Image.new("L", (30_000, 1)), "PNG", {}),
    ]
    for kind, picture, name, options in pictures:
        stream = io.BytesIO()
        picture.save(stream, name, **options)
        yield kind, _post("/picture", stream.getvalue())
    for value in (0.0, 1e30, 3e38, -3e38, 1e-45):
        body = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 64], "data": [value] * 64}]}
        yield "an input without sense", _post("/v2/models/infer/infer", json.dumps(body).encode())
    many = struct.pack("<65536f", *[0.5] * 65536)
    first = {
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [1024, 64], "parameters": {"binary_data_size": len(many)}}]
    }
    text = json.dumps(first).encode()
    whole = _post("/v2/models/infer/infer", text + many)
    yield (
        "as many rows as allowed",
        whole.replace(b"Host: x", f"Host: x\r\nInference-Header-Content-Length: {len(text)}".encode()),
    )
    for what in (b"[],", b"{},", b"1,", b'"",'):
        body = b'{"inputs":[' + what * (2**21 // len(what)) + b"0]}"
        yield "a long list of little", _post(f"/v2/models/{MODELS[0]}/infer", body)


async def _stop_in_head(port: int, draw: random.Random) -> int:
    return await _send_and_leave(port, b"POST /v2/models/digits-1/infer HTTP/1.1\r\nHost: x\r\nConte")


async def _stop_in_body(port: int, draw: random.Random) -> int:
    return await _send_and_leave(port, b"POST /v2/models/digits-1/infer HTTP/1.1\r\nContent-Length: 9999\r\n\r\n{" + b" " * 999)


async def _leave_before_the_answer(port: int, draw: random.Random) -> int:
    return await _send_and_leave(port, _post("/v2/models/infer/infer", b'{"inputs": []}'))


async def _stay_silent(port: int, draw: random.Random) -> int:
    return await _send_and_leave(port, b"", 0.1 * draw.random())


async def _send_and_leave(port: int, data: bytes, seconds: float = 0.0) -> int:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await asyncio.sleep(seconds)
    writer.transport.abort()
    return 0


async def _open_many(port: int, draw: random.Random) -> int:
    """Connections that say nothing."""
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    await asyncio.sleep(0.05)
    for _, writer in opened:
        writer.transport.abort()
    return 0


async def _close_one_side(port: int, draw: random.Random) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_post("/v2/models/infer/infer", b'{"inputs": []}'))
    writer.write_eof()
    return await _status(reader, writer)


async def _send_ahead(port: int, draw: random.Random) -> int:
    """Many requests before the first answer."""
    return (await load.send(port, b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n" * draw.choice((10, 60, 2000)) + _post("/v1", b"")))[0]


async def _read_nothing(port: int, draw: random.Random) -> int:
    """Ask for much and read none of it; the server gives up."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with_answers = b"GET /v2/models HTTP/1.1\r\nHost: x\r\n\r\n" * 50
    for _ in range(50):
        if writer.transport.is_closing():
            break
        writer.write(with_answers)
        await asyncio.sleep(0.002)
    writer.transport.abort()
    return 0


async def _send_slowly(port: int, draw: random.Random) -> int:
    """A head or a body byte by byte, until the server gives up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(draw.choice((b"GET /v2 HTTP/1.1\r\nX: ", b"POST /v1 HTTP/1.1\r\nContent-Length: 99999\r\n\r\n", b"\r\n")))
    started = time.perf_counter()
    while not reader.at_eof():
        if time.perf_counter() - started > TIMEOUT + 5:
            raise asyncio.TimeoutError
        try:
            writer.write(b"\r\n" if draw.random() < 0.1 else b"x")
            await writer.drain()
        except ConnectionError:
            break
        await asyncio.sleep(0.1)
    return await _status(reader, writer)


async def _status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    try:
        text = await reader.read(2**16)
    except ConnectionError:
        text = b""
    writer.close()
    return int(text.split(b" ", 2)[1]) if text else 0


CLIENTS: dict[str, Client] = {
    "a client that leaves in the head": _stop_in_head,
    "a client that leaves in the body": _stop_in_body,
    "a client that leaves before the answer": _leave_before_the_answer,
    "a client that says nothing": _stay_silent,
    "many connections that say nothing": _open_many,
    "a client that closes one side": _close_one_side,
    "requests ahead of their answers": _send_ahead,
    "a client that reads nothing": _read_nothing,
    "a client that sends slowly": _send_slowly,
}
