"""`spacecl run`: learn the tasks of a benchmark one after another, and measure the result."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..data.benchmarks.presets import BENCHMARKS
from .options import HelpFormatter, add_output, add_resume, add_settings, collect_settings, describe_settings
from .terminal import console

DESCRIPTION = """\
Learn the tasks of a benchmark one after another with one network, and measure accuracy, network
size and cost. A task has classes of its own, or several labels or values to predict.

benchmarks:
{benchmarks}
  FOLDER            your own pictures: one folder per task, with one folder per class in it
                    (or with train/, test/ and optionally valid/, which hold the class folders)
  FILE.py           a Python file with a function tasks() that returns a list of spacecl.Task
  FILE.py:NAME      another function of the file, or a benchmark that it registers with
                    spacecl.benchmarks.register, with a network and a recipe
"""
EPILOG = """\
Settings come from the benchmark's recipe, then from --config FILE, then from flags, then from --set.
Values are written as in TOML: --set 'options.variance={{conv1=0.95, "*"=0.9}}'.

{settings}

examples:
  spacecl run split-cifar10 --data ~/data --out runs/c10
  spacecl run p-mnist --recipe paper --seed 1
  spacecl run permuted-digits --set options.variance=0.9 --set train.lr=0.001
  spacecl run permuted-digits --set 'later=[{{from=3, lr=0.001}}]'
  spacecl run my-pictures/ --model my_net.py:network --epochs 20
  spacecl run permuted-digits --method my_method.py:L2Anchor --set options.strength=3
  spacecl run split-cifar10 --engine ray --devices 8 --data /shared/data --out /shared/runs/c10
  spacecl run --resume --out runs/c10

A run that was stopped, in whatever way, resumes with the same command, with the same result to
the bit.

Exit codes: 0 success, 1 failure with a message, 2 wrong usage, 130 interrupted."""
NO_BENCHMARK = f"Name a benchmark: one of {', '.join(BENCHMARKS)}, a folder of pictures, or a Python file."


def add_command(commands: Any) -> None:
    names = "\n".join(f"  {name:17} {benchmark.title}" for name, benchmark in BENCHMARKS.items())
    parser = commands.add_parser(
        "run",
        help="run an experiment of the paper, or the same on your own data",
        description=DESCRIPTION.format(benchmarks=names),
        formatter_class=HelpFormatter,
    )
    parser.declare = _declare


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG.format(settings=describe_settings())
    parser.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="one of the above")
    add_settings(parser)
    machines = parser.add_argument_group("several processes")
    machines.add_argument(
        "--devices",
        metavar="N",
        default="1",
        help="train with N processes, or auto: one for each accelerator (default: %(default)s); every batch is "
        "divided between them. On several machines, use --engine ray, or start torchrun ... -m spacecl run ... on each, with "
        "--out in a folder that all share",
    )
    machines.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="where to start them: on this machine, or on the nodes of the Ray cluster of `ray start` or $RAY_ADDRESS, which "
        "must all see --out and --data (default: local)",
    )
    add_resume(parser, "resume the run in --out, with the settings that it has")
    output = add_output(parser)
    output.add_argument("--tensorboard", action="store_true", help="also write logs for TensorBoard, to the run's folder")
    output.add_argument(
        "--no-measure",
        action="store_true",
        help="do not measure latency and energy; on a busy machine the numbers would be wrong",
    )


def run_command(options: argparse.Namespace) -> int:
    from ..errors import ConfigError
    from ..runs import cluster, processes, ranks, run
    from ..runs import run_folder as folder
    from ..runs.config import Config
    from ..runs.resolve import resolve
    from ..runs.summary import make_table

    if options.resume and not options.out:
        raise ConfigError("--resume needs the folder of the run: add --out DIR.")
    settings = collect_settings(options)
    if "benchmark" not in settings:
        raise ConfigError(NO_BENCHMARK)
    if options.resume and not options.trust_code:
        typed = {options.benchmark, options.model, options.method}  # by the user, who knows these files
        code = Config.from_file(Path(options.out) / "config.json").find_user_code()
        folder.refuse_code(options.out, [name for name in code if name in map(str, settings.values()) and name not in typed])
    config = resolve(settings, options.data)
    out = options.out or folder.choose_folder(config)
    if options.engine == "local" and not ranks.has_rank():
        devices = processes.count_devices(options.devices, config.device)
        if devices > 1:
            return processes.start_processes(devices, options.arguments)
    more: dict[str, Any] = {"data": options.data, "tensorboard": options.tensorboard, "measure": not options.no_measure}
    more["print_line"] = lambda text: print(text, flush=True)
    try:
        if options.engine == "ray":
            result = cluster.train_on_ray(config, out, options.devices, **more)
        else:
            result = run.run(config, out, progress=False if options.quiet else None, **more)
    except KeyboardInterrupt:
        if ranks.is_first():
            print(f"\n{folder.format_interrupted(out)}", file=sys.stderr)
        return 130
    if not ranks.is_first():
        return 0
    console().print(make_table(result))
    print(f"All results are in {out}/result.json, the network is in {out}/model.")
    return 0
