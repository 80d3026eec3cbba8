"""A client that loads a server: as many requests at a time as are asked for, over plain sockets; and requests that are wrong.

    python bench/load.py PORT SECONDS CONNECTIONS SHAPE MODEL [MODEL ...]

prints how many requests a second were answered and how long they took, as JSON.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import random
import statistics
import struct
import sys
import time
import zlib
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

    usual = f"/v2/models/{model}/infer"

    def post(body: bytes, path: str = usual, *headers: str, method: str = "POST") -> bytes:
        return head(f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers) + body

    def head(*lines: str) -> bytes:
        return "\r\n".join([*lines, "Connection: close"]).encode() + b"\r\n\r\n"

    def binary(kind: str, values: bytes, size: object = None) -> bytes:
        parameters = {"binary_data_size": len(values) if size is None else size}
        first = json.dumps({"inputs": [{**right["inputs"][0], "datatype": kind, "data": None, "parameters": parameters}]})
        return post(first.encode() + values, usual, f"Inference-Header-Content-Length: {len(first)}")

    def nested(depth: int) -> object:
        return [] if depth == 0 else [nested(depth - 1)]

    def png(width: int, height: int, data: bytes) -> bytes:
        parts = (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
            (b"IDAT", zlib.compress(data)),
            (b"IEND", b""),
        )
        chunks = (struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts)
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)

    whole = json.dumps(right).encode()
    bomb = gzip.compress(bytes(64 * 2**20))
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
            "a header of many digits": post(
                whole, usual, f"Inference-Header-Content-Length: {'0' * draw.randrange(4000, 9000)}7"
            ),
            "a number of many digits": post(json.dumps(changed(data=row[1:])).replace("[0.5", f"[{'1' * 5000}, 0.5").encode()),
            "a value that is deep": post(
                json.dumps(
                    changed(
                        **{draw.choice(["name", "datatype", "shape", "data", "parameters"]): nested(draw.randrange(50, 195))}
                    )
                ).encode()
            ),
            "a key given twice": post(whole.replace(b'"shape"', b'"shape": [1], "shape": [-3], "shap"')),
            "other encodings of text": post(json.dumps(right).encode(draw.choice(["utf-16", "utf-32", "utf-8-sig"]))),
            "half a character": post(json.dumps(changed(name="\ud800", datatype="\udfff")).encode()),
            "line breaks in an id": post(
                json.dumps({**right, "id": "x\r\nSet-Cookie: a=b", "outputs": [{"name": "\r\n"}]}).encode()
            ),
            "values beyond FP32": post(json.dumps(changed(data=[*row[1:], draw.choice([1e39, -1e308, 10**400])])).encode()),
            "binary values beyond FP32": binary("FP64", struct.pack(f"<{len(row)}d", *row[1:], draw.choice([1e39, -1e308]))),
            "binary values that are no numbers": binary(
                "FP32", struct.pack(f"<{len(row)}f", *row[1:], draw.choice([math.nan, math.inf]))
            ),
            "a binary size of another type": binary(
                "FP32", struct.pack(f"<{len(row)}f", *row), draw.choice([True, 4.0 * len(row), "256", [], {}, 10**400, -1])
            ),
            "a name that leads elsewhere": post(
                whole,
                "/v2/models/"
                + draw.choice(
                    ["..", "../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "%00", f"{model}%00", "%ff%fe", "%", "a" * 9000]
                )
                + "/infer",
            ),
            "many headers": post(whole, f"/v1/{draw.randrange(10**6)}", *(f"X-{n}: {n}" for n in range(3000))),
            "a head without end": head(f"GET /v2 HTTP/1.1\r\nX: {'x' * draw.randrange(300_000, 900_000)}"),
            "an address without end": head(f"GET /{'x' * draw.randrange(300_000, 900_000)} HTTP/1.1"),
            "a chunk of no size": head(f"POST {usual} HTTP/1.1", "Host: x", "Transfer-Encoding: chunked")
            + draw.choice([b"zz\r\n", b"-1\r\n", b"f" * 40 + b"\r\n", b"\r\n", b"5\r\nabcdefgh\r\n"]),
            "odd chunks": head(f"POST {usual} HTTP/1.1", "Host: x", "Transfer-Encoding: chunked")
            + b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in whole[:-1])
            + b"0\r\nTrailer: x\r\n\r\n",
            "a length and chunks": post(b"0\r\n\r\n", usual, "Transfer-Encoding: chunked"),
            "two lengths": post(whole, usual, f"Content-Length: {len(whole) + draw.randrange(1, 99)}"),
            "a length that is none": head(
                f"POST {usual} HTTP/1.1", f"Content-Length: {draw.choice(['-1', 'x', '9' * 30, '1e3'])}"
            ),
            "an old version of HTTP": head(f"GET /{draw.randrange(10**6)} HTTP/1.0"),
            "an unknown version of HTTP": head(f"GET /v2 HTTP/{draw.choice(['3.7', '11', 'x'])}", "Host: x"),
            "a whole address": post(whole, f"http://elsewhere.invalid/{draw.randrange(10**6)}"),
            "a tunnel": head("CONNECT localhost:22 HTTP/1.1", "Host: localhost:22"),
            "a method that nobody serves": post(whole, method=draw.choice(["TRACE", "OPTIONS", "PROPFIND", "PURGE"])),
            "an unknown method": post(whole, method=draw.choice(["FETCH", "post", "G\u00cbT"])),
            "an expectation": post(whole[:-1], usual, "Expect: 100-continue"),
            "an upgrade": head(
                f"GET /{draw.randrange(10**6)} HTTP/1.1",
                *("Host: x", "Upgrade: websocket", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13"),
                "Connection: Upgrade",
            ),
            "a strange host": head(
                f"GET /{draw.randrange(10**6)} HTTP/1.1", f"Host: {draw.choice(['[', 'a b', '', ':99999', '@/'])}"
            ),
            "compressed twice": post(
                gzip.compress(gzip.compress(whole)),
                usual,
                *draw.choice([["Content-Encoding: gzip, gzip"], ["Content-Encoding: gzip"] * 2, ["Content-Encoding: gzip"]]),
            ),
            "deflate without a header": post(zlib.compress(whole)[2:-4], usual, "Content-Encoding: deflate"),
            "gzip of two parts": post(gzip.compress(whole) + gzip.compress(b" "), usual, "Content-Encoding: gzip"),
            "gzip cut short": post(gzip.compress(whole)[: draw.randrange(1, 60)], usual, "Content-Encoding: gzip"),
            "a bomb of zeros": post(bomb, usual, "Content-Encoding: gzip"),
            "a picture cut short": post(png(8, 8, bytes(72))[: draw.randrange(8, 45)], "/picture"),
            "a picture without pixels": post(png(0, draw.randrange(2), b""), "/picture"),
            "a picture of too many pixels": post(png(draw.choice([10**5, 10**9]), 10**5, bytes(100)), "/picture"),
            "a picture that is a program": post(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "/picture"),
            "a value that is beside the model": binary("INT32", struct.pack(f"<{len(row)}i", *[1] * len(row))),
        }
        for what, data in cases.items():
            if count == 0:
                return
            count -= 1
            yield what, data


async def refused(port: int, requests: Sequence[tuple[str, bytes]]) -> list[tuple[str, int, str]]:
    """Send wrong requests, each over a connection of its own: what was wrong, the status, the reason.

    A status of 0 is a connection that was closed while the request was being sent.
    """
    return [(what, *await asyncio.wait_for(send(port, data), 30)) for what, data in requests]


async def send(port: int, data: bytes) -> tuple[int, str]:
    """Send some bytes over a connection of their own; the status and the body of what is answered until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = b""
    try:
        writer.write(data)
        while part := await reader.read(2**16):
            text += part
    except ConnectionError:  # closed before all of a request was read
        pass
    finally:
        writer.close()
    head, _, body = text.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]) if head else 0, body.decode(errors="replace")


if __name__ == "__main__":
    port, seconds, connections, shape = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    print(json.dumps(asyncio.run(load(port, seconds, connections, shape, sys.argv[5:]))))
