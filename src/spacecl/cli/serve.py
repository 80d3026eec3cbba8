"""`spacecl serve`: serve every task of a run over HTTP."""

from __future__ import annotations

import argparse
import signal
from contextlib import suppress
from typing import Any

from .options import add_folder
from .terminal import above_zero, positive

EPILOG = """\
examples:
  spacecl serve runs/c10
  spacecl serve runs/c10 --port 0 --watch
  curl localhost:8080/v2/models
  curl localhost:8080/v2/models/cifar10-1/infer -d '{"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 3, 32, 32],
    "data": [...]}]}'

The server implements the Open Inference Protocol, version 2, with binary tensors: clients such as tritonclient work with it.
Every task is a model; the model "any-task" infers the task first. The page at / takes a picture and shows every task's
answer. By default it listens on this machine only, and whoever can reach the address can use the server. With --token-file,
callers must send "Authorization: Bearer TOKEN" with one of the file's tokens (one on each line), except for /v2/health/.

/metrics has numbers for Prometheus. On SIGTERM or Ctrl-C the server stops accepting connections, finishes the requests that
it has, for at most --timeout + 1 seconds, and exits with code 0.

Exit codes: 0 stopped, 1 failed with a message, 2 wrong usage."""


def add_command(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="a server for every task, and a page to drop pictures on",
        description="Serve every task of a run over HTTP, and batch requests of all tasks together.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_folder(serve)
    serve.add_argument("--host", default="127.0.0.1", metavar="NAME", help="address to listen on (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8080, metavar="N", help="port (default: 8080; 0 takes a free one)")
    serve.add_argument("--watch", action="store_true", help="also serve tasks that are learned into the folder later")
    serve.add_argument("--token-file", metavar="FILE", help="file with tokens, of which callers must send one")
    serve.add_argument("--max-body", type=positive, default=16, metavar="MB", help="largest request in megabytes (default: 16)")
    serve.add_argument("--max-rows", type=positive, default=1024, metavar="N", help="rows of a batch, and of a request (1024)")
    serve.add_argument("--queue", type=positive, default=256, metavar="N", help="requests that may wait; more get a 503 (256)")
    serve.add_argument("--timeout", type=above_zero, default=10.0, metavar="S", help="seconds until a request fails (10)")


def run_command(options: argparse.Namespace) -> int:
    from ..runs.open_run import open_run
    from ..serving.server import serve
    from ..serving.service import Limits

    limits = Limits(options.max_body * 2**20, options.max_rows, options.queue, options.timeout)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # the usual way to stop a server
        run = open_run(options.run, options.model, options.trust_code)
        serve(run, options.host, options.port, watch=options.watch, limits=limits, token_file=options.token_file)
    print("Stopped.", flush=True)
    return 0
