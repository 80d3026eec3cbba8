"""What those who run a server need: metrics, tokens, and an orderly end. With real processes where it matters."""

import http.client
import json
import re
import signal
import socket
import time

import pytest
from faults.server_process import start_server
from helpers import teach_random
from models import VECTOR, chain
from servers import fetch, make_body, run_in_thread

from spacecl import ConfigError
from spacecl.serving.metrics import Metrics
from spacecl.serving.tokens import read_tokens

TOKEN = "0123456789abcdef-new"
BODY = make_body([0.5] * 6)


@pytest.fixture(scope="module")
def learner():
    return teach_random(chain(), VECTOR)


@pytest.fixture
def token_file(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"fedcba9876543210-old\n\n{TOKEN}\n")
    return file


def read_metrics(port, **headers):
    """The samples of the metrics' page, and that every line has the form of the format."""
    status, head, body = fetch(port, "/metrics", **headers)
    assert status == 200
    assert head["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = body.decode().splitlines()
    form = re.compile(r'# (HELP|TYPE) spacecl_\w+ .+|spacecl_\w+(\{(\w+="([^"\\\n]|\\.)*",?)+\})? [-+.\de]+')
    assert [line for line in lines if not form.fullmatch(line)] == []
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def test_metrics_count_requests_rows_and_times_by_model(learner):
    with run_in_thread(learner) as (port, _):
        for _ in range(3):
            assert fetch(port, "/v2/models/task%201/infer", BODY)[0] == 200
        assert fetch(port, "/v2/models/task%201/infer", b"{}")[0] == 400
        assert fetch(port, "/v2/models/no-such-model/infer", BODY)[0] == 404
        found = read_metrics(port)
    assert found['spacecl_requests_total{model="task 1",code="200"}'] == 3
    assert found['spacecl_requests_total{model="task 1",code="400"}'] == 1
    assert found['spacecl_requests_total{model="",code="404"}'] == 1
    assert found['spacecl_rows_total{model="task 1"}'] == 3
    assert found['spacecl_request_seconds_count{model="task 1"}'] == 4
    assert found['spacecl_request_seconds_bucket{model="task 1",le="+Inf"}'] == 4
    assert found["spacecl_tasks"] == 2
    assert 1 <= found["spacecl_batches_total"] <= 3
    assert not any("no-such-model" in name for name in found), "clients can make as many metrics as they like"


def test_a_histogram_has_times_by_their_upper_bounds_and_names_are_escaped():
    metrics = Metrics()
    for seconds in (0.001, 0.002, 99.0):
        metrics.count_response('a "quoted"\\\nname', 200, seconds)
    text = metrics.format({}, {})
    name = r'model="a \"quoted\"\\\nname"'
    counts = dict(re.findall(r'bucket\{.*le="(.+?)"\} (\d+)', text))
    assert (counts["0.001"], counts["0.0025"], counts["10.0"], counts["+Inf"]) == ("1", "2", "2", "3")
    assert f'spacecl_requests_total{{{name},code="200"}} 3' in text


def test_with_tokens_only_health_is_open(learner, token_file):
    with run_in_thread(learner, tokens=read_tokens(token_file)) as (port, _):
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert fetch(port, path)[0] == 200
        wrong = [{}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}]
        for headers in (*wrong, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {TOKEN[:-1]}"}):
            for path, data in (("/metrics", None), ("/", None), ("/v2/models", None), ("/v2/models/task%201/infer", BODY)):
                status, head, body = fetch(port, path, data, **headers)
                assert (status, head["WWW-Authenticate"]) == (401, "Bearer")
                assert "token" in json.loads(body)["error"]
        for token in (TOKEN, "fedcba9876543210-old"):
            right = {"Authorization": f"Bearer {token}"}
            assert fetch(port, "/v2/models/task%201/infer", BODY, **right)[0] == 200
        found = read_metrics(port, **right)
    assert found['spacecl_requests_total{model="",code="401"}'] == 24
    assert found['spacecl_rows_total{model="task 1"}'] == 2


@pytest.mark.parametrize("content", [b"", b"\n \n", b"short\n", b"has a space in the middle\n", b"\xff" * 20, b"x" * 70000])
def test_a_file_without_usable_tokens_is_refused(tmp_path, content):
    (tmp_path / "tokens").write_bytes(content)
    with pytest.raises(ConfigError, match="token on each line"):
        read_tokens(tmp_path / "tokens")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(tmp_path / "absent")


def begin_request(port, data):
    """A connection on which a request has begun, of whose body something is missing."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = f"POST /v2/models/digits-1/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data[:40])
    time.sleep(0.5)  # until the server has read it
    return connection


def stop(server):
    server.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
        except OSError:
            return
        time.sleep(0.05)
    pytest.fail("the server still accepts connections")


def test_on_sigterm_a_server_finishes_what_it_has_accepts_nothing_and_exits_with_0(digits_run):
    data = make_body([0.5] * 64)
    with start_server(digits_run, timeout=20.0, stop=None) as server:
        connection = begin_request(server.port, data)
        stop(server)
        connection.sendall(data[40:])
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 200
        assert len(json.loads(response.read())["outputs"]) == 2
        assert server.process.wait(15) == 0
        assert server.errors.read_text() == ""


def test_a_client_that_sends_nothing_more_delays_the_end_no_longer_than_the_timeout(digits_run):
    with start_server(digits_run, timeout=2.0, stop=None) as server, begin_request(server.port, make_body([0.5] * 64)):
        stop(server)
        assert server.process.wait(30) == 0
