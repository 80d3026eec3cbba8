"""Batches: queries that arrive together run together, fail alone, and use the cores as they should."""

import threading

import pytest
import torch

from spacecl.serving.batcher import Batcher


@pytest.fixture
def calls(digits_learner, monkeypatch):
    """The tasks whose networks run, with the numbers of rows, in order."""
    calls, logits = [], digits_learner.logits
    monkeypatch.setattr(digits_learner, "logits", lambda x, task: calls.append((task, len(x))) or logits(x, task))
    return calls


@pytest.fixture
def make_batcher(digits_learner):
    """Make a batcher that is busy until the returned event is set; it is closed at the end."""
    batchers, events = [], []

    def make(**options):
        batcher, go = Batcher(digits_learner, **options), threading.Event()
        batchers.append(batcher)
        events.append(go)
        batcher.call(lambda _: go.wait(10))
        return batcher, go

    yield make
    for batcher, go in zip(batchers, events):
        go.set()
        batcher.close()


def test_queries_that_arrive_meanwhile_run_together_with_one_pass_per_task(digits_learner, calls, make_batcher):
    batcher, go = make_batcher(max_rows=1000)
    x = torch.randn(40, 64)
    futures = [batcher.submit(f"digits-{n % 2 + 1}", x[n : n + 1]) for n in range(40)]
    go.set()
    labels = [int(future.result(10)["label"]) for future in futures]
    assert calls == [("digits-1", 20), ("digits-2", 20)]
    assert labels == digits_learner.predict(x, [f"digits-{n % 2 + 1}" for n in range(40)]).tolist()


def test_a_batch_stops_at_the_limit_and_cancelled_queries_do_not_run(calls, make_batcher):
    batcher, go = make_batcher(max_rows=10)
    futures = [batcher.submit("digits-1", torch.randn(4, 64)) for _ in range(6)]
    assert futures[0].cancel()
    go.set()
    for future in futures[1:]:
        assert future.result(10)["logits"].shape == (4, 10)
    assert calls == [("digits-1", 8), ("digits-1", 12)]
    batcher.close()
    assert not batcher.alive


def test_queries_submitted_before_closing_are_answered(make_batcher):
    batcher, go = make_batcher()
    future = batcher.submit("digits-1", torch.randn(2, 64))
    threading.Timer(0.1, go.set).start()
    batcher.close()
    assert future.result(1)["logits"].shape == (2, 10)


def test_a_faulty_query_does_not_spoil_others_of_the_same_task(digits_learner, make_batcher):
    (batcher, go), x = make_batcher(), torch.randn(3, 64)
    first, faulty, last = (batcher.submit("digits-1", rows) for rows in (x[:1], torch.zeros(1, 63), x[1:]))
    go.set()
    with pytest.raises(Exception, match="63"):
        faulty.result(10)
    labels = [*first.result(10)["label"].tolist(), *last.result(10)["label"].tolist()]
    assert labels == digits_learner.predict(x, "digits-1").tolist()
    batcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        batcher.submit("digits-1", x)


def test_one_task_uses_all_cores_and_several_tasks_one_each(digits_learner, monkeypatch):
    threads, logits = [], digits_learner.logits
    monkeypatch.setattr(digits_learner, "logits", lambda x, task: threads.append(torch.get_num_threads()) or logits(x, task))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        batcher, x = Batcher(digits_learner), torch.randn(1, 64)
        for tasks in (["digits-1", "digits-2"], ["digits-1"], ["digits-1", "digits-2"], ["digits-2"]):
            go = threading.Event()
            batcher.call(lambda _, go=go: go.wait(10))
            futures = [batcher.submit(task, x) for task in tasks]
            go.set()
            for future in futures:
                future.result(10)
        batcher.close()
    finally:
        torch.set_num_threads(before)
    assert threads == [1, 1, 3, 1, 1, 3]


def test_a_query_that_fails_leaves_the_thread_alive(digits_learner, make_batcher):
    (batcher, go), x = make_batcher(), torch.randn(1, 64)
    go.set()
    faulty, right = batcher.submit("cats", x), batcher.submit("digits-1", x)
    with pytest.raises(Exception, match="No such task: 'cats'"):
        faulty.result(10)
    assert right.result(10)["label"].tolist() == digits_learner.predict(x, "digits-1").tolist()
    with pytest.raises(ZeroDivisionError):
        batcher.call(lambda _: 1 / 0).result(10)
    assert batcher.alive
