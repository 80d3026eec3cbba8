"""Queries of many callers, about many tasks, run together in batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ..learner import INFER, Learner
from ..learning.objective import ANSWERS
from ..structure.calling import Inputs, concatenate_rows, count_rows

Outputs = dict[str, Tensor | list[str]]  # by name, each with one entry per row
Result = TypeVar("Result")


def _do_nothing() -> None:
    """Stands for an empty queue."""


@dataclass(frozen=True)
class Query:
    """Rows for one task, or for task inference (`INFER`), and the future that receives the outputs."""

    task: str
    rows: Inputs
    future: Future[Outputs]


Job = Query | Callable[[], None]


class Batcher:
    """A thread that runs the learner on batches of queries.

    All queries that arrived while the thread was busy form the next batch, with one forward pass per task. A query never
    waits for others to join it: on an idle server it runs at once. Passes of several tasks run in parallel, one core each.

    Parameters
    ----------
    learner : the learner to run; `replace_learner` exchanges it.
    max_rows : a batch takes no further queries once it has this many rows.
    """

    def __init__(self, learner: Learner, max_rows: int = 1024):
        self.learner, self.max_rows = learner, max_rows
        self.batches = 0  # that were run
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._cores, self._closed = torch.get_num_threads(), False
        self._pool = ThreadPoolExecutor(self._cores, "spacecl-network", torch.set_num_threads, (1,))
        self._thread = threading.Thread(target=self._work, name="spacecl-batcher", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    def submit(self, task: str, rows: Inputs) -> Future[Outputs]:
        """Queue rows for a task's network, or for task inference with the task `INFER`."""
        future: Future[Outputs] = Future()
        self._put(Query(task, rows, future))
        return future

    def call(self, function: Callable[[Learner], Result]) -> Future[Result]:
        """Queue any other work on the learner; it runs between two batches."""
        future: Future[Result] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(self.learner))
                except Exception as error:
                    future.set_exception(error)

        self._put(run)
        return future

    def replace_learner(self, learner: Learner) -> Future[None]:
        """Use another learner from now on; queries that were submitted earlier run on the old one."""
        return self.call(lambda _: setattr(self, "learner", learner))

    def close(self) -> None:
        """Finish what is in the queue, and stop."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._pool.shutdown()

    def _put(self, job: Job) -> None:
        if self._closed:
            raise RuntimeError("This batcher is closed.")
        self._queue.put(job)

    def _work(self) -> None:
        torch.set_num_threads(self._cores)  # of this thread; those of the pool have one each
        torch.get_num_threads()  # read on a thread's first use; later it would be what the pool has set
        while (job := self._queue.get()) is not None:
            batch: list[Query] = []
            rows = 0
            while isinstance(job, Query):
                batch.append(job)
                rows += count_rows(job.rows)
                job = _do_nothing if rows >= self.max_rows else self._next_job()
            self._run_batch(batch)
            if job is None:
                return
            job()

    def _next_job(self) -> Job | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return _do_nothing

    def _run_batch(self, batch: list[Query]) -> None:
        by_task: dict[str, list[Query]] = {}
        self.batches += bool(batch)
        for query in batch:
            if query.future.set_running_or_notify_cancel():  # otherwise the caller has given up
                by_task.setdefault(query.task, []).append(query)
        if len(by_task) == 1:
            _run_queries(self.learner, *by_task.popitem())
        else:
            list(self._pool.map(lambda group: _run_queries(self.learner, *group), by_task.items()))


def _run_queries(learner: Learner, task: str, queries: list[Query]) -> None:
    """Run all queries of a task in one pass. If the pass fails, run them one by one: only the faulty ones fail."""
    try:
        outputs = _compute_outputs(learner, task, concatenate_rows([query.rows for query in queries]))
    except Exception as error:
        if len(queries) == 1:
            queries[0].future.set_exception(error)
        else:
            for query in queries:
                _run_queries(learner, task, [query])
        return
    start = 0
    for query in queries:
        end = start + count_rows(query.rows)
        query.future.set_result({name: values[start:end] for name, values in outputs.items()})
        start = end


def _compute_outputs(learner: Learner, task: str, rows: Inputs) -> Outputs:
    if task != INFER:
        outputs = learner.logits(rows, task)
        kind = learner.records[task].target_kind
        if kind == "values":
            return {"values": outputs}
        if kind == "labels":
            return {"logits": outputs, "probability": outputs.sigmoid(), "label": ANSWERS[kind].predict(outputs)}
        return {"logits": outputs, "label": ANSWERS[kind].predict(outputs)}
    prediction = learner.predict(rows, INFER)
    classes = {name for name, record in learner.records.items() if record.target_kind == "classes"}
    labels = [int(label) if task in classes else -1 for task, label in zip(prediction.tasks, prediction.labels)]  # type: ignore[arg-type]
    return {
        "task": [name or "" for name in prediction.tasks],
        "label": torch.tensor(labels, dtype=torch.int64),
        "confidence": prediction.confidence,
    }
