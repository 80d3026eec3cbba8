"""Read, validate, count and time requests, and run the learner on them. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..data.inputs import check_input
from ..errors import SpaceError, TaskError
from ..export.formats import name_output
from ..learner import INFER, Learner
from ..structure.calling import INPUT, Inputs, count_rows, list_tensors, name_tensors
from . import pictures
from .batcher import Batcher, Outputs
from .metrics import Metrics
from .open_inference import (
    VERSION,
    RequestError,
    build_response,
    decompress,
    get_datatype,
    parse_request,
    shorten,
)

ANY_TASK = "any-task"  # the model that infers the task first; `INFER` is its old name
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes
    ----------
    body : largest body of a request in bytes, also when decompressed.
    rows : largest number of rows in a request, and of a batch.
    queue : largest number of requests that wait for the networks.
    seconds : time for a body to arrive, and for a result to be ready.
    """

    body: int = 16 * 2**20
    rows: int = 1024
    queue: int = 256
    seconds: float = 10.0

    @property
    def all_bodies(self) -> int:
        """Bytes of all bodies together that are in memory at a time: sixteen of the largest."""
        return 16 * self.body


class TensorMetadata(TypedDict):
    """An input or output of a model; -1 in the shape stands for the number of rows."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(TypedDict):
    """A model as the protocol describes it; `parameters` has what the protocol has no field for."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, Any]


