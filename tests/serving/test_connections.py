"""Limits: of time, bodies, connections and waiting requests; and the address that the server listens on."""

import asyncio
import gzip
import inspect
import json
import signal
import socket
import sys
import threading
import time
from contextlib import AsyncExitStack, ExitStack

import pytest
import uvicorn
from servers import fetch, join, make_body, make_client, run_in_thread, run_threads

from spacecl.cli.main import main
from spacecl.runs.open_run import open_run
from spacecl.serving import server as server_module
from spacecl.serving.batcher import Batcher
from spacecl.serving.open_inference import RequestError
from spacecl.serving.service import Limits, Service

INFER = "/v2/models/digits-1/infer"


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def send_often(connection, data, count, pause=0.0):
    for _ in range(count):
        connection.sendall(data)
        time.sleep(pause)


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.fixture(scope="module")
def hasty(digits_learner):
    """The port of a server that waits for half a second."""
    with run_in_thread(digits_learner, Limits(body=2**20, seconds=0.5)) as (port, _):
        yield port


def test_a_connection_that_sends_nothing_is_closed_in_time(hasty):
    with connect(hasty) as silent, connect(hasty) as slow:
        slow.sendall(b"GET /v2 HTTP/1.1\r\nHost: ")
        assert silent.recv(100) == b""
        assert slow.recv(100) == b""
    with connect(hasty) as again:
        for _ in range(2):  # the second over the same connection
            again.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            response = b""
            while not response.endswith(b'{"live":true}'):
                response += again.recv(1000)
            assert response.startswith(b"HTTP/1.1 200")
        again.sendall(b"GET /v2")
        assert again.recv(100) == b""


@pytest.mark.parametrize(
    "beginning",
    [b"POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n", b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"],
    ids=["body", "next head"],
)
def test_a_client_that_has_its_response_and_sends_on_without_end_is_disconnected(hasty, beginning):
    with connect(hasty) as slow:
        slow.sendall(beginning)
        assert slow.recv(1000).startswith(b"HTTP/1.1 ")
        with pytest.raises(ConnectionError):
            send_often(slow, b"\r\n", 200, 0.1)


def test_a_client_that_reads_nothing_is_disconnected(hasty):
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(20)
        deaf.connect(("127.0.0.1", hasty))
        with pytest.raises(ConnectionError):
            send_often(deaf, b"GET /v2/models HTTP/1.1\r\nHost: x\r\n\r\n" * 50, 10_000)
    assert make_client(hasty).is_server_live()


def test_connections_above_the_limit_are_closed_and_the_others_served(digits_learner):
    with run_in_thread(digits_learner, Limits(seconds=60.0), max_connections=10) as (port, _), ExitStack() as stack:
        connections = [stack.enter_context(connect(port)) for _ in range(20)]
        assert all(map(is_closed, connections[10:]))
        for connection in connections[:10]:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_bodies_of_all_requests_together_stay_within_a_limit(digits_learner):
    async def stream(size):
        yield bytes(size)

    async def read_bodies():
        async with AsyncExitStack() as bodies:
            for _ in range(16):
                await bodies.enter_async_context(service.read_body(stream(100), ""))
            with pytest.raises(RequestError, match="too many large requests") as refusal:
                await bodies.enter_async_context(service.read_body(stream(1), ""))
            assert refusal.value.status == 503
        async with service.read_body(stream(100), "") as body:
            assert service.body_bytes == len(body) == 100

    service = Service(Batcher(digits_learner), Limits(body=100))
    asyncio.run(read_bodies())
    service.close()
    assert service.body_bytes == 0


def test_bodies_that_are_too_large_or_too_slow_are_refused_with_the_reason(hasty):
    status, _, text = fetch(hasty, INFER, b" " * (3 * 2**20))
    assert (status, "1,048,576 bytes" in text.decode()) == (413, True)
    status, _, text = fetch(hasty, INFER, gzip.compress(b" " * (3 * 2**20)), **{"Content-Encoding": "gzip"})
    assert (status, "when decompressed" in text.decode()) == (413, True)
    status, _, text = fetch(hasty, INFER, gzip.compress(b"[1, 2]")[:-9], **{"Content-Encoding": "gzip"})
    assert (status, "ends too early" in text.decode()) == (400, True)
    with connect(hasty) as slow:
        slow.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        assert slow.recv(10_000).startswith(b"HTTP/1.1 408")
    assert make_client(hasty).is_server_ready()


def test_a_full_queue_and_a_late_result_are_reported_and_the_server_goes_on(digits_learner):
    body, responses, go = make_body([0.0] * 64), [], threading.Event()
    with run_in_thread(digits_learner, Limits(queue=2, seconds=0.7)) as (port, service):
        service.batcher.call(lambda _: go.wait(20))
        join(run_threads([lambda: responses.append(fetch(port, INFER, body))] * 3))
        go.set()
        texts = sorted(json.loads(text)["error"] for _, _, text in responses)
        assert [status for status, _, _ in responses] == [503] * 3
        assert all(headers["Retry-After"] == "1" for _, headers, _ in responses)
        assert texts[0].startswith("2 requests are waiting already")
        assert texts[1:] == ["There was no answer within 0.7 s. Try again later."] * 2
        assert fetch(port, INFER, body)[0] == 200


# -- the address --------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(digits_run, capsys):
    """Run the command in this process; returns its exit code and standard error."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda *options: (main(["serve", str(digits_run), *options]), capsys.readouterr().err)
    signal.signal(signal.SIGTERM, before)


def test_problems_of_an_address_are_reported(serve, server):
    reason = "Address already in use. Choose another address with --host and --port."
    assert serve("--port", str(server)) == (1, f"spacecl: Cannot listen at 127.0.0.1, port {server}: {reason}\n")
    assert serve("--port", "70000") == (
        1,
        "spacecl: --port 70000 is not a port. Ports are 0 to 65535, and 0 takes a free one.\n",
    )
    assert "Cannot listen at no.such.host.invalid" in serve("--host", "no.such.host.invalid")[1]


def test_by_default_other_machines_cannot_connect(server):
    other = next(info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET))
    if not other.startswith("127."):
        with pytest.raises(OSError, match=r"."), socket.create_connection((other, server), timeout=2):
            pass


@pytest.mark.parametrize(("host", "warns"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_other_machines_are_let_in_only_on_request_and_with_a_warning(digits_run, monkeypatch, capsys, host, warns):
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: sockets[0].close())
    server_module.serve(open_run(digits_run), host, 0)
    assert ("other machines can reach this address" in capsys.readouterr().err) == warns
    assert inspect.signature(server_module.serve).parameters["host"].default == "127.0.0.1"


@pytest.mark.parametrize("missing", ["starlette.applications", "uvicorn", "httptools"])
def test_without_the_extra_the_command_says_what_to_install(serve, monkeypatch, missing):
    monkeypatch.delitem(sys.modules, "spacecl.serving.server")
    monkeypatch.setitem(sys.modules, missing, None)
    code, text = serve()
    assert code == 1
    assert 'pip install "spacecl[serve]"' in text
