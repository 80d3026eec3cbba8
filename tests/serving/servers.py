"""What the tests of the server share: a server in this process, and clients."""

import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import tritonclient.http as triton

from spacecl import Recipe
from spacecl.serving.app import build_app
from spacecl.serving.server import make_server, open_listener
from spacecl.serving.service import Limits

QUICK = Recipe(epochs=2, batch_size=32)


@contextmanager
def run_in_thread(learner, limits=None, watched=None, max_connections=None, tokens=()):
    """Run a server in this process, so that tests can reach inside; give its port and its service."""
    limits = limits or Limits()
    app = build_app(learner, limits, watched, tokens)
    listener = open_listener("127.0.0.1", 0)
    server = make_server(app, limits)
    if max_connections is not None:
        server.config.http.max_connections = max_connections
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1], app.state.service
    finally:
        server.should_exit = True
        thread.join()


def make_client(port):
    return triton.InferenceServerClient(f"127.0.0.1:{port}")


def make_input(x, binary=True):
    tensor = triton.InferInput("input", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x.numpy(), binary_data=binary)
    return [tensor]


def make_body(values, datatype="FP32"):
    """The JSON of a request with one row."""
    entry = {"name": "input", "shape": [1, len(values)], "datatype": datatype, "data": list(values)}
    return json.dumps({"inputs": [entry]}).encode()


def fetch(port, path, data=None, **headers):
    """The status, the headers and the body of a response."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def run_threads(functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    return threads


def join(threads):
    for thread in threads:
        thread.join()
