"""Questions of many callers, about many tasks, answered together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..learner import INFER, Learner

Answer = dict[str, Any]
Result = TypeVar("Result")


def _nothing() -> None:
    """Stands for an empty queue."""


@dataclass(frozen=True)
class Question:
    """Rows of one task, or of tasks to be found out, and where the answer goes."""

    task: str
    rows: Tensor
    future: Future[Answer]


class Batcher:
    """A thread that asks the learner. What has come in while it was busy is answered next, every task in one pass.

    Nothing waits for company: alone, a question is asked at once. Passes of several tasks run side by side, a core each.
    """

    def __init__(self, learner: Learner, most: int = 1024):
        self.learner, self.most = learner, most
        self._queue: queue.SimpleQueue[Question | Callable[[], None] | None] = queue.SimpleQueue()
        self._cores, self._closed = torch.get_num_threads(), False
        self._pool = ThreadPoolExecutor(self._cores, "spacecl-network", torch.set_num_threads, (1,))
        self._thread = threading.Thread(target=self._work, name="spacecl-batcher", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._closed

    def ask(self, task: str, rows: Tensor) -> Future[Answer]:
        """Ask about some rows; the answer is a dictionary of tensors and lists, with an entry for each row."""
        future: Future[Answer] = Future()
        self._put(Question(task, rows, future))
        return future

    def call(self, work: Callable[[Learner], Result]) -> Future[Result]:
        """Do something else with the learner, between two batches."""
        future: Future[Result] = Future()

        def done() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(self.learner))
                except Exception as error:
                    future.set_exception(error)

        self._put(done)
        return future

    def exchange(self, learner: Learner) -> Future[None]:
        """Put another learner in the place of this one; what was asked before is answered by the old."""
        return self.call(lambda _: setattr(self, "learner", learner))

    def close(self) -> None:
        """Answer what is there, and stop."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._pool.shutdown()

    def _put(self, waiting: Question | Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError("This batcher is closed.")
        self._queue.put(waiting)

    def _work(self) -> None:
        torch.set_num_threads(self._cores)  # of this thread; those of the pool have one each
        torch.get_num_threads()  # noted when a thread first asks; later it would be what the pool has set
        while (waiting := self._queue.get()) is not None:
            batch: list[Question] = []
            rows = 0
            while isinstance(waiting, Question):
                batch.append(waiting)
                rows += len(waiting.rows)
                waiting = _nothing if rows >= self.most else self._next()
            self._answer(batch)
            if waiting is None:
                return
            waiting()

    def _next(self) -> Question | Callable[[], None] | None:
        try:
            return self._queue.get_nowait()
        except queue.Empty:
            return _nothing

    def _answer(self, batch: list[Question]) -> None:
        by_task: dict[str, list[Question]] = {}
        for question in batch:
            if question.future.set_running_or_notify_cancel():  # else nobody waits for it any more
                by_task.setdefault(question.task, []).append(question)
        if len(by_task) == 1:
            _answer_task(self.learner, *by_task.popitem())
        else:
            list(self._pool.map(lambda group: _answer_task(self.learner, *group), by_task.items()))


def _answer_task(learner: Learner, task: str, questions: list[Question]) -> None:
    """Ask about the rows of all questions of a task at once, and give each its own; one that cannot be asked fails alone."""
    try:
        found = _asked(learner, task, torch.cat([question.rows for question in questions]))
    except Exception as error:
        if len(questions) == 1:
            questions[0].future.set_exception(error)
        else:
            for question in questions:
                _answer_task(learner, task, [question])
        return
    start = 0
    for question in questions:
        end = start + len(question.rows)
        question.future.set_result({name: values[start:end] for name, values in found.items()})
        start = end


def _asked(learner: Learner, task: str, rows: Tensor) -> Answer:
    """All that there is to say of some rows, an entry for each."""
    if task != INFER:
        logits = learner.logits(rows, task)
        return {"logits": logits, "label": logits.argmax(1)}
    found = learner.predict(rows, INFER)
    return {"task": [name or "" for name in found.tasks], "label": found.labels, "sure": found.confidence}
