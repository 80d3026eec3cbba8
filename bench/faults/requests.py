"""Send hostile requests to a server beside valid ones, and compare the valid ones' responses with the learner's logits.

The server is a real process (`spacecl serve`) with a small run. Hostile are malformed requests, pictures of unusual kinds,
extreme inputs, and clients that misbehave.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import malformed
from .guard import MEMORY, SECONDS
from .outcome import Outcome
from .queries import MODELS, Query, QueryLog, make_queries, send_queries
from .server_process import Server, provide_run, start_server

TIMEOUT = 5.0  # seconds that the server waits for a client
SHAPE = [64]
Client = Callable[[int, random.Random], Awaitable[int]]  # (port, draw) -> the status, 0 without a response


def run(count: int, seed: int) -> Outcome:
    with provide_run(None) as folder, start_server(folder, timeout=TIMEOUT) as server:
        return attack(server, folder, count, seed)


def attack(server: Server, folder: Path, count: int, seed: int) -> Outcome:
    """Send `count` hostile requests to a server of the run in `folder`."""
    outcome, draw = Outcome("requests"), random.Random(seed)
    queries = make_queries(folder, 60, draw)
    asyncio.run(_compare_bits(server.port, queries, outcome))
    asyncio.run(_attack(server, queries, list(_make_cases(count, draw)), outcome))
    asyncio.run(_compare_bits(server.port, queries, outcome))
    outcome.peak_memory = server.peak_memory()
    if outcome.peak_memory > MEMORY:
        outcome.failures.append(f"the server used {outcome.peak_memory / 2**30:.1f} GB")
    errors = server.errors.read_text(errors="replace")
    if errors:
        outcome.failures.append(f"the server printed errors: {errors[-3000:]}")
    return outcome


async def _compare_bits(port: int, queries: Sequence[Query], outcome: Outcome) -> None:
    """Send each query while the server has nothing else to do: the responses must have the learner's bits."""
    for query in queries:
        log, rest = QueryLog(), iter([False, True])
        await send_queries(port, [query], lambda rest=rest: next(rest), log)
        outcome.failures += log.problems
        if log.largest_deviation:
            outcome.failures.append(f"a single row differs by {log.largest_deviation:g} from the learner's logits")


async def _attack(server: Server, queries: Sequence[Query], cases: list[tuple[str, Client]], outcome: Outcome) -> None:
    log, is_done, limit = QueryLog(), False, SECONDS + server.timeout
    todo = list(enumerate(cases))[::-1]

    async def work(draw: random.Random) -> None:
        while todo and server.process.poll() is None:
            number, (kind, client) = todo.pop()
            started = time.perf_counter()
            try:
                status = await asyncio.wait_for(client(server.port, draw), limit)
            except asyncio.TimeoutError:
                outcome.add(kind, "hang", f"no response within {limit:g} s (case {number})")
                continue
            outcome.longest = max(outcome.longest, time.perf_counter() - started)
            failure = f"status {status} (case {number})" if status >= 500 and status != 503 else None
            outcome.add(kind, str(status) if status else "closed", failure)

    valid = [asyncio.create_task(send_queries(server.port, queries[n::4], lambda: is_done, log)) for n in range(4)]
    await asyncio.gather(*(work(random.Random(n)) for n in range(8)))
    is_done = True
    await asyncio.gather(*valid)
    if server.process.poll() is not None:
        outcome.failures.append(f"the server ended with exit code {server.process.returncode}")
    outcome.failures += log.problems
    slowest = max(log.seconds, default=0.0)
    if slowest > SECONDS:
        outcome.failures.append(f"a valid request waited {slowest:.1f} s")
    outcome.notes.update(
        good_requests=len(log.seconds),
        good_slowest_seconds=slowest,
        good_largest_deviation=log.largest_deviation,
        good_busy=log.busy,
    )


def _make_cases(count: int, draw: random.Random) -> Iterator[tuple[str, Client]]:
    """Yield `count` hostile cases, of all kinds in turn."""
    requests = malformed.make_malformed_requests(count, MODELS[0], SHAPE, draw.randrange(2**32))
    kinds = len({kind for kind, _ in malformed.make_malformed_requests(200, MODELS[0], SHAPE)})
    others = [*CLIENTS.items(), *((kind, _make_client(data)) for kind, data in _make_unusual_requests())]
    for number in range(count):
        turn = number % (kinds + len(others))
        if turn < kinds:
            kind, data = next(requests)
            yield kind, _make_client(data)
        else:
            yield others[turn - kinds]


