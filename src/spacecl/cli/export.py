"""`spacecl export`: write the small networks of tasks to files."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

from .options import HelpFormatter, add_data, add_folder
from .terminal import positive

EPILOG = """\
examples:
  spacecl export runs/c10 --task cifar10-1                         # runs/c10/export/cifar10-1.onnx
  spacecl export runs/c10 --task cifar10-1 --out cats.onnx
  spacecl export runs/c10 --all --format safetensors --out small/  # and small/index.json
  spacecl export runs/c10 --all --tune                             # the padding that is fastest on this machine
  spacecl export runs/c10 --all --together                         # runs/c10/export/tasks.onnx
  spacecl export runs/c10 --all --int8 --calibrate train --data ~/data

formats:
  onnx         for onnxruntime and others; any batch size; needs pip install "spacecl[onnx]"
  torch        a torch.export program, .pt2: torch.export.load("x.pt2").module()
  safetensors  plain weights, and a .json with widths, layers and shapes, to load into a network of your own

ONNX and torch.export networks are run once before they are written; except with --int8, their output must equal PyTorch's to
1e-4. Batch norms are folded into the layers before them where possible. Files say how to turn pictures into inputs: mean,
standard deviation and shape.

Exit codes: 0 success, 1 failure with a message, 2 wrong usage, 130 interrupted."""


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "export",
        help="write the small networks of tasks to files: ONNX, torch.export, safetensors",
        description="Write the small network of one task, or of all tasks, to files that run without spacecl.",
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    add_folder(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--task", action="append", metavar="NAME", help="a task; may be given several times")
    which.add_argument("--all", action="store_true", help="all tasks, and an index.json")
    parser.add_argument(
        "--format", choices=("onnx", "torch", "safetensors"), help="default: from the file extension of --out, or onnx"
    )
    parser.add_argument("--out", metavar="PATH", help="folder or, for one task, file (default: RUN/export)")
    parser.add_argument("--no-fold", action="store_true", help="do not fold batch norms")
    parser.add_argument(
        "--pad", type=positive, default=1, metavar="N", help="fill widths with zero filters up to a multiple, such as 16"
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="measure several paddings and the dense network in onnxruntime on one thread, and keep the fastest (ONNX only)",
    )
    parser.add_argument(
        "--together", action="store_true", help="one ONNX file with an output for every task, and shared weights only once"
    )
    parser.add_argument(
        "--int8", action="store_true", help="quantize weights and activations to int8 (ONNX only); needs --calibrate"
    )
    parser.add_argument(
        "--calibrate",
        metavar="SOURCE",
        help="images that set the int8 ranges: a folder of pictures, an array in .npy, or train for the run's training data",
    )
    add_data(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_command(options: argparse.Namespace) -> int:
    from ..errors import ConfigError
    from ..export.export import FORMATS
    from ..progress import format_score
    from ..runs.export_run import export_run, export_run_together
    from ..runs.open_run import open_run

    if options.int8 != (options.calibrate is not None):
        raise ConfigError(
            "--int8 and --calibrate need each other. Name the images to calibrate with, such as --calibrate train."
        )
    print_line = (lambda text: None) if options.json else partial(print, flush=True)
    tasks = None if options.all else list(dict.fromkeys(options.task))
    run = open_run(options.run, options.model, options.trust_code)
    if options.together:
        if options.int8 or options.tune or options.pad > 1 or options.format not in (None, "onnx"):
            raise ConfigError("--together writes an ONNX file of its own kind: leave out --int8, --tune, --pad and --format.")
        info = export_run_together(run, tasks, options.out, print_line)
        if options.json:
            print(json.dumps(info, indent=1))
        return 0
    format_of_out = next((name for name, end in FORMATS.items() if options.out and str(options.out).endswith(end)), "onnx")
    entries = export_run(
        run,
        tasks,
        options.out,
        format=options.format or format_of_out,
        fold=not options.no_fold,
        calibrate=options.calibrate,
        data=options.data,
        pad=options.pad,
        tune=options.tune,
        print_line=print_line,
    )
    if options.json:
        print(json.dumps(entries, indent=1))
        return 0
    for entry in entries:
        score = entry.get("score")
        if score:
            before, after = (format_score(value, entry["metric"]) for value in (score["before"], score["after"]))
            print(f"{entry['task']}: {entry['metric']} {before} before, {after} with int8")
        elif entry.get("not_measured"):
            print(f"spacecl: {entry['metric']} was not measured: {entry['not_measured']}", file=sys.stderr)
    return 0
