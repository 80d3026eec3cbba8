"""The commands that use what was learned: export, serve, verify, inspect. They load what they need when they run."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from contextlib import suppress
from typing import Any

from .terminal import above_zero, console, positive, show_warnings_as_text, zero_or_more

EXPORT_MORE = """\
examples:
  spacecl export runs/c10 --task cifar10-1                         # runs/c10/export/cifar10-1.onnx
  spacecl export runs/c10 --task cifar10-1 --out cats.onnx
  spacecl export runs/c10 --all --format safetensors --out small/  # and small/index.json
  spacecl export runs/c10 --all --int8 --calibrate train --data ~/data

formats:
  onnx         for onnxruntime and others; any number of rows; needs pip install "spacecl[onnx]"
  torch        a torch.export program, .pt2: torch.export.load("x.pt2").module()
  safetensors  plain weights, and a .json with widths, layers and shapes, to load into a network of one's own

Every file is asked a question when it is written and must answer as PyTorch does, to 1e-4. Batch norms are folded into the
layers before them where they can be. Files say how pictures become inputs: mean, spread and shape.

Exit codes: 0 done, 1 failed with a message, 2 wrong usage, 130 interrupted."""
SERVE_MORE = """\
examples:
  spacecl serve runs/c10
  spacecl serve runs/c10 --port 0 --watch
  curl localhost:8080/v2/models
  curl localhost:8080/v2/models/cifar10-1/infer -d '{"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 3, 32, 32],
    "data": [...]}]}'

The server speaks the Open Inference Protocol, version 2, with binary tensors: clients such as tritonclient work with it.
Every task is a model; the model "infer" finds out the task itself. The page at / takes a picture and shows every task's
answer. There is no password: whoever reaches the address can ask, so it listens to this machine alone unless told otherwise.

Exit codes: 0 stopped, 1 failed with a message, 2 wrong usage."""
VERIFY_MORE = """\
examples:
  spacecl verify runs/c10
  spacecl verify runs/c10 --data ~/data --json

