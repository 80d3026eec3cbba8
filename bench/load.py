"""A client that puts load on a server: a number of connections, each with one request at a time, over plain sockets.

    python bench/load.py PORT SECONDS CONNECTIONS SHAPE MODEL [MODEL ...]

prints requests per second and latencies as JSON.
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
from collections.abc import Sequence
from typing import TypedDict


class LoadResult(TypedDict):
    """What a server did under load; `wrong` counts responses other than 200."""

    requests_per_second: float
    median_ms: float
    p99_ms: float
    wrong: int


def make_request(model: str, shape: Sequence[int], values: bytes) -> bytes:
    """Return an HTTP request with one row as binary data."""
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


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the status and the body of one response."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    return int(head.split(b" ", 2)[1]), await reader.readexactly(length)


async def run_load(port: int, seconds: float, connections: int, shape: Sequence[int], models: Sequence[str]) -> LoadResult:
    """Keep a server busy; every connection sends its next request as soon as it has the response to the last."""
    generator = random.Random(0)
    count = math.prod(shape)
    values = struct.pack(f"<{count}f", *(generator.gauss(0, 1) for _ in range(count)))
    requests = [make_request(model, shape, values) for model in models]
    times: list[float] = []
    wrong = 0
    start = time.perf_counter()

    async def run_connection(number: int) -> None:
        nonlocal wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() - start < seconds:
            begin = time.perf_counter()
            writer.write(requests[number % len(requests)])
            status, _ = await read_response(reader)
            wrong += status != 200
            if begin - start > 0.2 * seconds:  # after the warm-up
                times.append(time.perf_counter() - begin)
            number += connections + 1
        writer.close()

    await asyncio.gather(*(run_connection(number) for number in range(connections)))
    times.sort()
    return {
        "requests_per_second": len(times) / (0.8 * seconds),
        "median_ms": 1e3 * statistics.median(times),
        "p99_ms": 1e3 * times[int(0.99 * len(times))],
        "wrong": wrong,
    }


if __name__ == "__main__":
    port, seconds, connections, shape = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    print(json.dumps(asyncio.run(run_load(port, seconds, connections, shape, sys.argv[5:]))))
