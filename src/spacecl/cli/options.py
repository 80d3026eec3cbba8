"""Options that several commands share, and the settings that they give."""

from __future__ import annotations

import argparse
from typing import Any


def add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument("--trust-code", action="store_true", help="with --resume: run the Python files that the folder names")


def add_single_run(run: argparse.ArgumentParser) -> None:
    """What a single run can be told."""
    run.add_argument("--method", metavar="NAME", help="space (default), stl, finetune, lwf, ewc, hat, packnet, ucb or joint")
    run.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same result (default 0)")
    run.add_argument("--variance", type=float, metavar="X", help="share of variance to keep, in every layer")


def add_settings(run: argparse.ArgumentParser) -> None:
    """What every run of a command can be told."""
    run.add_argument("--recipe", metavar="NAME", help="fast (default): a few minutes a task; paper: as published")
    run.add_argument("--out", metavar="DIR", help="folder for what comes out (default: runs/ and a name from the settings)")
    run.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else they are downloaded)")
    run.add_argument("--tasks", type=int, metavar="N", help="only the first N tasks")
    run.add_argument("--limit", type=int, metavar="N", help="only N images of each class")
    run.add_argument("--order", metavar="HOW", help="given (default), random, or numbers of tasks such as 3,1,2")
    run.add_argument("--model", metavar="NAME", help="mlp, mlp-small, cnn, cnn-wide, resnet18, or module:function of your own")
    run.add_argument("--epochs", type=int, metavar="N", help="epochs of training; short for --set train.epochs=N")
    run.add_argument(
        "--retrain-epochs",
        type=int,
        metavar="N",
        help="epochs of retraining; a method that does not retrain has these for training",
    )
    run.add_argument("--batch-size", type=int, metavar="N", help="examples in a step")
    run.add_argument("--lr", type=float, metavar="X", help="learning rate")
    run.add_argument("--device", metavar="NAME", help="auto (default), cpu, cuda or mps")
    run.add_argument("--config", metavar="FILE", help="settings in TOML")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting; may be given many times")
    run.add_argument("--quiet", action="store_true", help="no progress bars")


def add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="folder of a run, also of one that is not finished, or of learner.save()")
    command.add_argument("--model", metavar="NAME", help="what makes the network, as my_net.py:function, if not the run's own")
    command.add_argument("--trust-code", action="store_true", help="run the Python file that the folder names as its network")


def add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What a user has set for a run: the folder's own settings, if it is to be resumed, then a file, then the command line."""
    from ..runs import run_folder as folder
    from ..runs.resolve import merge_settings, parse_assignments, read_toml

    names = ("benchmark", "method", "recipe", "seed", "tasks", "limit", "model", "device")
    flags = {key: getattr(options, key, None) for key in names}
    if options.order is not None:
        flags["order"] = parse_assignments([f"order={as_list(options.order)}"])["order"]
    train = {key: getattr(options, key) for key in ("epochs", "retrain_epochs", "batch_size", "lr")}
    tables = {"train": drop_none(train), "options": drop_none({"variance": getattr(options, "variance", None)})}
    return merge_settings(
        folder.settings_in(options.out) if options.command == "run" and options.resume and options.out else {},
        read_toml(options.config) if options.config else {},
        drop_none(flags) | {name: table for name, table in tables.items() if table},
        parse_assignments(options.set),
    )


def drop_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def as_list(order: str) -> str:
    """Numbers with commas between them as a list; words as they are."""
    return f"[{order}]" if order[:1].isdigit() else order
