"""A server for the tasks of a run: the Open Inference Protocol over HTTP, and a page to drop pictures on."""

from __future__ import annotations

import asyncio
import io
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future
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
from .errors import ConfigError, SpaceError
from .images import as_told
from .learner import INFER, Learner
from .opened import Opened
from .protocol import HEADER, INPUT, VERSION, RequestError, answer, datatype, read, unpacked
from .tasks import check_input

try:
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse
    from starlette.exceptions import HTTPException
except ImportError as error:
    raise ConfigError('A server needs FastAPI and uvicorn. Install them with: pip install "spacecl[serve]"') from error

EVERY = 1.0  # seconds between two looks at the folder
PIXELS = 64_000_000  # of the largest picture that the page takes
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
        desk.batcher.close()

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

    for end in ("/versions/{version}", ""):  # a task may have any name: the longer path is looked for first
        at = f"/v2/models/{{task:path}}{end}"

        @app.get(f"{at}/ready")
        async def model_ready(task: str, version: str = VERSION) -> Any:
            return {"name": desk.known(task, version), "ready": True}

        async def infer(request: Request) -> Response:
            task = desk.known(request.path_params["task"], request.path_params.get("version", VERSION))
            body, headers = await desk.infer(task, await desk.body(request), request.headers.get(HEADER))
            return Response(body, headers=headers)

        app.add_route(f"{at}/infer", infer, methods=["POST"])  # without FastAPI's own work, as it is asked often

    for end in ("/versions/{version}", ""):

        @app.get(f"/v2/models/{{task:path}}{end}")
        async def model(task: str, version: str = VERSION) -> Any:
            return desk.described(desk.known(task, version))

    return app


class Desk:
    """What stands between HTTP and the learner: requests are read, checked, counted, asked, and given up in time."""

    def __init__(self, batcher: Batcher, limits: Limits):
        self.batcher, self.limits, self.waiting = batcher, limits, 0

    @property
    def learner(self) -> Learner:
        return self.batcher.learner

    @property
    def models(self) -> list[str]:
        return [*self.learner.tasks, INFER]

    def known(self, task: str, version: str = VERSION) -> str:
        if task not in self.models:
            raise RequestError(f"There is no model {task!r}. The models are: {', '.join(self.models)}.", 404)
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
        if size > limit:
            raise RequestError(f"The body has more than {limit:,} bytes. Send fewer rows, or as binary data.", 413)
        return unpacked(b"".join(parts), request.headers.get("content-encoding", "").lower(), limit)

    async def infer(self, task: str, body: bytes, length: str | None) -> tuple[bytes, dict[str, str]]:
        example = _numpy(self.learner.example)
        wanted = read(body, length, example.shape[1:], example.dtype, list(self.outputs(task)), self.limits.rows)
        found = await self.asked(task, torch.from_numpy(wanted.rows))
        return answer(task, wanted, {name: _numpy(values) for name, values in found.items()})

    async def picture(self, body: bytes) -> dict[str, Any]:
        """Every task's answer to a picture, and which task it looks like."""
        Image = need_pillow()  # noqa: N806
        try:
            opened = Image.open(io.BytesIO(body))
            if opened.width * opened.height > PIXELS:
                raise RequestError(f"The picture has more than {PIXELS:,} pixels. Send a smaller one.", 413)
            await asyncio.to_thread(opened.load)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise RequestError("This is no picture that can be read, such as PNG, JPEG or WebP.", 415) from error
        answers = await self.waited(lambda: self.batcher.call(lambda learner: _pictured(learner, opened)))
        return {"width": opened.width, "height": opened.height, **answers}

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
        finally:
            self.waiting -= 1


def _pictured(learner: Learner, picture: Any) -> dict[str, Any]:
    """Every task's answer to a picture, and the task that it is most like."""
    listed: list[dict[str, Any]] = []
    likeness: dict[str, Tensor] = {}
    for name, record in learner.records.items():
        if record.pictures is None:
            why = "taught without spacecl.Images, so how pictures become its inputs is not known"
            listed.append({"task": name, "problem": why})
            continue
        rows = as_told(record.pictures, seen(picture, record.pictures["pixels"])[None].copy()).to(learner.example.dtype)
        shares = learner.logits(rows, name)[0].softmax(0)
        best = shares.argsort(descending=True)[:5].tolist()
        listed.append({"task": name, "answers": [{"class": record.class_labels[i], "share": float(shares[i])} for i in best]})
        likeness[name] = learner.likeness(rows, name)
    if likeness:
        names, scores = list(likeness), torch.cat(list(likeness.values())).softmax(0).tolist()
        for entry in listed:
            entry["like"] = scores[names.index(entry["task"])] if entry["task"] in likeness else None
    return {"tasks": listed, "likely": max(likeness, key=lambda name: float(likeness[name]), default=None)}


async def _watch(batcher: Batcher, folder: Opened) -> None:
    """Take up what is learned into a folder, whenever its manifest has changed; what cannot be read is left for later."""
    manifest, known = folder.model / store.MANIFEST, _mark(folder.model / store.MANIFEST)
    while True:
        await asyncio.sleep(EVERY)
        mark = _mark(manifest)
        if mark in (known, None):
            continue
        before = batcher.learner.tasks
        try:
            learner = await asyncio.wrap_future(batcher.exchange(lambda old: old.reloaded(folder.model)))
        except (SpaceError, OSError) as error:
            print(f"spacecl: warning: {folder.model} has changed, but cannot be read: {error}", file=sys.stderr, flush=True)
            continue
        known = mark
        new = [name for name in learner.tasks if name not in before]
        print(f"Took up {', '.join(new) or 'what has changed'}: {len(learner.tasks)} tasks.", flush=True)


def _mark(manifest: Any) -> tuple[int, int] | None:
    try:
        found = manifest.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


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
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.array(values, dtype=np.str_)
