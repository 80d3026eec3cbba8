"""A client that loads a server: as many requests at a time as are asked for, over plain sockets; and requests that are wrong.

    python bench/load.py PORT SECONDS CONNECTIONS SHAPE MODEL [MODEL ...]

prints how many requests a second were answered and how long they took, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import struct
import sys
import time
from collections.abc import Iterator, Sequence


def request(model: str, shape: Sequence[int], values: bytes) -> bytes:
    """One row as binary data, as a whole HTTP request."""
    size = len(values)
    head = json.dumps(
        {
            "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, *shape], "parameters": {"binary_data_size": size}}],
            "outputs": [{"name": "label"}],
        }
    ).encode()
    lines = (
        f"POST /v2/models/{model.replace(' ', '%20')}/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(head) + size}\r\n\r\n"
    )
    return lines.encode() + head + values


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status and the body of one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


async def load(port: int, seconds: float, connections: int, shape: Sequence[int], models: Sequence[str]) -> dict[str, float]:
    """Keep a server busy and tell what it did; every connection asks again as soon as it is answered."""
    generator = random.Random(0)
    count = math.prod(shape)
    values = struct.pack(f"<{count}f", *(generator.gauss(0, 1) for _ in range(count)))
    requests = [request(model, shape, values) for model in models]
    times: list[float] = []
    wrong = 0
    start = time.perf_counter()

    async def one(number: int) -> None:
        nonlocal wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() - start < seconds:
            begun = time.perf_counter()
            writer.write(requests[number % len(requests)])
            status, _ = await answered(reader)
            wrong += status != 200
            if begun - start > 0.2 * seconds:  # when all is warm
                times.append(time.perf_counter() - begun)
            number += connections + 1
        writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    times.sort()
    return {
        "requests_per_second": len(times) / (0.8 * seconds),
        "median_ms": 1e3 * statistics.median(times),
        "p99_ms": 1e3 * times[int(0.99 * len(times))],
        "wrong": wrong,
    }


def malformed(count: int, model: str, shape: Sequence[int], seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Requests that a server must refuse, as bytes for a socket, and what is wrong with each."""
    draw = random.Random(seed)
    row = [0.5] * math.prod(shape)
    right = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, *shape], "data": row}]}

    def changed(**values: object) -> dict[str, object]:
        return {"inputs": [{**right["inputs"][0], **values}]}

    def post(body: bytes, path: str = f"/v2/models/{model}/infer", *headers: str, method: str = "POST") -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "Connection: close", *headers]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    whole = json.dumps(right).encode()
    strange = [None, True, 7, -1, "x", [], {}, [[]], 1e400, "\ud800", [None], "a" * 500]
    while True:
        some = draw.choice(strange)
        cases = {
            "JSON cut short": post(whole[: draw.randrange(len(whole))]),
            "random bytes": post(draw.randbytes(draw.randrange(200))),
            "not an object": post(json.dumps(some if not isinstance(some, dict) else [some]).encode()),
            "too deep": post(b"[" * draw.randrange(1_000, 200_000)),
            "no inputs": post(json.dumps({"inputs": some if some != [right] else []}).encode()),
            "two inputs": post(json.dumps({"inputs": right["inputs"] * 2}).encode()),
            "another name": post(json.dumps(changed(name=some)).encode()),
            "another datatype": post(
                json.dumps(changed(datatype=draw.choice(["BYTES", "BOOL", "INT64", "FP8", some]))).encode()
            ),
            "another shape": post(
                json.dumps(changed(shape=draw.choice([[1], [0, *shape], [-1, *shape], [2, *shape], some]))).encode()
            ),
            "a huge shape": post(json.dumps(changed(shape=[2 ** draw.randrange(20, 70), *shape])).encode()),
            "too few values": post(json.dumps(changed(data=row[: draw.randrange(len(row))])).encode()),
            "too many values": post(json.dumps(changed(data=row + row)).encode()),
            "values that are no numbers": post(
                json.dumps(changed(data=[*row[1:], draw.choice([None, "1", True, [1], {}])])).encode()
            ),
            "values without end": post(json.dumps(changed(data=[*row[1:], draw.choice([1e400, float("nan")])])).encode()),
            "ragged values": post(json.dumps(changed(data=[row, row[1:]])).encode()),
            "an unknown output": post(json.dumps({**right, "outputs": [{"name": some}]}).encode()),
            "an id that is no text": post(json.dumps({**right, "id": [some]}).encode()),
            "a header that lies": post(
                whole, f"/v2/models/{model}/infer", f"Inference-Header-Content-Length: {draw.choice([-1, 10**30, 'x', 3])}"
            ),
            "binary data of another size": post(
                json.dumps(changed(data=None, parameters={"binary_data_size": draw.choice([0, 3, -4, 10**9, "x"])})).encode()
                + b"\0" * draw.randrange(1, 9)
            ),
            "not gzip": post(whole, f"/v2/models/{model}/infer", "Content-Encoding: gzip"),
            "an unknown encoding": post(whole, f"/v2/models/{model}/infer", "Content-Encoding: br"),
            "an unknown model": post(whole, f"/v2/models/{draw.randrange(10**6)}/infer"),
            "an unknown version": post(whole, f"/v2/models/{model}/versions/9/infer"),
            "an unknown path": post(whole, f"/v1/{draw.randrange(10**6)}"),
            "another method": post(whole, method=draw.choice(["PUT", "DELETE", "PATCH", "GET"])),
            "no picture": post(draw.randbytes(draw.randrange(300)), "/picture"),
            "not HTTP": draw.randbytes(20) + b"\r\n\r\n",
        }
        for what, data in cases.items():
            if count == 0:
                return
            count -= 1
            yield what, data


async def refused(port: int, requests: Sequence[tuple[str, bytes]]) -> list[tuple[str, int, str]]:
    """Send wrong requests, each over a connection of its own: what was wrong, the status, the reason."""
    found = []
    for what, data in requests:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        text = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        head, _, body = text.partition(b"\r\n\r\n")
        found.append((what, int(head.split(b" ", 2)[1]) if head else 0, body.decode(errors="replace")))
    return found


if __name__ == "__main__":
    port, seconds, connections, shape = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    print(json.dumps(asyncio.run(load(port, seconds, connections, shape, sys.argv[5:]))))
