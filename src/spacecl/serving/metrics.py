"""What a server has done, as numbers in Prometheus's text format."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
MODEL = "spacecl.model"  # where a request's scope has the model that it is for

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counts of requests and rows, and a histogram of the time to a response, by model.

    Labels have names of models that exist and status codes, nothing that a client chooses.
    """

    def __init__(self) -> None:
        self.started = time.time()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._rows: Counter[str] = Counter()
        self._buckets: dict[str, list[int]] = {}  # of each bucket alone; the last has what took longer than all bounds
        self._seconds: Counter[str] = Counter()

    def count_response(self, model: str, status: int, seconds: float) -> None:
        """Count a response; `model` is empty for requests that are for none."""
        self._requests[model, status] += 1
        if model:
            self._buckets.setdefault(model, [0] * (len(BUCKETS) + 1))[bisect_left(BUCKETS, seconds)] += 1
            self._seconds[model] += seconds  # type: ignore[assignment]

    def count_rows(self, model: str, rows: int) -> None:
        """Count the rows of a request that a model has answered."""
        self._rows[model] += rows

    def format(self, gauges: Mapping[str, tuple[str, float]], counters: Mapping[str, tuple[str, float]]) -> str:
        """Everything in the text format, with further metrics by name: a help text and the value."""
        lines: list[str] = []
        lines += _head("spacecl_requests_total", "counter", "HTTP requests that were answered, by model and status code.")
        for (model, status), count in sorted(self._requests.items()):
            lines.append(_sample("spacecl_requests_total", (("model", model), ("code", str(status))), count))
        lines += _head("spacecl_rows_total", "counter", "Rows that were answered, by model.")
        lines += [_sample("spacecl_rows_total", (("model", model),), count) for model, count in sorted(self._rows.items())]
        lines += _head("spacecl_request_seconds", "histogram", "Seconds from a request's head to its response, by model.")
        for model, counts in sorted(self._buckets.items()):
            lines += self._format_histogram(model, counts)
        for kind, metrics in (("gauge", gauges), ("counter", counters)):
            for name, (text, value) in metrics.items():
                lines += [*_head(name, kind, text), _sample(name, (), value)]
        return "\n".join(lines) + "\n"

    def _format_histogram(self, model: str, counts: list[int]) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts):
            total += count
            yield _sample("spacecl_request_seconds_bucket", (("model", model), ("le", bound)), total)
        yield _sample("spacecl_request_seconds_sum", (("model", model),), self._seconds[model])
        yield _sample("spacecl_request_seconds_count", (("model", model),), total)


class CountResponses:
    """ASGI middleware that counts every response."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status, start = 500, time.perf_counter()  # an error that is not handled becomes a 500 further out

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_look)
        finally:
            self.metrics.count_response(scope.get(MODEL, ""), status, time.perf_counter() - start)


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
    return f"{name}{{{inside}}} {value!r}" if labels else f"{name} {value!r}"


def _escape(text: str) -> str:
    """A label's value as the format wants it; a lone surrogate, which UTF-8 cannot hold, becomes a question mark."""
    text = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return text.encode(errors="replace").decode()
