"""A server for the tasks of a run: the Open Inference Protocol over HTTP, and a page to drop pictures on."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import __version__, store
from .batching import Batcher
from .benchmarks.formats import need_pillow, seen
from .errors import ConfigError, SpaceError, TaskError
from .export import INPUT
from .graph import first_line
from .images import as_told
from .learner import INFER, Learner
from .opened import Opened
from .protocol import HEADER, VERSION, RequestError, answer, datatype, read, unpacked
from .tasks import check_input

try:
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ImportError as error:
    raise ConfigError('A server needs FastAPI and uvicorn. Install them with: pip install "spacecl[serve]"') from error

EVERY = 1.0  # seconds between two looks at the folder
PIXELS = 32_000_000  # of the largest picture that the page takes
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob: data:; connect-src 'self'"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Limits:
    """What a server takes on: bytes of a body, rows of a request, requests that wait, seconds until one is given up."""

    body: int = 16 * 2**20
    rows: int = 1024
    queue: int = 256
    seconds: float = 10.0


def run(
    folder: Opened,
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    watch: bool = False,
    limits: Limits | None = None,
    say: Say = print,
) -> None:
    """Serve until interrupted."""
    limits, listening = limits or Limits(), _listening(host, port)
    learner = folder.learner()
    app = application(learner, limits, folder if watch else None)
    name, number = listening.getsockname()[:2]
    shown = f"[{name}]" if ":" in name else name
    say(f"Serving {len(learner.tasks)} tasks of {folder.folder} at http://{shown}:{number} (Ctrl-C stops).")
    if not _is_loopback(name):
        print("spacecl: warning: other machines can reach this address, and there is no password.", file=sys.stderr)
    sys.stdout.flush()
    settings = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        limit_concurrency=4 * limits.queue,
        http=_impatient(limits.seconds),
    )
    uvicorn.Server(settings).run(sockets=[listening])


def application(learner: Learner, limits: Limits, watched: Opened | None = None) -> FastAPI:
    """The server as an ASGI application; it answers for a learner, and for what is learned into a watched folder."""
    need_pillow()
    for task in learner.tasks:
        learner.logits(learner.example, task)  # the first of all takes longer
    desk = Desk(Batcher(learner, limits.rows), limits)

    @asynccontextmanager
    async def life(app: Any) -> Any:
        watching = asyncio.create_task(_watch(desk.batcher, watched)) if watched is not None else None
        yield
        if watching is not None:
            watching.cancel()
        desk.close()

    app = FastAPI(lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.desk = desk

    def refused(text: str, status: int, headers: Any = None) -> Response:
        return JSONResponse({"error": text.encode(errors="replace").decode()}, status, headers)  # half a character is none

    @app.exception_handler(RequestError)
    async def tell_refused(request: Request, error: RequestError) -> Response:
        return refused(str(error), error.status, {"Retry-After": "1"} if error.status == 503 else None)

    @app.exception_handler(HTTPException)
    async def tell_http(request: Request, error: HTTPException) -> Response:
        return refused(f"{error.detail}: {request.method} {request.url.path}", error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def tell_fault(request: Request, error: Exception) -> Response:
        return refused(f"The server failed at this request: {type(error).__name__}. Its log says more.", 500)

    @app.get("/")
    async def page() -> Response:
        text = (files("spacecl") / "serve.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})

    @app.post("/picture")
    async def picture(request: Request) -> Response:
        body = await desk.body(request)
        return JSONResponse(await desk.picture(body))

    @app.get("/v2")
    async def server() -> Any:
        return {"name": "spacecl", "version": __version__, "extensions": ["binary_tensor_data", "model_repository"]}

    @app.get("/v2/health/live")
    async def live() -> Any:
        return {"live": True}

    @app.get("/v2/health/ready")
    async def ready() -> Any:
        if not desk.batcher.alive:
            raise RequestError("The thread that asks the networks has stopped. Start the server anew.", 503)
        return {"ready": True}

    @app.get("/v2/models")
    async def models() -> Any:
        return {"models": [desk.described(name) for name in desk.models]}

    @app.post("/v2/repository/index")
    async def index() -> Any:
        return [{"name": name, "version": VERSION, "state": "READY"} for name in desk.models]

    async def asked(request: Request) -> Response:
        task = desk.named(request.path_params["path"], "/infer")
        body, headers = await desk.infer(task, await desk.body(request), request.headers.get(HEADER))
        return Response(body, headers=headers)

    async def told(request: Request) -> Response:
        path = request.path_params["path"]
        if path not in desk.models and path.endswith("/ready"):
            return JSONResponse({"name": desk.named(path, "/ready"), "ready": True})
        return JSONResponse(desk.described(desk.named(path)))

    app.add_route("/v2/models/{path:path}", asked, methods=["POST"])  # a task may have any name, so paths are read by the desk
    app.add_route("/v2/models/{path:path}", told, methods=["GET"])
    return app


class Desk:
    """What stands between HTTP and the learner: requests are read, checked, counted, asked, and given up in time."""

    def __init__(self, batcher: Batcher, limits: Limits):
        self.batcher, self.limits, self.waiting = batcher, limits, 0

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
            raise RequestError(f"There is nothing to ask at {path!r}; models are asked at their name and {end}.", 404)
        name = path.removesuffix(end)
        task, _, version = name.rpartition("/versions/")
        if name in self.models:
            return name
        if task not in self.models:
            raise RequestError(f"There is no model {name!r}. The models are: {', '.join(self.models)}.", 404)
        if version != VERSION:
            raise RequestError(f"Model {task!r} has no version {version!r}; its only one is {VERSION!r}.", 404)
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

    async def body(self, request: Request) -> bytes:
        """The body of a request, within the limits of size and time."""
        limit, parts, size = self.limits.body, [], 0

        async def collect() -> None:
            nonlocal size
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    parts.append(part)
                elif size > 4 * limit:  # what comes on is not worth waiting for; up to here the client hears the reason
                    return

        try:
            await asyncio.wait_for(collect(), self.limits.seconds)
        except asyncio.TimeoutError:
            raise RequestError(f"The body did not arrive within {self.limits.seconds:g} s.", 408) from None
        except ClientDisconnect:
            raise RequestError("The client went away.") from None  # so that nobody hears it, and the log is clean
        if size > limit:
            raise RequestError(f"The body has more than {limit:,} bytes. Send fewer rows, or as binary data.", 413)
        return unpacked(b"".join(parts), request.headers.get("content-encoding", "").lower(), limit)

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
    Image = need_pillow()  # noqa: N806
    large = RequestError(f"The picture has more than {PIXELS:,} pixels. Send a smaller one.", 413)
    try:
        with Image.open(io.BytesIO(body)) as picture:
            if picture.width * picture.height > PIXELS:
                raise large
            return picture.size, {shape: seen(picture, shape)[None].copy() for shape in shapes}
    except Image.DecompressionBombError:
        raise large from None
    except RequestError:
        raise
    except Exception as error:  # decoders fail in all ways
        raise RequestError("This is no picture that can be read, such as PNG, JPEG or WebP.", 415) from error


def _pictured(learner: Learner, pixels: Mapping[Shape, np.ndarray]) -> dict[str, Any]:
    """Every task's answer to a picture, and the task that it is most like."""
    listed: list[dict[str, Any]] = []
    likeness: dict[str, Tensor] = {}
    for name, record in learner.records.items():
        seen_as = None if record.pictures is None else pixels.get(tuple(record.pictures["pixels"]))
        if record.pictures is None or seen_as is None:
            why = "taught without spacecl.Images, so how pictures become its inputs is not known"
            listed.append({"task": name, "problem": why})
            continue
        rows = as_told(record.pictures, seen_as).to(learner.example.dtype)
        shares = learner.logits(rows, name)[0].softmax(0)
        best = shares.argsort(descending=True)[:5].tolist()
        answers = [{"class": record.class_labels[i], "share": float(shares[i])} for i in best]
        listed.append({"task": name, "answers": answers, "like": None})
        if learner.remembers(name):
            likeness[name] = learner.likeness(rows, name)
    if likeness:
        scores = dict(zip(likeness, torch.cat(list(likeness.values())).softmax(0).tolist()))
        listed = [entry | ({"like": scores[entry["task"]]} if entry["task"] in scores else {}) for entry in listed]
    return {"tasks": listed, "likely": max(likeness, key=lambda name: float(likeness[name]), default=None)}


