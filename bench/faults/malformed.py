"""Requests that a server must refuse, of 66 kinds, and a client that sends them over plain sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import random
import struct
import zlib
from collections.abc import Iterator, Sequence


def make_malformed_requests(count: int, model: str, shape: Sequence[int], seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield requests as bytes for a socket, each after a description of what is wrong with it."""
    draw = random.Random(seed)
    row = [0.5] * math.prod(shape)
    request = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, *shape], "data": row}]}

    def change(**values: object) -> dict[str, object]:
        return {"inputs": [{**request["inputs"][0], **values}]}

    address = f"/v2/models/{model}/infer"

    def post(body: bytes, path: str = address, *headers: str, method: str = "POST") -> bytes:
        return make_head(f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers) + body

    def make_head(*lines: str) -> bytes:
        return "\r\n".join([*lines, "Connection: close"]).encode() + b"\r\n\r\n"

    def post_binary(kind: str, values: bytes, size: object = None) -> bytes:
        parameters = {"binary_data_size": len(values) if size is None else size}
        first = json.dumps({"inputs": [{**request["inputs"][0], "datatype": kind, "data": None, "parameters": parameters}]})
        return post(first.encode() + values, address, f"Inference-Header-Content-Length: {len(first)}")

    def nest(depth: int) -> object:
        return [] if depth == 0 else [nest(depth - 1)]

    def make_png(width: int, height: int, data: bytes) -> bytes:
        parts = (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
            (b"IDAT", zlib.compress(data)),
            (b"IEND", b""),
        )
        chunks = (struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts)
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)

    valid = json.dumps(request).encode()
    bomb = gzip.compress(bytes(64 * 2**20))
    odd_values = [None, True, 7, -1, "x", [], {}, [[]], 1e400, "\ud800", [None], "a" * 500]
    while True:
        odd_value = draw.choice(odd_values)
        cases = {
            "JSON cut short": post(valid[: draw.randrange(len(valid))]),
            "random bytes": post(draw.randbytes(draw.randrange(200))),
            "not an object": post(json.dumps(odd_value if not isinstance(odd_value, dict) else [odd_value]).encode()),
            "too deep": post(b"[" * draw.randrange(1_000, 200_000)),
            "no inputs": post(json.dumps({"inputs": odd_value if odd_value != [request] else []}).encode()),
            "two inputs": post(json.dumps({"inputs": request["inputs"] * 2}).encode()),
            "another name": post(json.dumps(change(name=odd_value)).encode()),
            "another datatype": post(
                json.dumps(change(datatype=draw.choice(["BYTES", "BOOL", "INT64", "FP8", odd_value]))).encode()
            ),
            "another shape": post(
                json.dumps(change(shape=draw.choice([[1], [0, *shape], [-1, *shape], [2, *shape], odd_value]))).encode()
            ),
            "a huge shape": post(json.dumps(change(shape=[2 ** draw.randrange(20, 70), *shape])).encode()),
            "too few values": post(json.dumps(change(data=row[: draw.randrange(len(row))])).encode()),
            "too many values": post(json.dumps(change(data=row + row)).encode()),
            "values that are not numbers": post(
                json.dumps(change(data=[*row[1:], draw.choice([None, "1", True, [1], {}])])).encode()
            ),
            "values that are not finite": post(
                json.dumps(change(data=[*row[1:], draw.choice([1e400, float("nan")])])).encode()
            ),
            "ragged values": post(json.dumps(change(data=[row, row[1:]])).encode()),
            "an unknown output": post(json.dumps({**request, "outputs": [{"name": odd_value}]}).encode()),
            "an id that is not text": post(json.dumps({**request, "id": [odd_value]}).encode()),
            "a wrong header": post(
                valid, f"/v2/models/{model}/infer", f"Inference-Header-Content-Length: {draw.choice([-1, 10**30, 'x', 3])}"
            ),
            "binary data of another size": post(
                json.dumps(change(data=None, parameters={"binary_data_size": draw.choice([0, 3, -4, 10**9, "x"])})).encode()
                + b"\0" * draw.randrange(1, 9)
            ),
            "not gzip": post(valid, f"/v2/models/{model}/infer", "Content-Encoding: gzip"),
            "an unknown encoding": post(valid, f"/v2/models/{model}/infer", "Content-Encoding: br"),
            "an unknown model": post(valid, f"/v2/models/{draw.randrange(10**6)}/infer"),
            "an unknown version": post(valid, f"/v2/models/{model}/versions/9/infer"),
            "an unknown path": post(valid, f"/v1/{draw.randrange(10**6)}"),
            "another method": post(valid, method=draw.choice(["PUT", "DELETE", "PATCH", "GET"])),
            "not a picture": post(draw.randbytes(draw.randrange(300)), "/picture"),
            "not HTTP": draw.randbytes(20) + b"\r\n\r\n",
            "a header of many digits": post(
                valid, address, f"Inference-Header-Content-Length: {'0' * draw.randrange(4000, 9000)}7"
            ),
            "a number of many digits": post(json.dumps(change(data=row[1:])).replace("[0.5", f"[{'1' * 5000}, 0.5").encode()),
            "a deeply nested value": post(
                json.dumps(
                    change(**{draw.choice(["name", "datatype", "shape", "data", "parameters"]): nest(draw.randrange(50, 195))})
                ).encode()
            ),
            "a repeated key": post(valid.replace(b'"shape"', b'"shape": [1], "shape": [-3], "shap"')),
            "other encodings of text": post(json.dumps(request).encode(draw.choice(["utf-16", "utf-32", "utf-8-sig"]))),
            "half a character": post(json.dumps(change(name="\ud800", datatype="\udfff")).encode()),
            "line breaks in an id": post(
                json.dumps({**request, "id": "x\r\nSet-Cookie: a=b", "outputs": [{"name": "\r\n"}]}).encode()
            ),
            "values beyond FP32": post(json.dumps(change(data=[*row[1:], draw.choice([1e39, -1e308, 10**400])])).encode()),
            "binary values beyond FP32": post_binary(
                "FP64", struct.pack(f"<{len(row)}d", *row[1:], draw.choice([1e39, -1e308]))
            ),
            "binary values that are not finite": post_binary(
                "FP32", struct.pack(f"<{len(row)}f", *row[1:], draw.choice([math.nan, math.inf]))
            ),
            "a binary size of another type": post_binary(
                "FP32", struct.pack(f"<{len(row)}f", *row), draw.choice([True, 4.0 * len(row), "256", [], {}, 10**400, -1])
            ),
            "a name with a path": post(
                valid,
                "/v2/models/"
                + draw.choice(
                    ["..", "../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "%00", f"{model}%00", "%ff%fe", "%", "a" * 9000]
                )
                + "/infer",
            ),
            "many headers": post(valid, f"/v1/{draw.randrange(10**6)}", *(f"X-{n}: {n}" for n in range(3000))),
            "an endless head": make_head(f"GET /v2 HTTP/1.1\r\nX: {'x' * draw.randrange(300_000, 900_000)}"),
            "an endless address": make_head(f"GET /{'x' * draw.randrange(300_000, 900_000)} HTTP/1.1"),
            "a chunk without a size": make_head(f"POST {address} HTTP/1.1", "Host: x", "Transfer-Encoding: chunked")
            + draw.choice([b"zz\r\n", b"-1\r\n", b"f" * 40 + b"\r\n", b"\r\n", b"5\r\nabcdefgh\r\n"]),
            "odd chunks": make_head(f"POST {address} HTTP/1.1", "Host: x", "Transfer-Encoding: chunked")
            + b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in valid[:-1])
            + b"0\r\nTrailer: x\r\n\r\n",
            "a length and chunks": post(b"0\r\n\r\n", address, "Transfer-Encoding: chunked"),
            "two lengths": post(valid, address, f"Content-Length: {len(valid) + draw.randrange(1, 99)}"),
            "a length that is not a number": make_head(
                f"POST {address} HTTP/1.1", f"Content-Length: {draw.choice(['-1', 'x', '9' * 30, '1e3'])}"
            ),
            "an old version of HTTP": make_head(f"GET /{draw.randrange(10**6)} HTTP/1.0"),
            "an unknown version of HTTP": make_head(f"GET /v2 HTTP/{draw.choice(['3.7', '11', 'x'])}", "Host: x"),
            "an absolute URL": post(valid, f"http://elsewhere.invalid/{draw.randrange(10**6)}"),
            "a tunnel": make_head("CONNECT localhost:22 HTTP/1.1", "Host: localhost:22"),
            "an unsupported method": post(valid, method=draw.choice(["TRACE", "OPTIONS", "PROPFIND", "PURGE"])),
            "an unknown method": post(valid, method=draw.choice(["FETCH", "post", "G\u00cbT"])),
            "an expectation": post(valid[:-1], address, "Expect: 100-continue"),
            "an upgrade": make_head(
                f"GET /{draw.randrange(10**6)} HTTP/1.1",
                *("Host: x", "Upgrade: websocket", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13"),
                "Connection: Upgrade",
            ),
            "a strange host": make_head(
                f"GET /{draw.randrange(10**6)} HTTP/1.1", f"Host: {draw.choice(['[', 'a b', '', ':99999', '@/'])}"
            ),
            "compressed twice": post(
                gzip.compress(gzip.compress(valid)),
                address,
                *draw.choice([["Content-Encoding: gzip, gzip"], ["Content-Encoding: gzip"] * 2, ["Content-Encoding: gzip"]]),
            ),
            "deflate without a header": post(zlib.compress(valid)[2:-4], address, "Content-Encoding: deflate"),
            "gzip of two parts": post(gzip.compress(valid) + gzip.compress(b" "), address, "Content-Encoding: gzip"),
            "gzip cut short": post(gzip.compress(valid)[: draw.randrange(1, 60)], address, "Content-Encoding: gzip"),
            "a bomb of zeros": post(bomb, address, "Content-Encoding: gzip"),
            "a picture cut short": post(make_png(8, 8, bytes(72))[: draw.randrange(8, 45)], "/picture"),
            "a picture without pixels": post(make_png(0, draw.randrange(2), b""), "/picture"),
            "a picture of too many pixels": post(make_png(draw.choice([10**5, 10**9]), 10**5, bytes(100)), "/picture"),
            "a picture that is a program": post(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "/picture"),
            "values of another type": post_binary("INT32", struct.pack(f"<{len(row)}i", *[1] * len(row))),
        }
        for what, data in cases.items():
            if count == 0:
                return
            count -= 1
            yield what, data


async def send_all(port: int, requests: Sequence[tuple[str, bytes]]) -> list[tuple[str, int, str]]:
    """Send requests, each over a connection of its own; return what was wrong, the status, and the reason.

    A status of 0 means that the connection was closed while the request was being sent.
    """
    return [(what, *await asyncio.wait_for(send(port, data), 30)) for what, data in requests]


async def send(port: int, data: bytes) -> tuple[int, str]:
    """Send bytes over a connection of their own; return the status and the body of what arrives until it is closed."""
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
