"""`spacecl export`: tasks' small networks as files."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .options import add_data, add_folder
from .terminal import show_warnings_as_text

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


def add_command(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="tasks' small networks as files: ONNX, torch.export, safetensors",
        description="Write the small network of one task, or of all, to files that run without spacecl.",
        epilog=EXPORT_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_folder(export)
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
    add_data(export)
    export.add_argument("--json", action="store_true", help="say it as JSON")


def run_command(options: argparse.Namespace) -> int:
    from ..errors import ConfigError
    from ..export.export import FORMATS
    from ..runs.delivery import deliver
    from ..runs.open_run import open_run

    show_warnings_as_text()
    if options.int8 != (options.calibrate is not None):
        raise ConfigError(
            "--int8 and --calibrate belong together: say which images to calibrate by, such as --calibrate train."
        )
    ending = next((name for name, end in FORMATS.items() if options.out and str(options.out).endswith(end)), "onnx")
    entries = deliver(
        open_run(options.run, options.model, options.trust_code),
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
