"""Run the server: listen, report the address, and serve until interrupted."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable

from ..errors import ConfigError
from ..runs.open_run import OpenRun
from .service import Limits

try:
    import httptools  # noqa: F401
    import uvicorn
    from starlette.applications import Starlette
except ImportError as error:
    raise ConfigError('A server needs Starlette and uvicorn. Install them with: pip install "spacecl[serve]"') from error
from .app import build_app
from .connections import BACKLOG, limit_connections, make_protocol
from .tokens import read_tokens


def serve(
    folder: OpenRun,
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    watch: bool = False,
    limits: Limits | None = None,
    token_file: str | os.PathLike[str] | None = None,
    report: Callable[[str], None] = print,
) -> None:
    """Serve the tasks of a run over HTTP until interrupted.

    Parameters
    ----------
    folder : the run.
    host : the address to listen on; the default is reachable from this machine only.
    port : the port; 0 takes a free one.
    watch : serve tasks that are learned into the folder later, too.
    limits : what requests may take.
    token_file : a file with a token on each line, of which callers must send one.
    report : receives the line with the address.
    """
    tokens = [] if token_file is None else read_tokens(token_file)
    limits, listener = limits or Limits(), open_listener(host, port)
    learner = folder.learner()
    app = build_app(learner, limits, folder if watch else None, tokens)
    address, number = listener.getsockname()[:2]
    name = f"[{address}]" if ":" in address else address
    report(f"Serving {len(learner.tasks)} tasks of {folder.folder} at http://{name}:{number} (Ctrl-C stops).")
    if not _is_loopback(address):
        problem = "what they send, tokens included, is not encrypted" if tokens else "there is no password (see --token-file)"
        print(f"spacecl: warning: other machines can reach this address, and {problem}.", file=sys.stderr)
    sys.stdout.flush()
    gc.freeze()  # the learner stays for good: the collector need not visit it again
    make_server(app, limits).run(sockets=[listener])


def make_server(app: Starlette, limits: Limits) -> uvicorn.Server:
    """Return uvicorn's server for an application, with all limits of connections."""
    connections = limit_connections(4 * limits.queue)
    settings = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        limit_concurrency=connections,
        backlog=BACKLOG,
        http=make_protocol(limits.seconds, 2 * connections),
        ws="none",
    )
    return uvicorn.Server(settings)


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections at an address."""
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port {port} is not a port. Ports are 0 to 65535, and 0 takes a free one.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # now: whoever reads the reported address can connect at once
    except OSError as error:
        raise ConfigError(
            f"Cannot listen at {host}, port {port}: {error.strerror}. Choose another address with --host and --port."
        ) from error
    return listener


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")