class Service:
    """The models of a server: every task, and one that infers the task.

    Parameters
    ----------
    batcher : runs the learner; `close` closes it, too.
    limits : what requests may take.
    """

    def __init__(self, batcher: Batcher, limits: Limits):
        self.batcher, self.limits = batcher, limits
        self.metrics = Metrics()
        self.waiting = 0  # requests that wait for a result
        self.body_bytes = 0  # of all requests that are being served
        self._decoder = ThreadPoolExecutor(1, "spacecl-pictures")  # one large picture at a time

    @property
    def learner(self) -> Learner:
        return self.batcher.learner

    @property
    def models(self) -> list[str]:
        """The names of all models. A task called `any-task` is served as that task, and task inference as `infer`."""
        return [*self.learner.tasks, INFER if ANY_TASK in self.learner.tasks else ANY_TASK]

    def has_model(self, name: str) -> bool:
        return name in self.models or name == INFER

    def find_model(self, path: str, suffix: str = "") -> str:
        """Return the model that a path names, with or without a version, before the suffix."""
        if not path.endswith(suffix):
            raise RequestError(f"There is nothing at {shorten(path)!r}; send queries to a model's name and {suffix}.", 404)
        name = path.removesuffix(suffix)
        model, _, version = name.rpartition("/versions/")
        if self.has_model(name):
            return name
        if not self.has_model(model):
            raise RequestError(f"There is no model {shorten(name)!r}. The models are: {', '.join(self.models)}.", 404)
        if version != VERSION:
            raise RequestError(f"Model {model!r} has no version {shorten(version)!r}; its only one is {VERSION!r}.", 404)
        return model

    def list_outputs(self, model: str) -> list[TensorMetadata]:
        task = self._get_task(model)
        if task != INFER:
            floats = [example for example in list_tensors(self.learner.example) if example.is_floating_point()]
            number = get_datatype(_to_numpy(floats[0]).dtype) if floats else "FP32"
            record = self.learner.records[task]
            logits: TensorMetadata = {
                "name": name_output(record.target_kind),
                "datatype": number,
                "shape": [-1, record.classes],
            }
            if record.target_kind == "classes":
                return [logits, {"name": "label", "datatype": "INT64", "shape": [-1]}]
            if record.target_kind == "values":
                return [logits]
            return [
                logits,
                {"name": "probability", "datatype": number, "shape": [-1, record.classes]},
                {"name": "label", "datatype": "INT64", "shape": [-1, record.classes]},
            ]
        outputs: list[TensorMetadata] = [
            {"name": "task", "datatype": "BYTES", "shape": [-1]},
            {"name": "label", "datatype": "INT64", "shape": [-1]},
            {"name": "confidence", "datatype": "FP32", "shape": [-1]},
        ]
        if model == INFER:  # clients that know the model by its old name know its confidence as "sure"
            outputs.append({"name": "sure", "datatype": "FP32", "shape": [-1]})
        return outputs

    def describe(self, model: str) -> ModelMetadata:
        record = self.learner.records.get(model)
        return {
            "name": model,
            "versions": [VERSION],
            "platform": "spacecl",
            "inputs": [
                {"name": name, "datatype": get_datatype(_to_numpy(tensor).dtype), "shape": [-1, *tensor.shape[1:]]}
                for name, tensor in name_tensors(self.learner.example).items()
            ],
            "outputs": self.list_outputs(model),
            "parameters": {}
            if record is None
            else {
                "target_kind": record.target_kind,
                "classes": list(record.class_labels),
                "digest": record.digest,
                "widths": dict(record.widths),
            },
        }

    def format_metrics(self) -> str:
        """What the server has done so far, in Prometheus's text format."""
        gauges = {
            "spacecl_tasks": ("Tasks that are served.", len(self.learner.tasks)),
            "spacecl_waiting_requests": ("Requests that wait for a result.", self.waiting),
            "spacecl_body_bytes": ("Bytes of all bodies that are in memory.", self.body_bytes),
            "spacecl_start_time_seconds": ("When the server started, in seconds since 1970.", self.metrics.started),
        }
        return self.metrics.format(gauges, {"spacecl_batches_total": ("Batches that were run.", self.batcher.batches)})

    def close(self) -> None:
        self.batcher.close()
        self._decoder.shutdown()

    @asynccontextmanager
    async def read_body(self, stream: AsyncIterable[bytes], encoding: str) -> AsyncIterator[bytes]:
        """Read a body within the limits of size and time, and decompress it; it counts as in memory until the context ends."""
        limit, body, size, reserved = self.limits.body, bytearray(), 0, 0

        def reserve(count: int) -> None:
            nonlocal reserved
            if count > reserved and self.body_bytes + count - reserved > self.limits.all_bodies:
                raise RequestError("The server is busy with too many large requests. Try again later.", 503)
            self.body_bytes, reserved = self.body_bytes + count - reserved, count

        async def collect() -> None:
            nonlocal size
            async for part in stream:
                size += len(part)
                if size <= limit:
                    reserve(size)
                    body.extend(part)
                elif size > 4 * limit:  # stop reading; up to here the client is still sent the reason
                    return

        try:
            try:
                await asyncio.wait_for(collect(), self.limits.seconds)
            except asyncio.TimeoutError:
                raise RequestError(f"The body did not arrive within {self.limits.seconds:g} s.", 408) from None
            if size > limit:
                raise RequestError(f"The body has more than {limit:,} bytes. Send fewer rows, or use binary data.", 413)
            content = decompress(bytes(body), encoding.lower(), limit)
            reserve(len(content))
            yield content
        finally:
            reserve(0)

    async def infer(self, model: str, body: bytes, json_length: str | None) -> tuple[bytes, dict[str, str]]:
        """Answer an inference request; return the body and the headers of the response."""
        example = self.learner.example
        expected = {name: _to_numpy(tensor) for name, tensor in name_tensors(example).items()}
        self.find_model(model)  # again: the task may have been removed while the body was arriving
        names = [output["name"] for output in self.list_outputs(model)]
        request = parse_request(body, json_length, expected, names, self.limits.rows)
        tensors = {name: torch.from_numpy(rows) for name, rows in request.rows.items()}
        several = tensors if isinstance(example, Mapping) else tuple(tensors.values())
        outputs = await self._run(model, tensors[INPUT] if isinstance(example, Tensor) else several)
        arrays = {name: _to_numpy(values) for name, values in outputs.items()}
        if not all(np.isfinite(values).all() for values in arrays.values() if values.dtype.kind == "f"):
            raise RequestError(
                f"Model {model!r}: the answer is not finite. Are the inputs scaled as they were for learning?", 422
            )
        self.metrics.count_rows(model, count_rows(tensors))
        if "confidence" in arrays:
            arrays["sure"] = arrays["confidence"]
        return build_response(model, request, arrays)

    async def classify_picture(self, body: bytes) -> dict[str, Any]:
        """Decode a picture and return its size and every task's answer."""
        shapes = pictures.list_shapes(self.learner)
        size, pixels = await self._wait_for(lambda: self._decoder.submit(pictures.decode, body, shapes))
        answer = await self._wait_for(lambda: self.batcher.call(lambda learner: pictures.classify(learner, pixels)))
        return {"width": size[0], "height": size[1], **answer}

    def _get_task(self, model: str) -> str:
        return INFER if model == ANY_TASK and ANY_TASK not in self.learner.tasks else model

    async def _run(self, model: str, rows: Inputs) -> Outputs:
        problem = check_input(rows, self.learner.example)
        if problem:
            raise RequestError(f"Model {model!r}: {problem}")
        return await self._wait_for(lambda: self.batcher.submit(self._get_task(model), rows))

    async def _wait_for(self, submit: Callable[[], Future[Result]]) -> Result:
        """Submit work and return its result, if the queue has space and the result is ready in time."""
        if self.waiting >= self.limits.queue:
            raise RequestError(f"{self.waiting} requests are waiting already. Try again later.", 503)
        if not self.batcher.alive:
            raise RequestError("The server is stopping, or the thread that runs its networks has ended. Try again later.", 503)
        self.waiting += 1
        try:
            return await asyncio.wait_for(asyncio.wrap_future(submit()), self.limits.seconds)
        except asyncio.TimeoutError:
            raise RequestError(f"There was no answer within {self.limits.seconds:g} s. Try again later.", 503) from None
        except RequestError:
            raise
        except SpaceError as error:  # such as a task that was removed meanwhile
            raise RequestError(str(error), 404 if isinstance(error, TaskError) else 400) from error
        finally:
            self.waiting -= 1


def _to_numpy(values: Tensor | list[str]) -> np.ndarray:
    if not isinstance(values, Tensor):
        return np.array(values, dtype=np.str_)
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