Exit codes: 0 all is as it was committed, 1 something is not, or cannot be read, 2 wrong usage."""


def add(commands: Any) -> None:
    """Add the commands to a command line."""
    raw = argparse.RawDescriptionHelpFormatter
    export = commands.add_parser(
        "export",
        help="tasks' small networks as files: ONNX, torch.export, safetensors",
        description="Write the small network of one task, or of all, to files that run without spacecl.",
        epilog=EXPORT_MORE,
        formatter_class=raw,
    )
    _folder(export)
    which = export.add_mutually_exclusive_group(required=True)
    which.add_argument("--task", action="append", metavar="NAME", help="a task; may be given many times")
    which.add_argument("--all", action="store_true", help="every task, and an index.json")
    export.add_argument("--format", choices=("onnx", "torch", "safetensors"), help="default: by the ending of --out, or onnx")
    export.add_argument("--out", metavar="PATH", help="folder or, for one task, file (default: RUN/export)")
    export.add_argument("--no-fold", action="store_true", help="leave batch norms as they are")
    export.add_argument("--int8", action="store_true", help="weights and activations as bytes (ONNX); needs --calibrate")
    export.add_argument(
        "--calibrate",
        metavar="WHAT",
        help="images to find ranges by: a folder of pictures, an array in .npy, or train, the run's own data",
    )
    _data(export)
    export.add_argument("--json", action="store_true", help="say it as JSON")

    serve = commands.add_parser(
        "serve",
        help="a server that answers for every task, and a page to drop pictures on",
        description="Serve every task of a run over HTTP, requests of all tasks batched together.",
        epilog=SERVE_MORE,
        formatter_class=raw,
    )
    _folder(serve)
    serve.add_argument("--host", default="127.0.0.1", metavar="NAME", help="address to listen to (default: 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8080, metavar="N", help="port (default: 8080; 0 takes a free one)")
    serve.add_argument("--watch", action="store_true", help="take up tasks that are learned into the folder meanwhile")
    serve.add_argument("--max-body", type=positive, default=16, metavar="MB", help="largest request in megabytes (default: 16)")
    serve.add_argument("--max-rows", type=positive, default=1024, metavar="N", help="rows of a batch, and of a request (1024)")
    serve.add_argument("--queue", type=positive, default=256, metavar="N", help="requests that may wait; more get a 503 (256)")
    serve.add_argument("--timeout", type=above_zero, default=10.0, metavar="S", help="seconds until a request is given up (10)")

    verify = commands.add_parser(
        "verify",
        help="prove that every task is what was committed",
        description="Hold the bytes of every task's network against the digest of its commit and, with data, its accuracy "
        "against what the run wrote down.",
        epilog=VERIFY_MORE,
        formatter_class=raw,
    )
    _folder(verify)
    verify.add_argument("--accuracy", action="store_true", help="measure accuracy, too; --data asks for the same")
    verify.add_argument(
        "--tolerance",
        type=zero_or_more,
        default=0.001,
        metavar="X",
        help="by how much accuracy may differ: other machines round otherwise (0.001)",
    )
    _data(verify)
    verify.add_argument("--json", action="store_true", help="say it as JSON")

    inspect = commands.add_parser(
        "inspect",
        help="tasks, widths, free channels, and how many more tasks will fit",
        description="Show what a run has learned, and what room it has left.",
        epilog="Exit codes: 0 done, 1 failed with a message, 2 wrong usage.",
    )
    _folder(inspect)
    inspect.add_argument("--json", action="store_true", help="say it as JSON")


def _folder(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="folder of a run, also of one that is not finished, or of learner.save()")
    command.add_argument("--model", metavar="NAME", help="what makes the network, as my_net.py:function, if not the run's own")
    command.add_argument("--trust-code", action="store_true", help="run the Python file that the folder names as its network")


def _data(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")


def _do_export(options: argparse.Namespace) -> int:
    from .delivery import deliver
    from .errors import ConfigError
    from .export import FORMATS
    from .opened import opened

    show_warnings_as_text()
    if options.int8 != (options.calibrate is not None):
        raise ConfigError(
            "--int8 and --calibrate belong together: say which images to calibrate by, such as --calibrate train."
        )
    ending = next((name for name, end in FORMATS.items() if options.out and str(options.out).endswith(end)), "onnx")
    entries = deliver(
        opened(options.run, options.model, options.trust_code),
        None if options.all else list(dict.fromkeys(options.task)),
        options.out,
        format=options.format or ending,
        fold=not options.no_fold,
        calibrate=options.calibrate,
        data=options.data,
        say=(lambda text: None) if options.json else lambda text: print(text, flush=True),
    )
    if options.json:
        print(json.dumps(entries, indent=1))
        return 0
    for entry in entries:
        measured = entry.get("accuracy")
        if measured:
            print(f"{entry['task']}: accuracy {measured['before']:.2%} before, {measured['after']:.2%} as bytes")
        elif entry.get("not_measured"):
            print(f"spacecl: accuracy was not measured: {entry['not_measured']}", file=sys.stderr)
    return 0


def _do_serve(options: argparse.Namespace) -> int:
    from . import serve
    from .opened import opened

    show_warnings_as_text()
    limits = serve.Limits(options.max_body * 2**20, options.max_rows, options.queue, options.timeout)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # which is how a server is stopped
        serve.run(
            opened(options.run, options.model, options.trust_code),
            options.host,
            options.port,
            watch=options.watch,
            limits=limits,
        )
    print("Stopped.", flush=True)
    return 0


def _do_verify(options: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from . import audit
    from .errors import SpaceError
    from .opened import opened

    show_warnings_as_text()
    measure = options.accuracy or options.data is not None
    try:
        found = audit.verify(opened(options.run, options.model, options.trust_code), measure, options.data, options.tolerance)
    except SpaceError as error:
        if options.json:
            print(json.dumps({"folder": options.run, "ok": False, "error": str(error)}, indent=1))
        raise
    if options.json:
        print(json.dumps(found, indent=1))
        return int(not found["ok"])
    table = Table()
    for column in ("task", "digest", "bytes", *(("accuracy", "recorded") if measure else ())):
        table.add_column(column, overflow="fold")
    for task in found["tasks"]:
        state = "NOT as committed" if task["digest"] else "cannot be read"
        state = state if task["problem"] else "as committed"
        row = [task["task"], (task["digest"] or "")[:16], state]
        row += [f"{task[key]:.2%}" if key in task else "" for key in ("accuracy", "recorded")] if measure else []
        table.add_row(*map(escape, row))
    console().print(table)
    for text in [f"{task['task']}: {task['problem']}" for task in found["tasks"] if task["problem"]] + found["lost"]:
        print(f"spacecl: {text}", file=sys.stderr)
    if found["ok"]:
        print(f"All {len(found['tasks'])} tasks are what was committed.")
    return int(not found["ok"])


def _do_inspect(options: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from . import audit
    from .opened import opened
    from .progress import dashed

    run = opened(options.run, options.model, options.trust_code)
    code = run.untrusted_code
    found = audit.inspect_without_code(run) if code else audit.inspect(run.learner())
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    tasks, layers = Table(title=f"{len(found['tasks'])} tasks, {found['method']}"), Table(title="Room")
    for column in ("task", "classes", "validated", "parameters", "all so far", "widths"):
        tasks.add_column(column, justify="left" if column in ("task", "widths") else "right", overflow="fold")
    for task in found["tasks"]:
        row = (task["task"], str(task["classes"]), f"{task['accuracy']:.2%}", f"{task['parameters']:,}")
        tasks.add_row(*map(escape, row), f"{task['size']:.1%}", dashed(task["widths"]))
    console().print(tasks)
    for column in ("layer", "has", "taken", "free", "taken by the last task"):
        layers.add_column(column, justify="left" if column == "layer" else "right")
    for layer, counts in (found["layers"] or {}).items():
        layers.add_row(escape(layer), *(f"{counts[key]:,}" for key in ("of", "taken", "free", "last")))
    if found["layers"]:
        console().print(layers)
    if code:
        print(
            f"What is free is not shown: that takes running {code[0]}, which the folder names as its network. "
            "If you trust it, say so with --trust-code."
        )
    else:
        print(_forecast(found))
    return 0


def _forecast(found: dict[str, Any]) -> str:
    forecast, layers = found["forecast"], found["layers"]
    if not found["tasks"]:
        return "No task has been learned yet."
    if not layers:
        return "Every task has the whole network: any number of tasks fits."
    full = f" Nothing is free in {', '.join(forecast['full'])}." if forecast["full"] else ""
    if forecast["layer"] is None:
        return f"The last task took nothing new: any number of tasks like it fits.{full}"
    counts, count = layers[forecast["layer"]], forecast["tasks"]
    fit = {0: "No task more like the last fits", 1: "One task more like the last fits"}
    said = fit.get(count, f"{count} tasks more like the last fit")
    return f"{said}: layer {forecast['layer']} has {counts['free']:,} free, and the last task took {counts['last']:,}.{full}"


DO = {"export": _do_export, "serve": _do_serve, "verify": _do_verify, "inspect": _do_inspect}