async def _watch(batcher: Batcher, folder: Opened) -> None:
    """Take up what is learned into a folder, whenever its manifest has changed; what cannot be read is tried again."""
    known, said = None, ""
    while True:
        mark = _mark(folder.model / store.MANIFEST)
        if mark not in (known, None):
            before = _digests(batcher.learner)
            try:
                learner = await asyncio.to_thread(_warm, batcher.learner, folder)
                await asyncio.wrap_future(batcher.exchange(learner))
            except Exception as error:  # whatever it is, the tasks that are there are served on
                if str(error) != said:
                    said = str(error)
                    print(f"spacecl: warning: {folder.model} cannot be read: {said}", file=sys.stderr, flush=True)
            else:
                known, said = mark, ""
                new = [name for name, digest in _digests(learner).items() if before.get(name) != digest]
                if new:
                    print(f"Took up {', '.join(new)}: {len(learner.tasks)} tasks.", flush=True)
        await asyncio.sleep(EVERY)


def _warm(old: Learner, folder: Opened) -> Learner:
    """The learner that a folder holds now, each of its networks asked once: the first time takes longer."""
    learner = old.reloaded(folder.model)
    for task in learner.tasks:
        learner.logits(learner.example, task)
    return learner


def _digests(learner: Learner) -> dict[str, str]:
    return {name: record.digest for name, record in learner.records.items()}


def _mark(manifest: Any) -> tuple[int, int] | None:
    try:
        found = manifest.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _impatient(seconds: float) -> type[HttpToolsProtocol]:
    """Uvicorn's protocol, but a connection that does not send the head of a request in time is closed."""

    class Impatient(HttpToolsProtocol):
        patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.wait()

        def on_message_begin(self) -> None:
            self.wait()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self.stop()
            super().on_headers_complete()

        def connection_lost(self, error: Exception | None) -> None:
            self.stop()
            super().connection_lost(error)

        def wait(self) -> None:
            self.stop()
            self.patience = self.loop.call_later(seconds, self.transport.close)

        def stop(self) -> None:
            if self.patience is not None:
                self.patience.cancel()

    return Impatient


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port {port} is none; ports are 0 to 65535, and 0 takes a free one.")
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, number)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(1024)  # whoever reads the address can connect at once
    except OSError as error:
        raise ConfigError(
            f"Cannot listen at {host}, port {port}: {error.strerror}. Give others with --host and --port."
        ) from error
    return found


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def _numpy(values: Tensor | list[str]) -> np.ndarray:
    if not isinstance(values, Tensor):
        return np.array(values, dtype=np.str_)
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
