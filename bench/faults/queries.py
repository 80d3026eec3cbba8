"""Valid requests to a server, and a client that compares every response with the learner's own logits."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("digits-1", "digits-2")
TOLERANCE = 1e-5  # rows that share a batch may differ in their last bits


@dataclass(frozen=True)
class Query:
    """A valid request with one row, and the learner's logits for this row alone."""

    data: bytes
    logits: np.ndarray

    def measure_deviation(self, status: int, head: bytes, body: bytes) -> float:
        """Return how far a response is from the learner's logits; infinity if it has none."""
        if status != 200:
            return float("inf")
        json_length = re.search(rb"(?i)inference-header-content-length: (\d+)", head)
        if json_length:
            values = np.frombuffer(body[int(json_length[1]) :], "<f4")
        else:
            values = np.array(json.loads(body)["outputs"][0]["data"], "<f4")
        return float(np.abs(values - self.logits).max()) if values.shape == self.logits.shape else float("inf")


def make_queries(folder: Path, count: int, draw: random.Random) -> list[Query]:
    """Return queries for both tasks of a run, as JSON and as binary data."""
    import torch

    from spacecl.runs.open_run import open_run

    learner, queries = open_run(folder).learner(), []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for number in range(count):
        model, row = MODELS[number % 2], np.array([draw.gauss(0, 1) for _ in range(64)], "<f4")
        entry: dict[str, Any] = {"name": "input", "datatype": "FP32", "shape": [1, 64]}
        output = {"name": "logits", "parameters": {"binary_data": number % 3 == 0}}
        tail = row.tobytes() if number % 4 < 2 else b""
        entry |= {"parameters": {"binary_data_size": 256}} if tail else {"data": row.tolist()}
        head = json.dumps({"inputs": [entry], "outputs": [output]}).encode()
        length = f"Inference-Header-Content-Length: {len(head)}\r\n" if tail else ""
        lines = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{length}Content-Length: {len(head) + len(tail)}\r\n\r\n"
        logits = learner.logits(torch.from_numpy(row)[None], model)[0].numpy()
        queries.append(Query(lines.encode() + head + tail, logits))
    torch.set_num_threads(threads)
    return queries


@dataclass
class QueryLog:
    """What became of a client's queries."""

    seconds: list[float] = field(default_factory=list)
    largest_deviation: float = 0.0
    busy: int = 0  # responses of 503
    problems: list[str] = field(default_factory=list)


async def send_queries(port: int, queries: Sequence[Query], is_over: Callable[[], bool], log: QueryLog) -> None:
    """Send one query after another over one connection, or over a new one when it was closed."""
    number, reader, writer = 0, None, None
    while not is_over():
        query, number = queries[number % len(queries)], number + 1
        started = time.perf_counter()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(query.data)
            status, head, body = await asyncio.wait_for(_read_response(reader), 60)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
            log.problems.append(f"a valid request got no response: {type(error).__name__} {error}")
            writer = None
            continue
        log.seconds.append(time.perf_counter() - started)
        if status == 503:
            log.busy += 1
            await asyncio.sleep(0.1)
            continue
        deviation = query.measure_deviation(status, head, body)
        log.largest_deviation = max(log.largest_deviation, deviation)
        if deviation > TOLERANCE:
            log.problems.append(f"a valid request got {status}, {deviation:g} away from the learner's logits: {body[:200]!r}")
    if writer is not None:
        writer.close()


async def _read_response(reader: Any) -> tuple[int, bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"(?i)\ncontent-length: (\d+)", head)[1])  # type: ignore[index]
    return int(head.split(b" ", 2)[1]), head, await reader.readexactly(length)
