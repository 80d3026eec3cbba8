"""The desk of a server: requests are read, checked, counted, asked, and given up in time. It knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.images import preprocess
from ..data.pictures import PIXELS, LargePictureError, open_picture, to_pixels
from ..data.task_data import check_input
from ..errors import SpaceError, TaskError, first_line
from ..export.export import INPUT
from ..learner import INFER, Learner
from .batcher import Batcher
from .open_inference import VERSION, RequestError, answer, datatype, read, short, unpacked


@dataclass(frozen=True)
class Limits:
    """What a server takes on: bytes of a body, rows of a request, requests that wait, seconds until one is given up."""

    body: int = 16 * 2**20
    rows: int = 1024
    queue: int = 256
    seconds: float = 10.0

    @property
    def bodies(self) -> int:
        """Bytes of all bodies together that are held at a time: sixteen of the largest."""
        return 16 * self.body


class Desk:
    """What stands between HTTP and the learner: requests are read, checked, counted, asked, and given up in time."""

    def __init__(self, batcher: Batcher, limits: Limits):
        self.batcher, self.limits, self.waiting, self.held = batcher, limits, 0, 0
        self.decoder = ThreadPoolExecutor(1, "spacecl-pictures")  # one large picture at a time

    @property
    def learner(self) -> Learner:
        return self.batcher.learner

    @property
    def models(self) -> list[str]:
        return [*self.learner.tasks, INFER]

    def named(self, path: str, end: str = "") -> str:
        """The model that a path speaks of, with its version or without it, if there is one."""
        if not path.endswith(end):
            raise RequestError(f"There is nothing to ask at {short(path)!r}; models are asked at their name and {end}.", 404)
        name = path.removesuffix(end)
        task, _, version = name.rpartition("/versions/")
        if name in self.models:
            return name
        if task not in self.models:
            raise RequestError(f"There is no model {short(name)!r}. The models are: {', '.join(self.models)}.", 404)
        if version != VERSION:
            raise RequestError(f"Model {task!r} has no version {short(version)!r}; its only one is {VERSION!r}.", 404)
        return task

    def outputs(self, task: str) -> dict[str, tuple[str, list[int]]]:
        """The outputs of a model: what they are called, and of what type and shape they are."""
        if task == INFER:
            return {"task": ("BYTES", [-1]), "label": ("INT64", [-1]), "sure": ("FP32", [-1])}
        number = datatype(_numpy(self.learner.example).dtype) if self.learner.example.is_floating_point() else "FP32"
        return {"logits": (number, [-1, self.learner.records[task].classes]), "label": ("INT64", [-1])}

    def described(self, task: str) -> dict[str, Any]:
        """A model's metadata; `parameters` has what the protocol has no place for."""
        shape = [-1, *self.learner.example.shape[1:]]
        record = self.learner.records.get(task)
        return {
            "name": task,
            "versions": [VERSION],
            "platform": "spacecl",
            "inputs": [{"name": INPUT, "datatype": datatype(_numpy(self.learner.example).dtype), "shape": shape}],
            "outputs": [{"name": n, "datatype": kind, "shape": size} for n, (kind, size) in self.outputs(task).items()],
            "parameters": {}
            if record is None
            else {"classes": list(record.class_labels), "digest": record.digest, "widths": dict(record.widths)},
        }

    def close(self) -> None:
        self.batcher.close()
        self.decoder.shutdown()

    @asynccontextmanager
    async def body(self, stream: AsyncIterable[bytes], encoding: str) -> AsyncIterator[bytes]:
        """The body of a request, unpacked, within the limits of size and time; it counts as held until the request is done."""
        limit, found, size, before = self.limits.body, bytearray(), 0, 0

        def hold(count: int) -> None:
            nonlocal before
            if count > before and self.held + count - before > self.limits.bodies:
                raise RequestError("The server holds too many large requests already. Try again in a while.", 503)
            self.held, before = self.held + count - before, count

        async def collect() -> None:
            nonlocal size
            async for part in stream:
                size += len(part)
                if size <= limit:
                    hold(size)
                    found.extend(part)
                elif size > 4 * limit:  # what comes on is not worth waiting for; up to here the client hears the reason
                    return

        try:
            try:
                await asyncio.wait_for(collect(), self.limits.seconds)
            except asyncio.TimeoutError:
                raise RequestError(f"The body did not arrive within {self.limits.seconds:g} s.", 408) from None
            if size > limit:
                raise RequestError(f"The body has more than {limit:,} bytes. Send fewer rows, or as binary data.", 413)
            body = unpacked(bytes(found), encoding.lower(), limit)
            hold(len(body))
            yield body
        finally:
            hold(0)

    async def infer(self, task: str, body: bytes, length: str | None) -> tuple[bytes, dict[str, str]]:
        example = _numpy(self.learner.example)
        outputs = list(self.outputs(self.named(task)))  # once more: while the body came, it may have gone
        wanted = read(body, length, example.shape[1:], example.dtype, outputs, self.limits.rows)
        asked = await self.asked(task, torch.from_numpy(wanted.rows))
        found = {name: _numpy(values) for name, values in asked.items()}
        if not all(np.isfinite(values).all() for values in found.values() if values.dtype.kind == "f"):
            raise RequestError(
                f"Model {task!r}: the answer is not finite. Are the inputs scaled as they were for learning?", 422
            )
        return answer(task, wanted, found)

    async def picture(self, body: bytes) -> dict[str, Any]:
        """Every task's answer to a picture, and which task it looks like."""
        shapes = {tuple(record.pictures["pixels"]) for record in self.learner.records.values() if record.pictures is not None}
        size, pixels = await self.waited(lambda: self.decoder.submit(_decoded, body, shapes))
        answers = await self.waited(lambda: self.batcher.call(lambda learner: _pictured(learner, pixels)))
        return {"width": size[0], "height": size[1], **answers}

    async def asked(self, task: str, rows: Tensor) -> dict[str, Any]:
        problem = check_input(rows, self.learner.example)
        if problem:
            raise RequestError(f"Model {task!r}: {problem}")
        return await self.waited(lambda: self.batcher.ask(task, rows))

    async def waited(self, ask: Callable[[], Future[Any]]) -> Any:
        """What a question comes to, if there is room in the queue and the answer comes in time."""
        if self.waiting >= self.limits.queue:
            raise RequestError(f"{self.waiting} requests are waiting already. Try again in a while.", 503)
        if not self.batcher.alive:
            raise RequestError("The server is about to stop, or its networks' thread has stopped. Try again in a while.", 503)
        self.waiting += 1
        try:
            return await asyncio.wait_for(asyncio.wrap_future(ask()), self.limits.seconds)
        except asyncio.TimeoutError:
            raise RequestError(f"There was no answer within {self.limits.seconds:g} s. Try again in a while.", 503) from None
        except RequestError:
            raise
        except SpaceError as error:  # such as a task that has gone meanwhile
            raise RequestError(str(error), 404 if isinstance(error, TaskError) else 400) from error
        except (IndexError, RuntimeError) as error:
            if self.learner.example.is_floating_point():
                raise
            raise RequestError(f"The network does not know these inputs: {first_line(error)}") from error
        finally:
            self.waiting -= 1


