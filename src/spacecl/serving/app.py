"""The server as an ASGI application: the Open Inference Protocol over HTTP, and a page to drop pictures on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from .. import __version__
from ..data.pictures import require_pillow
from ..learner import Learner
from ..runs.open_run import OpenRun
from .batcher import Batcher
from .metrics import CONTENT_TYPE, MODEL, CountResponses
from .open_inference import HEADER, VERSION, RequestError, shorten
from .service import Limits, Service
from .tokens import RequireToken
from .watch import warm_up, watch

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src blob: data:; connect-src 'self'"
)


def build_app(learner: Learner, limits: Limits, watched: OpenRun | None = None, tokens: Sequence[bytes] = ()) -> Starlette:
    """Build the ASGI application.

    Parameters
    ----------
    learner : its tasks are the models that are served.
    limits : what requests may take.
    watched : a folder; tasks that are learned into it later are served, too.
    tokens : of which callers must send one; with none, everybody may call.
    """
    require_pillow()
    service = Service(Batcher(warm_up(learner), limits.rows), limits)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(watch(service.batcher, watched)) if watched is not None else None
        yield
        if watching is not None:
            watching.cancel()
        service.close()

    middleware = [Middleware(CountResponses, service.metrics)]
    if tokens:
        middleware.append(Middleware(RequireToken, tokens))
    app = Starlette(
        middleware=middleware,
        routes=[*_page_routes(service), *_server_routes(service), *_model_routes(service)],
        exception_handlers={
            RequestError: _report_request_error,
            HTTPException: _report_http_error,
            ClientDisconnect: _report_disconnect,
            Exception: _report_failure,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def _page_routes(service: Service) -> list[Route]:
    async def page(request: Request) -> Response:
        text = (files(__package__) / "serve.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})

    async def picture(request: Request) -> Response:
        async with _read_body(service, request) as body:
            return JSONResponse(await service.classify_picture(body))

    return [Route("/", page), Route("/picture", picture, methods=["POST"])]


def _server_routes(service: Service) -> list[Route]:
    async def server(request: Request) -> Response:
        extensions = ["binary_tensor_data", "model_repository"]
        return JSONResponse({"name": "spacecl", "version": __version__, "extensions": extensions})

    async def live(request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(request: Request) -> Response:
        if not service.batcher.alive:
            raise RequestError("The thread that runs the networks has stopped. Restart the server.", 503)
        return JSONResponse({"ready": True})

    async def metrics(request: Request) -> Response:
        return Response(service.format_metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def models(request: Request) -> Response:
        return JSONResponse({"models": [service.describe(name) for name in service.models]})

    async def index(request: Request) -> Response:
        return JSONResponse([{"name": name, "version": VERSION, "state": "READY"} for name in service.models])

    return [
        Route("/metrics", metrics),
        Route("/v2", server),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/v2/models", models),
        Route("/v2/repository/index", index, methods=["POST"]),
    ]


def _model_routes(service: Service) -> list[Route]:
    """Routes below /v2/models/. A task may have any name, slashes included, so the service reads these paths."""

    async def infer(request: Request) -> Response:
        request.scope[MODEL] = model = service.find_model(request.path_params["path"], "/infer")
        async with _read_body(service, request) as body:
            content, headers = await service.infer(model, body, request.headers.get(HEADER))
        return Response(content, headers=headers)

    async def describe(request: Request) -> Response:
        path = request.path_params["path"]
        if not service.has_model(path) and path.endswith("/ready"):
            return JSONResponse({"name": service.find_model(path, "/ready"), "ready": True})
        return JSONResponse(service.describe(service.find_model(path)))

    path = "/v2/models/{path:path}"
    return [Route(path, infer, methods=["POST"]), Route(path, describe)]


def _read_body(service: Service, request: Request) -> AbstractAsyncContextManager[bytes]:
    return service.read_body(request.stream(), ", ".join(request.headers.getlist("content-encoding")))


def _refuse(reason: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    text = reason.encode(errors="replace").decode()  # a lone surrogate cannot be sent
    return JSONResponse({"error": text}, status, headers)


async def _report_request_error(request: Request, error: Any) -> Response:
    return _refuse(str(error), error.status, {"Retry-After": "1"} if error.status == 503 else None)


async def _report_http_error(request: Request, error: Any) -> Response:
    return _refuse(f"{error.detail}: {request.method} {shorten(request.scope['path'])}", error.status_code, error.headers)


async def _report_disconnect(request: Request, error: Exception) -> Response:
    return _refuse("The client disconnected.", 400)  # nobody receives it, but the log stays clean


async def _report_failure(request: Request, error: Exception) -> Response:
    return _refuse(f"The server failed at this request: {type(error).__name__}. Its log says more.", 500)
