"""The server: real processes, real clients, a real browser; what is wrong is refused, what is right is answered."""

import asyncio
import base64
import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import urllib.error
import urllib.request
import warnings
import zlib
from contextlib import AsyncExitStack, ExitStack, contextmanager

import load
import models
import numpy as np
import pytest
import torch
import tritonclient.http as triton
from faults import clients, requests
from models import chain, tasks
from tritonclient.utils import InferenceServerException

from spacecl import EWC, SPACE, Images, Learner, Recipe, StoreError, Task, store
from spacecl.runs.open_run import OpenRun, open_run
from spacecl.serving import open_inference as protocol
from spacecl.serving.batcher import Batcher
from spacecl.serving.open_inference import RequestError

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")
VECTOR = torch.zeros(1, 6)
QUICK = Recipe(epochs=2, batch_size=32)


@contextmanager
def serving(folder, *options):
    """A server in a process of its own; gives its port and, at the end, demands that it stops as it should."""
    command = [sys.executable, "-m", "spacecl", "serve", str(folder), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert "http://127.0.0.1:" in line, line or process.stderr.read()
        yield int(re.search(r"127\.0\.0\.1:(\d+)", line)[1])
        assert process.poll() is None, "the server lives"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(digits_run):
    with serving(digits_run) as port:
        yield port


@pytest.fixture(scope="module")
def learner(digits_run):
    return open_run(digits_run).learner()


def client(port):
    return triton.InferenceServerClient(f"127.0.0.1:{port}")


def rows(x, binary=True):
    found = triton.InferInput("input", list(x.shape), "FP32")
    found.set_data_from_numpy(x.numpy(), binary_data=binary)
    return [found]


def fetched(port, path, data=None, **headers):
    """The status, the headers and the body of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


# -- the protocol, with a client that others wrote ----------------------------------------------------------------------


def test_tritonclient_finds_the_server_its_models_and_what_they_take(server, learner):
    asked = client(server)
    assert asked.is_server_live()
    assert asked.is_server_ready()
    assert asked.is_model_ready("digits-1")
    assert not asked.is_model_ready("cats")
    assert asked.get_server_metadata()["name"] == "spacecl"
    assert [model["name"] for model in asked.get_model_repository_index()] == ["digits-1", "digits-2", "infer"]
    about = asked.get_model_metadata("digits-2")
    assert about["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 64]}]
    assert {"name": "logits", "datatype": "FP32", "shape": [-1, 10]} in about["outputs"]
    assert about["parameters"]["digest"] == learner.records["digits-2"].digest
    listed = json.loads(fetched(server, "/v2/models")[2])["models"]
    assert [model["name"] for model in listed] == ["digits-1", "digits-2", "infer"]
    assert asked.get_model_metadata("digits-2", "1") == about


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("packed", [None, "gzip", "deflate"])
def test_tritonclient_gets_the_learners_answers(server, learner, binary, packed):
    x = torch.randn(7, 64)
    expected = learner.logits(x, "digits-2")
    more = {"request_compression_algorithm": packed, "response_compression_algorithm": packed}
    found = client(server).infer("digits-2", rows(x, binary), **more)
    assert np.abs(found.as_numpy("logits") - expected.numpy()).max() < 1e-5
    assert found.as_numpy("label").tolist() == expected.argmax(1).tolist()
    wanted = [triton.InferRequestedOutput("label", binary_data=binary)]
    found = client(server).infer("digits-2", rows(x, binary), outputs=wanted, request_id="7", model_version="1", **more)
    assert found.get_response()["id"] == "7"
    assert [entry["name"] for entry in found.get_response()["outputs"]] == ["label"]
    assert found.as_numpy("label").tolist() == expected.argmax(1).tolist()


def test_the_model_infer_finds_out_the_task_and_says_how_sure_it_is(server, learner, digits_run):
    expected = open_run(digits_run).tasks(None)["digits-2"].test
    x = expected.finish(expected.batch(np.arange(20))[0])
    for binary in (True, False):
        found = client(server).infer("infer", rows(x, binary))
        names = [name.decode() if isinstance(name, bytes) else name for name in found.as_numpy("task")]
        inferred = learner.predict(x, "infer")
        assert names == list(inferred.tasks)
        assert names.count("digits-2") >= 18
        assert found.as_numpy("label").tolist() == inferred.labels.tolist()
        assert np.allclose(found.as_numpy("sure"), inferred.confidence.numpy(), atol=1e-4)


def test_what_tritonclient_asks_wrongly_is_refused_with_a_reason(server):
    x = torch.randn(3, 64)
    for model, inputs, reason in (
        ("cats", rows(x), r"\[404\] There is no model 'cats'. The models are: digits-1, digits-2, infer."),
        ("digits-1", rows(x[:, :63].clone()), r'\[400\] "shape" is \[3, 63\]; this model reads \[-1, 64\]'),
        ("digits-1", rows(x / 0), r"\[400\] Model 'digits-1': the input in row 0 holds NaN or infinite values"),
        ("digits-1", rows(torch.randn(1025, 64)), r"\[413\] 1025 rows are too many"),
    ):
        with pytest.raises(InferenceServerException, match=reason):
            client(server).infer(model, inputs)


def test_a_thousand_wrong_requests_are_refused_and_the_server_lives_on(server, learner):
    wrong = list(load.malformed(1000, "digits-1", [64]))
    found = asyncio.run(load.refused(server, wrong))
    assert len({what for what, _, _ in found}) >= 60
    cut = {"a head without end", "an address without end"}  # may be closed while they are still being sent
    bad = [(what, status, text[:200]) for what, status, text in found if not 400 <= status < 500]
    assert [case for case in bad if case[1] or case[0] not in cut] == []
    told = [json.loads(text)["error"] for _, _, text in found if text.startswith("{")]
    assert len(told) > 800
    assert all(len(text) > 10 for text in told)
    x = torch.randn(2, 64)
    assert client(server).infer("digits-1", rows(x)).as_numpy("label").tolist() == learner.predict(x, "digits-1").tolist()


def test_hostile_clients_beside_good_ones_get_no_5xx_and_disturb_no_answer(digits_run):
    """A small dose of `python -m bench.faults --only requests`: every kind at least once."""
    outcome = requests.run(100, 0, digits_run)
    assert outcome.failures == []
    assert len({kind for kind, _ in outcome.counts}) >= 80
    assert outcome.notes["good_requests"] > 0


def test_every_client_of_several_is_answered_right_for_some_seconds(digits_run):
    """A small dose of `python -m bench.faults --only clients`."""
    outcome = clients.run(4, 0, digits_run)
    assert outcome.failures == []
    assert outcome.notes["requests"] > 4


def test_requests_of_many_clients_and_tasks_at_once_each_get_their_own_answer(server, learner):
    """Thirty threads, two tasks and rows of different numbers: answers are those of one after another."""
    generator = torch.Generator().manual_seed(1)
    questions = [(f"digits-{n % 2 + 1}", torch.randn(1 + n % 5, 64, generator=generator)) for n in range(300)]
    expected = [learner.logits(x, task) for task, x in questions]
    found = [None] * len(questions)

    def ask(first):
        mine = client(server)
        for number in range(first, len(questions), 30):
            task, x = questions[number]
            found[number] = mine.infer(task, rows(x)).as_numpy("logits")

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.abs(a - b.numpy()).max() < 1e-5 for a, b in zip(found, expected))


def test_load_from_another_process_is_answered_without_an_error(server):
    command = [sys.executable, load.__file__, str(server), "2", "8", "[64]", "digits-1", "digits-2"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert found["wrong"] == 0
    assert found["requests_per_second"] > 20


# -- batches ------------------------------------------------------------------------------------------------------------


def counted(learner, monkeypatch):
    """The tasks whose networks are asked, and with how many rows, as they come."""
    calls, logits = [], learner.logits
    monkeypatch.setattr(learner, "logits", lambda x, task: calls.append((task, len(x))) or logits(x, task))
    return calls


def test_what_comes_in_meanwhile_is_answered_together_every_task_in_one_pass(learner, monkeypatch):
    calls, go = counted(learner, monkeypatch), threading.Event()
    batcher = Batcher(learner, most=1000)
    batcher.call(lambda _: go.wait(10))
    x = torch.randn(40, 64)
    futures = [batcher.ask(f"digits-{n % 2 + 1}", x[n : n + 1]) for n in range(40)]
    go.set()
    labels = [int(future.result(10)["label"]) for future in futures]
    assert calls == [("digits-1", 20), ("digits-2", 20)]
    assert labels == learner.predict(x, [f"digits-{n % 2 + 1}" for n in range(40)]).tolist()
    batcher.close()


def test_a_batch_is_no_larger_than_allowed_and_what_was_given_up_is_not_asked(learner, monkeypatch):
    calls, go = counted(learner, monkeypatch), threading.Event()
    batcher = Batcher(learner, most=10)
    batcher.call(lambda _: go.wait(10))
    futures = [batcher.ask("digits-1", torch.randn(4, 64)) for _ in range(6)]
    assert futures[0].cancel()
    go.set()
    for future in futures[1:]:
        assert future.result(10)["logits"].shape == (4, 10)
    assert calls == [("digits-1", 8), ("digits-1", 12)]
    batcher.close()
    assert not batcher.alive


def test_what_was_asked_before_closing_is_answered(learner):
    batcher, go = Batcher(learner), threading.Event()
    batcher.call(lambda _: go.wait(10))
    future = batcher.ask("digits-1", torch.randn(2, 64))
    threading.Timer(0.3, go.set).start()
    batcher.close()
    assert future.result(1)["logits"].shape == (2, 10)


def test_a_wrong_question_does_not_spoil_others_of_the_same_task(learner):
    """They may be asked together, but one whose rows the network cannot take is answered alone."""
    batcher, go, x = Batcher(learner), threading.Event(), torch.randn(3, 64)
    batcher.call(lambda _: go.wait(10))
    right, wrong, other = (batcher.ask("digits-1", rows) for rows in (x[:1], torch.zeros(1, 63), x[1:]))
    go.set()
    with pytest.raises(Exception, match="63"):
        wrong.result(10)
    labels = [*right.result(10)["label"].tolist(), *other.result(10)["label"].tolist()]
    assert labels == learner.predict(x, "digits-1").tolist()
    batcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        batcher.ask("digits-1", x)


def test_one_task_has_all_cores_and_several_have_one_each(learner, monkeypatch):
    threads, logits = [], learner.logits
    monkeypatch.setattr(learner, "logits", lambda x, task: threads.append(torch.get_num_threads()) or logits(x, task))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        batcher, x = Batcher(learner), torch.randn(1, 64)
        for tasks_asked in (["digits-1", "digits-2"], ["digits-1"], ["digits-1", "digits-2"], ["digits-2"]):
            go = threading.Event()
            batcher.call(lambda _, go=go: go.wait(10))
            futures = [batcher.ask(task, x) for task in tasks_asked]
            go.set()
            for future in futures:
                future.result(10)
        batcher.close()
    finally:
        torch.set_num_threads(before)
    assert threads == [1, 1, 3, 1, 1, 3]


def test_a_question_that_fails_fails_alone_and_the_thread_lives_on(learner):
    batcher, x = Batcher(learner), torch.randn(1, 64)
    wrong, right = batcher.ask("cats", x), batcher.ask("digits-1", x)
    with pytest.raises(Exception, match="No such task: 'cats'"):
        wrong.result(10)
    assert right.result(10)["label"].tolist() == learner.predict(x, "digits-1").tolist()
    with pytest.raises(ZeroDivisionError):
        batcher.call(lambda _: 1 / 0).result(10)
    assert batcher.alive
    batcher.close()


# -- limits -------------------------------------------------------------------------------------------------------------


def test_words_that_a_network_does_not_know_are_refused_and_others_answered():
    learner = Learner(models.Text(), SPACE(variance=0.7), example_input=torch.zeros(1, 7, dtype=torch.int64))
    learner.learn(Task("words", tasks(learner.example, 1)[0]), QUICK)
    from spacecl.serving.app import Limits

    def ask(port, word):
        body = {"inputs": [{"name": "input", "shape": [1, 7], "datatype": "INT64", "data": [1, 2, 3, 4, 5, 6, word]}]}
        return fetched(port, "/v2/models/words/infer", json.dumps(body).encode())

    with inside(learner, Limits()) as (port, desk):
        go, found = threading.Event(), {}
        desk.batcher.call(lambda _: go.wait(10))
        threads = [threading.Thread(target=lambda w=w: found.update({w: ask(port, w)})) for w in (3, 99, 4)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        go.set()
        for thread in threads:
            thread.join()
    assert [found[word][0] for word in (3, 99, 4)] == [200, 400, 200]
    assert "does not know these inputs" in json.loads(found[99][2])["error"]


def test_answers_that_are_not_finite_are_refused(server, learner):
    large = 3e38 * learner.subnet("digits-1").hidden1.weight[0].sign()  # what the first neuron adds up
    body = {"inputs": [{"name": "input", "shape": [1, 64], "datatype": "FP32", "data": large.tolist()}]}
    status, _, text = fetched(server, "/v2/models/digits-1/infer", json.dumps(body).encode())
    assert status in (400, 422)
    assert "scale" in json.loads(text)["error"]
    status, _, text = fetched(server, "/v2/models/infer/infer", json.dumps(body).encode())
    outputs = {output["name"]: output["data"] for output in json.loads(text)["outputs"]}
    assert (status, outputs) == (200, {"task": [""], "label": [-1], "sure": [0]}), "it belongs to no task"


def test_models_are_found_by_any_name():
    learner = Learner(chain(), SPACE(variance=0.7), example_input=VECTOR)
    names = ["a", "a/ready", "a/versions/1", "a b/ä?#%", "infer/infer"]
    for name, data in zip(names, tasks(VECTOR, len(names))):
        learner.learn(Task(name, data), Recipe(epochs=1, batch_size=32))
    from spacecl.serving.app import Limits

    x = torch.randn(2, 6)
    with inside(learner, Limits()) as (port, _):
        for name in names:
            asked = client(port)
            assert asked.get_model_metadata(name)["name"] == name
            assert asked.is_model_ready(name)
            assert asked.infer(name, rows(x)).as_numpy("label").tolist() == learner.predict(x, name).tolist()
        assert client(port).get_model_metadata("a", "1")["name"] == "a/versions/1", "a name goes before a version"
        assert fetched(port, "/v2/models/a%20b/%C3%A4%3F%23%25/versions/2")[0] == 404
        assert fetched(port, "/v2/models/a", b"{}")[0] == 404


def send_often(connection, data, count, pause=0.0):
    for _ in range(count):
        connection.sendall(data)
        time.sleep(pause)


def test_a_connection_that_says_nothing_is_closed_in_time(digits_run):
    with serving(digits_run, "--timeout", "1") as port:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as silent,
            socket.create_connection(("127.0.0.1", port), timeout=20) as slow,
        ):
            slow.sendall(b"GET /v2 HTTP/1.1\r\nHost: ")
            assert silent.recv(100) == b""
            assert slow.recv(100) == b""
        with socket.create_connection(("127.0.0.1", port), timeout=20) as again:
            for _ in range(2):  # the second over the same connection
                again.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                answer = b""
                while not answer.endswith(b'{"live":true}'):
                    answer += again.recv(1000)
                assert answer.startswith(b"HTTP/1.1 200")
            again.sendall(b"GET /v2")
            assert again.recv(100) == b""
        for beginning in (
            b"POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n",
            b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as slow:  # answered, and sends on without end
                slow.sendall(beginning)
                assert slow.recv(1000).startswith(b"HTTP/1.1 ")
                with pytest.raises(ConnectionError):
                    send_often(slow, b"\r\n", 200, 0.1)
        with socket.socket() as deaf:  # asks on and reads nothing
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.settimeout(20)
            deaf.connect(("127.0.0.1", port))
            with pytest.raises(ConnectionError):
                send_often(deaf, b"GET /v2/models HTTP/1.1\r\nHost: x\r\n\r\n" * 50, 10_000)
        assert client(port).is_server_live()


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_more_connections_than_allowed_are_closed_and_the_others_served(learner):
    from spacecl.serving import app as serve

    with (
        inside(learner, serve.Limits(), http=serve._impatient(60.0, 10)) as (port, _),
        ExitStack() as stack,
    ):
        opened_to = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(20)]
        assert all(map(is_closed, opened_to[10:]))
        for connection in opened_to[:10]:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_the_bodies_of_all_requests_together_are_held_within_a_limit(learner):
    from spacecl.serving.service import Desk, Limits

    async def stream(size):
        yield bytes(size)

    async def ask():
        async with AsyncExitStack() as held:
            for _ in range(16):
                await held.enter_async_context(desk.body(stream(100), ""))
            with pytest.raises(RequestError, match="holds too many large requests") as refused:
                await held.enter_async_context(desk.body(stream(1), ""))
            assert refused.value.status == 503
        async with desk.body(stream(100), "") as body:
            assert desk.held == len(body) == 100

    desk = Desk(Batcher(learner), Limits(body=100))
    asyncio.run(ask())
    desk.close()
    assert desk.held == 0


def test_bodies_that_are_too_large_or_too_slow_are_refused_and_told_why(digits_run):
    with serving(digits_run, "--max-body", "1", "--timeout", "1") as port:
        path = "/v2/models/digits-1/infer"
        status, _, text = fetched(port, path, b" " * (3 * 2**20))
        assert (status, "1,048,576 bytes" in text.decode()) == (413, True)
        status, _, text = fetched(port, path, gzip.compress(b" " * (3 * 2**20)), **{"Content-Encoding": "gzip"})
        assert (status, "when it is unpacked" in text.decode()) == (413, True)
        status, _, text = fetched(port, path, gzip.compress(b"[1, 2]")[:-9], **{"Content-Encoding": "gzip"})
        assert (status, "ends too early" in text.decode()) == (400, True)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
            slow.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
            answer = slow.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 408")
        assert client(port).is_server_ready()


@contextmanager
def inside(learner, limits, watched=None, **options):
    """A server in this process, so that its thread can be held up."""
    import uvicorn

    from spacecl.serving import app as serve

    app = serve.application(learner, limits, watched)
    listening = serve._listening("127.0.0.1", 0)
    running = uvicorn.Server(uvicorn.Config(app, log_level="error", **options))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1], app.state.desk
    finally:
        running.should_exit = True
        thread.join()


def test_a_full_queue_and_a_slow_answer_are_told_and_the_server_lives_on(learner):
    from spacecl.serving.app import Limits

    body = json.dumps({"inputs": [{"name": "input", "shape": [1, 64], "datatype": "FP32", "data": [0.0] * 64}]}).encode()
    with inside(learner, Limits(queue=2, seconds=1.0)) as (port, desk):
        go = threading.Event()
        desk.batcher.call(lambda _: go.wait(20))
        found = []
        ask = lambda: found.append(fetched(port, "/v2/models/digits-1/infer", body))  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        go.set()
        texts = sorted(json.loads(text)["error"] for _, _, text in found)
        assert [status for status, _, _ in found] == [503] * 3
        assert all(headers["Retry-After"] == "1" for _, headers, _ in found)
        assert texts[0].startswith("2 requests are waiting already")
        assert texts[1:] == ["There was no answer within 1 s. Try again in a while."] * 2
        assert fetched(port, "/v2/models/digits-1/infer", body)[0] == 200


# -- the folder and the address -----------------------------------------------------------------------------------------


@contextmanager
def under_load(port, task, x, expected):
    """Two clients that ask on and on; gives a list with whether each answer was as it should be."""
    stop, found = threading.Event(), []

    def ask():
        mine = client(port)
        while not stop.is_set():
            found.append(np.allclose(mine.infer(task, rows(x)).as_numpy("logits"), expected, atol=1e-6))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def until_ready(port, task, seconds=60):
    until = time.monotonic() + seconds
    while not client(port).is_model_ready(task) and time.monotonic() < until:
        time.sleep(0.1)
    assert client(port).is_model_ready(task)


@pytest.mark.parametrize("grows", [False, True])
def test_new_tasks_are_taken_up_without_losing_a_request(tmp_path, grows):
    """Also over a moment in which the folder cannot be read, and where a larger network is traced anew meanwhile."""
    method = SPACE(variance=1.0, on_full="grow") if grows else SPACE(variance=0.7)
    learner = Learner(chain(), method, example_input=VECTOR)
    data, x = tasks(VECTOR, 2), torch.randn(3, 6)
    learner.learn(Task("one", data[0]), QUICK)
    learner.save(tmp_path / "model")
    with serving(tmp_path / "model", "--watch", "--model", f"{models.__file__}:chain") as port:
        with under_load(port, "one", x, learner.logits(x, "one").numpy()) as found:
            manifest = tmp_path / "model" / "spacecl.json"
            whole = manifest.read_bytes()
            manifest.write_bytes(whole[:100])
            time.sleep(1.5)
            manifest.write_bytes(whole)
            assert learner.learn(Task("two", data[1]), QUICK).grown is grows
            learner.save(tmp_path / "model")
            until_ready(port, "two")
        assert client(port).infer("two", rows(x)).as_numpy("label").tolist() == learner.predict(x, "two").tolist()
    assert len(found) > 50
    assert all(found), "every request was answered, and as before"


def test_a_folder_that_no_longer_fits_is_told_once_and_the_old_tasks_are_served_on(tmp_path, capfd):
    """Another method, a smaller network, and one with other tensors; then the right one again."""
    from spacecl.serving.app import Limits

    data = tasks(VECTOR, 2)
    learner = Learner(chain(), SPACE(variance=1.0, on_full="grow"), example_input=VECTOR)
    learner.learn(Task("one", data[0]), QUICK)
    learner.save(tmp_path)
    learner.learn(Task("two", data[1]), QUICK)
    assert learner.records["two"].grown
    other = Learner(chain(), EWC(), example_input=VECTOR)
    other.learn(Task("other", data[0]), QUICK)
    with pytest.raises(StoreError, match="fewer channels"):
        learner.reload(tmp_path)
    other.save(tmp_path)
    with pytest.raises(StoreError, match="was learned with EWC, not with SPACE"):
        learner.reload(tmp_path)
    changed = Learner(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)), example_input=VECTOR)
    changed.learn(Task("small", data[0]), QUICK)
    changed.save(tmp_path)
    with pytest.raises(StoreError, match=r"another architecture: 0\.bias is float32 \[5\] there"):
        learner.reload(tmp_path)
    folder = open_run(tmp_path, f"{models.__file__}:chain")
    with inside(learner, Limits(), folder) as (port, _):
        time.sleep(3.5)
        assert client(port).is_model_ready("two")
        assert not client(port).is_model_ready("small")
        assert capfd.readouterr().err.count("cannot be read") == 1
        learner.learn(Task("three", tasks(VECTOR, 3)[2]), QUICK)
        learner.save(tmp_path)
        until_ready(port, "three")


def test_what_could_not_be_read_is_tried_again_though_the_manifest_stays(tmp_path, monkeypatch):
    from spacecl.serving import app as serve

    monkeypatch.setattr(serve, "EVERY", 0.05)
    data = tasks(VECTOR, 2)
    learner = Learner(chain(), SPACE(variance=0.7), example_input=VECTOR)
    learner.learn(Task("one", data[0]), QUICK)
    learner.save(tmp_path)
    batcher = Batcher(Learner.load(tmp_path, chain()))

    async def watched():
        watching = asyncio.create_task(serve._watch(batcher, OpenRun(tmp_path, None)))
        await asyncio.sleep(0.1)
        learner.learn(Task("two", data[1]), QUICK)
        learner.save(tmp_path)
        file = tmp_path / store.read_manifest(tmp_path, dict)[1]["task 1"].file
        file.rename(tmp_path / "away")
        await asyncio.sleep(0.5)
        assert batcher.learner.tasks == ("one",)
        (tmp_path / "away").rename(file)
        await asyncio.sleep(1)
        watching.cancel()

    asyncio.run(watched())
    batcher.close()
    assert batcher.learner.tasks == ("one", "two")


def test_a_task_saved_between_loading_and_watching_is_taken_up(tmp_path):
    from spacecl.serving.app import Limits

    learner = Learner(chain(), SPACE(variance=0.7), example_input=VECTOR)
    data = tasks(VECTOR, 2)
    learner.learn(Task("one", data[0]), QUICK)
    learner.save(tmp_path)
    folder = open_run(tmp_path, f"{models.__file__}:chain")
    loaded = folder.learner()
    learner.learn(Task("two", data[1]), QUICK)
    learner.save(tmp_path)
    with inside(loaded, Limits(), folder) as (port, _):
        until_ready(port, "two")


def test_a_server_that_is_told_to_end_ends_well(digits_run):
    command = [sys.executable, "-m", "spacecl", "serve", str(digits_run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == "Stopped.\n"
    assert process.returncode == 0


def test_it_listens_to_this_machine_alone_and_says_what_is_wrong_with_an_address(digits_run, server):
    def said(*options):
        command = [sys.executable, "-m", "spacecl", "serve", str(digits_run), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    assert said("--port", str(server)) == (
        1,
        f"spacecl: Cannot listen at 127.0.0.1, port {server}: Address already in use. Give others with --host and --port.\n",
    )
    assert said("--port", "70000")[0] == 1
    assert "Cannot listen at no.such.host.invalid" in said("--host", "no.such.host.invalid")[1]
    other = next(info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET))
    if not other.startswith("127."):
        with pytest.raises(OSError, match=r"."), socket.create_connection((other, server), timeout=2):
            pass


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_other_machines_are_let_in_only_when_asked_and_with_a_warning(digits_run, monkeypatch, capsys, host, warned):
    import inspect

    import uvicorn

    from spacecl.serving import app as serve

    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: sockets[0].close())
    serve.run(open_run(digits_run), host, 0)
    assert ("other machines can reach this address" in capsys.readouterr().err) == warned
    assert inspect.signature(serve.run).parameters["host"].default == "127.0.0.1"


def test_without_the_extra_the_command_says_what_to_install(digits_run):
    code = "import sys; sys.modules['fastapi'] = None; from spacecl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "serve", str(digits_run)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert 'pip install "spacecl[serve]"' in done.stderr


# -- the page -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, digits_run):
    """A digit that task 1 was tested with, as a PNG, and a file that is none."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    test = open_run(digits_run).tasks(None)["digits-1"].test
    pixels = test.batch([3])[0][0, 0].numpy()
    Image.fromarray(pixels).save(folder / "digit.png")
    Image.fromarray(np.kron(pixels, np.ones((40, 40), np.uint8))).convert("RGB").save(folder / "large.jpg")
    (folder / "none.png").write_text("no picture")
    return folder


def test_a_picture_is_answered_by_every_task_as_the_learner_answers(server, learner, pictures, digits_run):
    status, _, text = fetched(server, "/picture", (pictures / "digit.png").read_bytes())
    found = json.loads(text)
    assert (status, found["width"], [entry["task"] for entry in found["tasks"]]) == (200, 8, ["digits-1", "digits-2"])
    for entry in found["tasks"]:
        test = open_run(digits_run).tasks(None)[entry["task"]].test
        shares = learner.logits(test.finish(test.batch([3])[0]), entry["task"])[0].softmax(0)
        assert entry["answers"][0]["class"] == str(int(shares.argmax()))
        assert entry["answers"][0]["share"] == pytest.approx(float(shares.max()), abs=1e-4)
        assert len(entry["answers"]) == 5
    assert sum(entry["like"] for entry in found["tasks"]) == pytest.approx(1)
    status, _, text = fetched(server, "/picture", (pictures / "none.png").read_bytes())
    assert (status, "no picture that can be read" in text.decode()) == (415, True)


def test_pictures_are_decoded_apart_from_the_thread_that_asks(learner, pictures, monkeypatch):
    """So that a large one does not hold others up; and once for all tasks that read the same shape."""
    from spacecl.serving import app as serve
    from spacecl.serving import service as desk

    seen, threads = desk.seen, []
    monkeypatch.setattr(desk, "seen", lambda *given: threads.append(threading.current_thread().name) or seen(*given))
    with inside(learner, serve.Limits()) as (port, _):
        assert fetched(port, "/picture", (pictures / "large.jpg").read_bytes())[0] == 200
    assert len(threads) == 1
    assert threads[0].startswith("spacecl-pictures")


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_unpacked(server):
    import io

    from PIL import Image

    for side in (6000, 20_000):  # Pillow itself refuses the second
        buffer = io.BytesIO()
        Image.new("1", (side, side)).save(buffer, "PNG")
        status, _, text = fetched(server, "/picture", buffer.getvalue())
        assert (status, "32,000,000 pixels" in text.decode()) == (413, True)


def test_the_task_that_a_picture_is_like_is_told(learner, digits_run):
    from spacecl.serving.service import _pictured

    for name in ("digits-1", "digits-2"):
        test = open_run(digits_run).tasks(None)[name].test
        found = _pictured(learner, {(1, 8, 8): test.batch([3])[0].numpy()})
        assert found["likely"] == max(found["tasks"], key=lambda entry: entry["like"])["task"]


def test_the_page_may_load_nothing_from_elsewhere(learner):
    from spacecl.serving.app import Limits

    with inside(learner, Limits()) as (port, _):
        assert fetched(port, "/")[1]["Content-Security-Policy"].startswith("default-src 'none'")


def test_tasks_taught_with_tensors_say_why_they_cannot_read_pictures(tmp_path):
    learner = Learner(chain(), SPACE(variance=0.7), example_input=VECTOR)
    learner.learn(Task("numbers", tasks(VECTOR, 1)[0]), QUICK)
    pixels = np.random.default_rng(0).integers(0, 255, (60, 1, 2, 3), dtype=np.uint8)
    learner.learn(Task("pictures", Images(pixels, np.arange(60) % 3, order=torch.arange(6))), QUICK)
    from spacecl.serving.service import _pictured

    found = _pictured(learner, {(1, 2, 3): pixels[:1]})
    assert "taught without spacecl.Images" in found["tasks"][0]["problem"]
    assert found["likely"] == "pictures"
    assert found["tasks"][1]["like"] == 1


def shown(browser):
    """The rows of the page's table, when it has been answered."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda b: "asking" not in b.find_element(By.ID, "hint").text)
    return [
        [cell.text for cell in row.find_elements(By.TAG_NAME, "td")]
        for row in browser.find_elements(By.CSS_SELECTOR, "tbody tr")
    ]


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_takes_a_picture_and_shows_every_tasks_answer(browser, server, pictures, width):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(f"http://127.0.0.1:{server}/")
    WebDriverWait(browser, 20).until(lambda b: "2 tasks: digits-1, digits-2." in b.find_element(By.ID, "about").text)
    browser.find_element(By.ID, "file").send_keys(str(pictures / "digit.png"))
    answers = json.loads(fetched(server, "/picture", (pictures / "digit.png").read_bytes())[2])["tasks"]
    found = shown(browser)
    assert [row[0].split(" ◂")[0] for row in found] == ["digits-1", "digits-2"]
    for row, entry in zip(found, answers):
        assert row[1].splitlines()[0] == entry["answers"][0]["class"]
        assert row[2] == f"{100 * entry['answers'][0]['share']:.1f} %"
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


def test_a_dropped_picture_is_asked_and_what_is_none_is_told(browser, server, pictures):
    from selenium.webdriver.common.by import By

    browser.get(f"http://127.0.0.1:{server}/")
    drop = """
        const bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0)), data = new DataTransfer();
        data.items.add(new File([bytes], arguments[1]));
        const event = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
        document.getElementById("drop").dispatchEvent(event);
    """
    for name in ("large.jpg", "none.png"):
        browser.execute_script(drop, base64.b64encode((pictures / name).read_bytes()).decode(), name)
        found = shown(browser)
        if name == "large.jpg":
            assert len(found) == 2
            assert browser.find_element(By.ID, "hint").text.startswith("large.jpg, 320 \N{MULTIPLICATION SIGN} 320")
    assert "no picture that can be read" in browser.find_element(By.ID, "problem").text
    assert not browser.find_element(By.ID, "answers").is_displayed()


# -- the protocol's small print -----------------------------------------------------------------------------------------


def asked(document, tail=b"", length=None, dtype="<f4", most=10):
    body = json.dumps(document).encode()
    header = str(len(body)) if tail and length is None else length
    return protocol.read(body + tail, header, [2], np.dtype(dtype), ["logits", "label"], most)


def one(**more):
    return {"inputs": [{"name": "input", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4], **more}]}


def test_rows_are_read_flat_or_nested_and_in_other_precisions():
    assert asked(one()).rows.tolist() == [[1, 2], [3, 4]]
    assert asked(one(data=[[1, 2], [3, 4.5]])).rows.tolist() == [[1, 2], [3, 4.5]]
    tail = np.array([[1, 2], [3, 4]], "<f8").tobytes()
    found = asked(one(datatype="FP64", data=None, parameters={"binary_data_size": 32}), tail)
    assert (found.rows.dtype, found.rows.tolist()) == (np.float32, [[1, 2], [3, 4]])
    whole = {"inputs": [{"name": "input", "datatype": "INT32", "shape": [1, 2], "data": [5, 6]}]}
    assert asked(whole, dtype="<i8").rows.dtype == np.int64


@pytest.mark.parametrize("length", ["0" * 5000 + "5", "1" * 5000, "-1", "1_0", "\u0664"])
def test_a_header_that_is_no_length_is_refused(length):
    with pytest.raises(RequestError, match=r"Inference-Header-Content-Length is .*, but the body has"):
        asked(one(), length=length)


def test_whole_numbers_that_the_model_cannot_hold_are_refused():
    head = {"inputs": [{"name": "input", "datatype": "INT64", "shape": [1, 2], "parameters": {"binary_data_size": 16}}]}
    assert asked(head, np.array([1, -1], "<i8").tobytes(), dtype="<i4").rows.tolist() == [[1, -1]]
    with pytest.raises(RequestError, match="beyond the range of INT32"):
        asked(head, np.array([1, 2**32 + 1], "<i8").tobytes(), dtype="<i4")


def test_binary_values_beyond_the_models_precision_are_infinite_and_not_warned_about():
    head = {"inputs": [{"name": "input", "datatype": "FP64", "shape": [1, 2], "parameters": {"binary_data_size": 16}}]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asked(head, np.array([1, 1e300], "<f8").tobytes()).rows.tolist() == [[1, np.inf]]


def test_data_after_the_end_of_a_compressed_body_is_refused():
    with pytest.raises(RequestError, match="21 bytes follow the compressed body"):
        protocol.unpacked(gzip.compress(b"{}") + gzip.compress(b" "), "gzip", 1000)


def test_binary_data_that_no_input_speaks_of_is_refused():
    with pytest.raises(RequestError, match='An input needs "data", or'):
        asked(one(), tail=b"1234")


def test_the_usual_form_holds_for_outputs_that_say_nothing_and_none_is_given_twice():
    found = asked({**one(), "parameters": {"binary_data_output": True}, "outputs": [{"name": "label"}, {"name": "label"}]})
    assert found.binary == {"label"}
    assert found.outputs == ("label",)


def test_what_a_body_unpacks_to_is_never_held_beyond_the_limit():
    body = zlib.compress(bytes(20 * 2**20))
    tracemalloc.start()
    with pytest.raises(RequestError, match="when it is unpacked"):
        protocol.unpacked(body, "deflate", 1000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2**20


def test_outputs_are_all_or_those_asked_for_as_json_or_binary():
    assert asked(one()).outputs == ("logits", "label")
    assert asked({**one(), "parameters": {"binary_data_output": True}}).binary == {"logits", "label"}
    listed = [{"name": "label", "parameters": {"binary_data": True}}]
    found = asked({**one(), "outputs": listed})
    assert (found.outputs, found.binary) == (("label",), {"label"})
    body, headers = protocol.answer("m", found, {"label": np.array([7, 8])})
    cut = int(headers[protocol.HEADER])
    assert json.loads(body[:cut])["outputs"][0] == {
        "name": "label",
        "datatype": "INT64",
        "shape": [2],
        "parameters": {"binary_data_size": 16},
    }
    assert np.frombuffer(body[cut:], "<i8").tolist() == [7, 8]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (one(data=[1, 2, 3]), "must have 4 numbers"),
        (one(data=[1, 2, 3, True]), "must have 4 numbers"),
        (one(data=[[1, 2], [3]]), "must have 4 numbers"),
        (one(data="1234"), "must have 4 numbers"),
        (one(shape=[2.0, 2]), "this model reads"),
        (one(shape=[11, 2]), "11 rows are too many"),
        (one(datatype="INT64"), "reads FP16, FP32, FP64"),
        (one(parameters={"binary_data_size": 16}), "0 follow the JSON"),
        (one(parameters=[]) | {"parameters": [1]}, '"parameters" must be an object; got'),
        (one(parameters=[1]), '"parameters" must be an object; got'),
        (one(shape=[10**400, 2]), "rows are too many"),
        ({**one(), "outputs": [{"name": "scores"}]}, "The outputs are: logits, label"),
    ],
)
def test_requests_that_do_not_fit_are_refused_with_what_would(document, reason):
    with pytest.raises(RequestError, match=reason):
        asked(document)