def _make_client(data: bytes) -> Client:
    async def send(port: int, draw: random.Random) -> int:
        return (await malformed.send(port, data))[0]

    return send


def _post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _make_unusual_requests() -> Iterator[tuple[str, bytes]]:
    """Yield pictures of kinds that few programs write, and inputs that no task has; the server may answer or refuse them."""
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
        yield "an extreme input", _post("/v2/models/any-task/infer", json.dumps(body).encode())
    many = struct.pack("<65536f", *[0.5] * 65536)
    first = {
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [1024, 64], "parameters": {"binary_data_size": len(many)}}]
    }
    text = json.dumps(first).encode()
    request = _post("/v2/models/any-task/infer", text + many)
    yield (
        "the largest number of rows",
        request.replace(b"Host: x", f"Host: x\r\nInference-Header-Content-Length: {len(text)}".encode()),
    )
    for item in (b"[],", b"{},", b"1,", b'"",'):
        body = b'{"inputs":[' + item * (2**21 // len(item)) + b"0]}"
        yield "a long list of small values", _post(f"/v2/models/{MODELS[0]}/infer", body)


async def _stop_in_head(port: int, draw: random.Random) -> int:
    return await _send_and_leave(port, b"POST /v2/models/digits-1/infer HTTP/1.1\r\nHost: x\r\nConte")


async def _stop_in_body(port: int, draw: random.Random) -> int:
    return await _send_and_leave(port, b"POST /v2/models/digits-1/infer HTTP/1.1\r\nContent-Length: 9999\r\n\r\n{" + b" " * 999)


async def _leave_before_the_response(port: int, draw: random.Random) -> int:
    return await _send_and_leave(port, _post("/v2/models/any-task/infer", b'{"inputs": []}'))


async def _stay_silent(port: int, draw: random.Random) -> int:
    return await _send_and_leave(port, b"", 0.1 * draw.random())


async def _send_and_leave(port: int, data: bytes, seconds: float = 0.0) -> int:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await asyncio.sleep(seconds)
    writer.transport.abort()
    return 0


async def _open_many(port: int, draw: random.Random) -> int:
    """Open connections and send nothing."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    await asyncio.sleep(0.05)
    for _, writer in connections:
        writer.transport.abort()
    return 0


async def _close_one_side(port: int, draw: random.Random) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_post("/v2/models/any-task/infer", b'{"inputs": []}'))
    writer.write_eof()
    return await _read_status(reader, writer)


async def _pipeline(port: int, draw: random.Random) -> int:
    """Pipeline many requests."""
    return (
        await malformed.send(port, b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n" * draw.choice((10, 60, 2000)) + _post("/v1", b""))
    )[0]


async def _read_nothing(port: int, draw: random.Random) -> int:
    """Request much and read nothing, until the server gives up."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    requests = b"GET /v2/models HTTP/1.1\r\nHost: x\r\n\r\n" * 50
    for _ in range(50):
        if writer.transport.is_closing():
            break
        writer.write(requests)
        await asyncio.sleep(0.002)
    writer.transport.abort()
    return 0


async def _send_slowly(port: int, draw: random.Random) -> int:
    """Send a head or a body byte by byte, until the server gives up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(draw.choice((b"GET /v2 HTTP/1.1\r\nX: ", b"POST /v1 HTTP/1.1\r\nContent-Length: 99999\r\n\r\n", b"\r\n")))
    started = time.perf_counter()
    while not reader.at_eof():
        if time.perf_counter() - started > TIMEOUT + SECONDS - 1:
            raise asyncio.TimeoutError
        try:
            writer.write(b"\r\n" if draw.random() < 0.1 else b"x")
            await writer.drain()
        except ConnectionError:
            break
        await asyncio.sleep(0.1)
    return await _read_status(reader, writer)


async def _read_status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    try:
        text = await reader.read(2**16)
    except ConnectionError:
        text = b""
    writer.close()
    return int(text.split(b" ", 2)[1]) if text else 0


CLIENTS: dict[str, Client] = {
    "a client that leaves in the head": _stop_in_head,
    "a client that leaves in the body": _stop_in_body,
    "a client that leaves before the response": _leave_before_the_response,
    "a client that sends nothing": _stay_silent,
    "many connections that send nothing": _open_many,
    "a client that closes one side": _close_one_side,
    "many pipelined requests": _pipeline,
    "a client that reads nothing": _read_nothing,
    "a client that sends slowly": _send_slowly,
}
