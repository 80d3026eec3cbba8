"""A server for the tasks of a run: the Open Inference Protocol over HTTP, and a page to drop pictures on."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib.resources import files
from typing import Any

from .. import __version__, store
from ..data.pictures import require_pillow
from ..errors import ConfigError
from ..learner import Learner
from ..runs.open_run import OpenRun
from .batcher import Batcher
from .open_inference import HEADER, VERSION, RequestError, short
from .service import Desk, Limits

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
HEAD = 2**16  # bytes of the head of a request
PIPELINE = 64  # requests that a client may send ahead of their answers
BACKLOG = 256  # connections that the system accepts before the server sees them
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob: data:; connect-src 'self'"
Say = Callable[[str], None]


def run(
    folder: OpenRun,
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
    gc.freeze()  # what is loaded stays: the collector need not look at it while requests are read
    connections = _limit_connections(4 * limits.queue)
    settings = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        limit_concurrency=connections,
        backlog=BACKLOG,
        http=_impatient(limits.seconds, 2 * connections),
        ws="none",
    )
    uvicorn.Server(settings).run(sockets=[listening])


def application(learner: Learner, limits: Limits, watched: OpenRun | None = None) -> FastAPI:
    """The server as an ASGI application; it answers for a learner, and for what is learned into a watched folder."""
    require_pillow()
    desk = Desk(Batcher(_warm(learner), limits.rows), limits)

    @asynccontextmanager
    async def life(app: Any) -> Any:
        watching = asyncio.create_task(_watch(desk.batcher, watched)) if watched is not None else None
        yield
        if watching is not None:
            watching.cancel()
        desk.close()

    app = FastAPI(lifespan=life, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.desk = desk

    def refused(text: str, status: int, headers: Any = None) -> Response:
        return JSONResponse({"error": text.encode(errors="replace").decode()}, status, headers)  # half a character is none

    @app.exception_handler(RequestError)
    async def tell_refused(request: Request, error: RequestError) -> Response:
        return refused(str(error), error.status, {"Retry-After": "1"} if error.status == 503 else None)

    @app.exception_handler(HTTPException)
    async def tell_http(request: Request, error: HTTPException) -> Response:
        return refused(f"{error.detail}: {request.method} {short(request.scope['path'])}", error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def tell_fault(request: Request, error: Exception) -> Response:
        return refused(f"The server failed at this request: {type(error).__name__}. Its log says more.", 500)

    @app.get("/")
    async def page() -> Response:
        text = (files(__package__) / "serve.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})

    def body_of(request: Request) -> AbstractAsyncContextManager[bytes]:
        return desk.body(request.stream(), ", ".join(request.headers.getlist("content-encoding")))

    @app.exception_handler(ClientDisconnect)
    async def tell_nobody(request: Request, error: ClientDisconnect) -> Response:
        return refused("The client went away.", 400)  # nobody hears it, but the log stays clean

    @app.post("/picture")
    async def picture(request: Request) -> Response:
        async with body_of(request) as body:
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
        async with body_of(request) as body:
            answer, headers = await desk.infer(task, body, request.headers.get(HEADER))
        return Response(answer, headers=headers)

    async def told(request: Request) -> Response:
        path = request.path_params["path"]
        if path not in desk.models and path.endswith("/ready"):
            return JSONResponse({"name": desk.named(path, "/ready"), "ready": True})
        return JSONResponse(desk.described(desk.named(path)))

    app.add_route("/v2/models/{path:path}", asked, methods=["POST"])  # a task may have any name, so paths are read by the desk
    app.add_route("/v2/models/{path:path}", told, methods=["GET"])
    return app


async def _watch(batcher: Batcher, folder: OpenRun) -> None:
    """Take up what is learned into a folder, whenever its manifest has changed; what cannot be read is tried again."""
    known, said = None, ""
    while True:
        mark = _mark(folder.model / store.MANIFEST)
        if mark not in (known, None):
            before = _digests(batcher.learner)
            try:
                learner = await asyncio.to_thread(lambda: _warm(batcher.learner.reload(folder.model)))
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


def _warm(learner: Learner) -> Learner:
    """The same learner, each of its networks asked once: the first time takes longer."""
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


def _impatient(seconds: float, most: int) -> type[HttpToolsProtocol]:
    """Uvicorn's protocol with limits: of time to send a request and to take an answer, of a head's size, of connections.

    A connection is closed when the head of a request does not come in time, when its body does not (a second later, so that
    the reason is heard), and when nothing of an answer is taken. At most `most` connections are open.
    """

    class Impatient(HttpToolsProtocol):
        patience: asyncio.TimerHandle | None = None  # with what the client sends
        unread: asyncio.TimerHandle | None = None  # with what the client reads
        left = head = 0
        in_head = True

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            else:
                self.wait(seconds)

        def data_received(self, data: bytes) -> None:
            self.head += len(data)
            if self.in_head and self.patience is None:
                self.wait(seconds)
            super().data_received(data)
            if self.in_head and self.head > HEAD and not self.transport.is_closing():
                self.send_400_response(f"The head of a request may have {HEAD} bytes.")

        def on_message_begin(self) -> None:
            self.in_head, self.head = True, 0
            self.wait(seconds)
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self.in_head = False
            self.wait(seconds + 1)
            if len(self.pipeline) >= PIPELINE:
                raise ValueError(f"More than {PIPELINE} requests were sent ahead.")  # the parser makes it a 400
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self.stop()
            self.in_head, self.head = True, 0  # the next one's begins with the next byte
            super().on_message_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self.end()

        def timeout_keep_alive_handler(self) -> None:
            self.end()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.left = self.transport.get_write_buffer_size()
            self.unread = self.loop.call_later(seconds, self.look)

        def resume_writing(self) -> None:
            if self.unread is not None:
                self.unread.cancel()
            super().resume_writing()

        def look(self) -> None:
            """Close a connection whose client has taken nothing since the last look."""
            left = self.transport.get_write_buffer_size()
            if left >= self.left:
                self.transport.abort()
            else:
                self.left, self.unread = left, self.loop.call_later(seconds, self.look)

        def connection_lost(self, error: Exception | None) -> None:
            self.stop()
            if self.unread is not None:
                self.unread.cancel()
            super().connection_lost(error)

        def wait(self, time: float) -> None:
            self.stop()
            self.patience = self.loop.call_later(time, self.end)

        def end(self) -> None:
            """Close, which waits until the client has read what was written; but not for ever."""
            self.transport.close()
            self.loop.call_later(seconds, self.transport.abort)

        def stop(self) -> None:
            if self.patience is not None:
                self.patience.cancel()
                self.patience = None

    return Impatient


def _limit_connections(wanted: int) -> int:
    """How many connections may be served at a time, as far as the system allows open files; twice as many may be open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * wanted + BACKLOG + 64  # and some for all else that is open
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(1, min(wanted, (soft - BACKLOG - 64) // 2))
    return wanted


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port {port} is none; ports are 0 to 65535, and 0 takes a free one.")
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, number)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)  # whoever reads the address can connect at once
    except OSError as error:
        raise ConfigError(
            f"Cannot listen at {host}, port {port}: {error.strerror}. Give others with --host and --port."
        ) from error
    return found


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")