Shape = tuple[int, ...]


def _decoded(body: bytes, shapes: set[Shape]) -> tuple[tuple[int, int], dict[Shape, np.ndarray]]:
    """A picture's size, and its pixels in every shape that some task reads."""
    try:
        with open_picture(io.BytesIO(body)) as picture:
            return picture.size, {shape: to_pixels(picture, shape)[None].copy() for shape in shapes}
    except LargePictureError:
        raise RequestError(f"The picture has more than {PIXELS:,} pixels. Send a smaller one.", 413) from None
    except Exception as error:  # decoders fail in all ways
        raise RequestError("This is no picture that can be read, such as PNG, JPEG or WebP.", 415) from error


def _pictured(learner: Learner, pixels: Mapping[Shape, np.ndarray]) -> dict[str, Any]:
    """Every task's answer to a picture, and the task that it is most like."""
    listed: list[dict[str, Any]] = []
    task_scores: dict[str, Tensor] = {}
    accepted: list[str] = []
    for name, record in learner.records.items():
        seen_as = None if record.pictures is None else pixels.get(tuple(record.pictures["pixels"]))
        if record.pictures is None or seen_as is None:
            why = "taught without spacecl.Images, so how pictures become its inputs is not known"
            listed.append({"task": name, "problem": why})
            continue
        rows = preprocess(record.pictures, seen_as).to(learner.example.dtype)
        shares = learner.logits(rows, name)[0].softmax(0)
        if not bool(shares.isfinite().all()):
            raise RequestError(f"Model {name!r}: the answer to this picture is not finite.", 422)
        best = shares.argsort(descending=True)[:5].tolist()
        answers = [{"class": record.class_labels[i], "share": float(shares[i])} for i in best]
        listed.append({"task": name, "answers": answers, "like": None})
        if learner.has_signature(name):
            task_scores[name] = learner.task_scores(rows, name)
            if bool(learner.accepts(rows, name)[0]):
                accepted.append(name)
    if task_scores:
        scores = dict(zip(task_scores, torch.cat(list(task_scores.values())).softmax(0).tolist()))
        listed = [entry | ({"like": scores[entry["task"]]} if entry["task"] in scores else {}) for entry in listed]
    return {"tasks": listed, "likely": max(accepted, key=lambda name: float(task_scores[name]), default=None)}


def _numpy(values: Tensor | list[str]) -> np.ndarray:
    if not isinstance(values, Tensor):
        return np.array(values, dtype=np.str_)
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
