"""A folder that changes while it is served: new tasks are taken up, and no request is lost."""

import asyncio
import signal
import threading
import time
from contextlib import contextmanager

import models
import numpy as np
import pytest
import torch
from faults.server_process import start_server
from models import VECTOR, chain, tasks
from servers import QUICK, join, make_client, make_input, run_in_thread, run_threads, wait_until

from spacecl import EWC, SPACE, Learner, StoreError, Task, store
from spacecl.runs.open_run import OpenRun, open_run
from spacecl.serving import watch as watch_module
from spacecl.serving.batcher import Batcher

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")
NETWORK = f"{models.__file__}:chain"


@pytest.fixture(autouse=True)
def _watch_closely(monkeypatch):
    monkeypatch.setattr(watch_module, "SECONDS", 0.05)


def save_one_task(folder, method=None):
    learner = Learner(chain(), method or SPACE(variance=0.7), example_input=VECTOR)
    learner.learn(Task("one", tasks(VECTOR, 1)[0]), QUICK)
    learner.save(folder)
    return learner


def add_task(learner, folder, name="two"):
    record = learner.learn(Task(name, tasks(VECTOR, 2)[1]), QUICK)
    learner.save(folder)
    return record


@contextmanager
def query_constantly(port, task, x, expected):
    """Two clients that send one query after another; gives a list with whether each response was right."""
    stop, results = threading.Event(), []

    def query():
        client = make_client(port)
        while not stop.is_set():
            results.append(np.allclose(client.infer(task, make_input(x)).as_numpy("logits"), expected, atol=1e-6))

    threads = run_threads([query, query])
    try:
        yield results
    finally:
        stop.set()
        join(threads)


@pytest.mark.parametrize("grows", [False, True])
def test_new_tasks_are_served_without_losing_a_request(tmp_path, capfd, grows):
    """Also when the folder cannot be read for a moment, and when a larger network has to be traced again."""
    learner = save_one_task(tmp_path, SPACE(variance=1.0, on_full="grow") if grows else SPACE(variance=0.7))
    x, manifest, errors = torch.randn(3, 6), tmp_path / "spacecl.json", []

    def is_reported():
        errors.append(capfd.readouterr().err)
        return "cannot be read" in "".join(errors)

    folder = open_run(tmp_path, NETWORK)
    with run_in_thread(folder.learner(), watched=folder) as (port, _):
        with query_constantly(port, "one", x, learner.logits(x, "one").numpy()) as results:
            content = manifest.read_bytes()
            manifest.write_bytes(content[:100])
            wait_until(is_reported)
            manifest.write_bytes(content)
            assert add_task(learner, tmp_path).grown is grows
            wait_until(lambda: make_client(port).is_model_ready("two"))
            wait_until(lambda: len(results) > 50)
        assert make_client(port).infer("two", make_input(x)).as_numpy("label").tolist() == learner.predict(x, "two").tolist()
    assert all(results), "every request was answered, and as before"


def test_a_process_watches_its_folder_and_stops_when_terminated(tmp_path):
    learner = save_one_task(tmp_path)
    with start_server(tmp_path, "--watch", "--model", NETWORK, stop=signal.SIGTERM) as server:
        assert not make_client(server.port).is_model_ready("two")
        add_task(learner, tmp_path)
        wait_until(lambda: make_client(server.port).is_model_ready("two"))


def test_a_folder_that_no_longer_fits_is_reported_once_and_the_old_tasks_stay(tmp_path, capfd):
    """Another method, a smaller network, and one with other tensors; then the right one again."""
    data = tasks(VECTOR, 2)
    learner = save_one_task(tmp_path, SPACE(variance=1.0, on_full="grow"))
    assert learner.learn(Task("two", data[1]), QUICK).grown
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
    with run_in_thread(learner, watched=open_run(tmp_path, NETWORK)) as (port, _):
        time.sleep(0.5)  # ten checks
        assert make_client(port).is_model_ready("two")
        assert not make_client(port).is_model_ready("small")
        assert capfd.readouterr().err.count("cannot be read") == 1
        add_task(learner, tmp_path, "three")
        wait_until(lambda: make_client(port).is_model_ready("three"))


def test_a_folder_that_could_not_be_read_is_tried_again_although_its_manifest_stays(tmp_path):
    learner = save_one_task(tmp_path)
    batcher = Batcher(Learner.load(tmp_path, chain()))

    async def watch():
        watching = asyncio.create_task(watch_module.watch(batcher, OpenRun(tmp_path, None)))
        await asyncio.sleep(0.1)
        add_task(learner, tmp_path)
        file = tmp_path / store.read_manifest(tmp_path, dict)[1]["task 1"].file
        file.rename(tmp_path / "away")
        await asyncio.sleep(0.3)
        assert batcher.learner.tasks == ("one",)
        (tmp_path / "away").rename(file)
        while batcher.learner.tasks == ("one",):
            await asyncio.sleep(0.02)
        watching.cancel()

    asyncio.run(asyncio.wait_for(watch(), 60))
    batcher.close()
    assert batcher.learner.tasks == ("one", "two")


def test_a_task_saved_between_loading_and_watching_is_served(tmp_path):
    learner = save_one_task(tmp_path)
    folder = open_run(tmp_path, NETWORK)
    old = folder.learner()
    add_task(learner, tmp_path)
    with run_in_thread(old, watched=folder) as (port, _):
        wait_until(lambda: make_client(port).is_model_ready("two"))
