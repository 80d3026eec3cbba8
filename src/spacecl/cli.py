"""The command line. Commands load what they need when they run, so that --help answers at once."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import using
from .benchmarks.presets import ABLATIONS, BENCHMARKS
from .terminal import console, keep_interrupts, positive, show_warnings_as_text

RUN = """\
Learn the tasks of a benchmark one after another and measure what comes of it.

benchmarks:
{benchmarks}
  FOLDER            your own pictures: a folder for each task, in it one for each class
                    (or train/, test/ and perhaps valid/ with class folders in them)
  FILE.py           a Python file with a function tasks() that returns a list of spacecl.Task
"""
RUN_MORE = """\
examples:
  spacecl run split-cifar10 --data ~/data --out runs/c10
  spacecl run p-mnist --recipe paper --seed 1
  spacecl run permuted-digits --set options.variance=0.9 --set train.lr=0.001
  spacecl run my-pictures/ --model my_net.py:network --epochs 20
  spacecl run --resume --out runs/c10

Settings come from the benchmark's recipe, then from --config FILE, then from the command line. Any can be set with
--set KEY=VALUE: train.NAME is a value of spacecl.Recipe, options.NAME one of the method's, later=[{from=3, lr=0.001}] a
change from the third task on; values are written as in TOML. A run that was stopped, in whatever way, goes on with
the same command and ends with the same bits.

Exit codes: 0 done, 1 failed with a message, 2 wrong usage, 130 interrupted."""


def parser() -> argparse.ArgumentParser:
    from . import __version__

    top = argparse.ArgumentParser(
        prog="spacecl",
        description="Teach one fixed-size PyTorch network many tasks, one after another, without forgetting any.",
        epilog="Exit codes: 0 done, 1 failed with a message, 2 wrong usage, 130 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"spacecl {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _demo(commands)
    _run(commands)
    _tune(commands)
    _compare(commands)
    _report(commands)
    _data(commands)
    using.add(commands)
    return top


def _demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="five small tasks, SPACE beside plain fine-tuning, in about a minute",
        description="Learn five tasks in a row (handwritten digits, the pixels of each task in an order of its own), once with "
        "SPACE and once with plain fine-tuning. Show what each still knows, and save the network that SPACE taught.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--out", default="spacecl-demo", metavar="DIR", help="where to save the model")
    demo.add_argument("--tasks", type=positive, default=5, metavar="N", help="how many tasks to learn")
    demo.add_argument(
        "--variance", type=float, default=0.97, metavar="X", help="share of variance that new filters must explain"
    )
    demo.add_argument("--epochs", type=positive, default=30, metavar="N", help="epochs of training per task")
    demo.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same bits")
    demo.add_argument("--quiet", action="store_true", help="no progress bars")


def _run(commands: Any) -> None:
    names = "\n".join(f"  {name:17} {benchmark.title}" for name, benchmark in BENCHMARKS.items())
    run = commands.add_parser(
        "run",
        help="an experiment of the paper, or the same on your own data",
        description=RUN.format(benchmarks=names),
        epilog=RUN_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="one of the above")
    run.add_argument("--resume", action="store_true", help="go on with the run in --out, with the settings that it has")
    _trust(run)
    _one(run)
    _settings(run)
    run.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard, in the run's folder")
    run.add_argument(
        "--no-measure", action="store_true", help="do not measure latency and energy, which a busy machine would spoil"
    )


TUNE_MORE = """\
examples:
  spacecl tune p-fashion --method ewc --over strength=0.1,1,10,100,1000 --limit 600
  spacecl tune permuted-digits --method hat --over compressibility=0.1,0.5 --over train.lr=0.001,0.003
  spacecl tune split-cifar10 --over 'variance=0.8,0.9,{conv1=0.95, "*"=0.85}'

Every combination is a run of its own in the folder --out, with a tenth of the training data to judge by; test data are never
read. tune.json there lists all of them and what was spent. The same command goes on where it was stopped.

Exit codes: 0 done, 1 failed with a message or every combination diverged, 2 wrong usage, 130 interrupted."""


def _tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="choose a method's settings on validation data",
        description="Run a method with every combination of some values, compare them on validation data, and say which is "
        "best and what the search has cost.",
        epilog=TUNE_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tune.add_argument("benchmark", metavar="BENCHMARK", help="as for spacecl run")
    tune.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="KEY=V1,V2",
        help="values to try: of an option of the method, or of train.NAME; may be given many times",
    )
    _one(tune)
    _settings(tune)


COMPARE = """\
Run several methods, or the arms of a preset, each with several seeds, and print the paper's Table 1 for them: accuracy,
network size, energy, forgetting, training time. report.html in the folder shows it all.

presets:
{presets}
"""
COMPARE_MORE = """\
examples:
  spacecl compare split-cifar10 --methods all --seeds 3 --out runs/cmp
  spacecl compare permuted-digits --methods space,ewc,stl --set ewc.strength=10
  spacecl compare p-fashion --preset frontier --limit 1000
  spacecl compare --resume --out runs/cmp

Every run has a folder of its own below --out and a process of its own: one that fails is told of and does not touch the others.
The same command, or --resume with --out, does what is missing; a run that was stopped goes on from its last finished epoch.
Settings are those of spacecl run and hold for all; a method's own are written --set METHOD.NAME=VALUE. When all runs are done,
the latency of every network, and its energy where a meter can be read (pip install "spacecl[energy]"), are measured one by one.
--engine ray runs the same on the Ray cluster of `ray start` or $RAY_ADDRESS, whose nodes must all see the folder and the data.

Exit codes: 0 done, 1 some or all runs failed, 2 wrong usage, 130 interrupted."""


def _compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="several methods with several seeds, and a page that shows what came of it",
        description=COMPARE.format(presets="\n".join(f"  {name:12} {text}" for name, text in ABLATIONS.items())),
        epilog=COMPARE_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="as for spacecl run")
    what = compare.add_mutually_exclusive_group()
    what.add_argument("--methods", metavar="NAMES", help="all (default), or names with commas between them")
    what.add_argument("--preset", metavar="NAME", choices=tuple(ABLATIONS), help="one of the above in place of methods")
    compare.add_argument("--seeds", default="1", metavar="N", help="how many, from 0 on, or a list such as 0,5,7 (default 1)")
    compare.add_argument("--jobs", type=positive, metavar="N", help="runs at a time (default: one a core, as memory allows)")
    compare.add_argument("--engine", choices=("local", "ray"), default="local", help="where to run (default: local)")
    compare.add_argument("--resume", action="store_true", help="do what is missing in --out, with the settings that it has")
    _trust(compare)
    _settings(compare)


def _report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="a page, figures and tables from finished runs",
        description="Read every result.json in a folder and below it, print the table, and write report.html, one page that "
        "needs nothing else, and report/ with every figure as SVG and PNG and every table as CSV and Markdown.",
        epilog="Exit codes: 0 done, 1 failed with a message, 2 wrong usage.",
    )
    report.add_argument("folder", metavar="DIR", help="folder of a comparison, of many runs, or of one")


def _trust(command: argparse.ArgumentParser) -> None:
    command.add_argument("--trust-code", action="store_true", help="with --resume: run the Python files that the folder names")


def _one(run: argparse.ArgumentParser) -> None:
    """What a single run can be told."""
    run.add_argument("--method", metavar="NAME", help="space (default), stl, finetune, lwf, ewc, hat, packnet, ucb or joint")
    run.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same result (default 0)")
    run.add_argument("--variance", type=float, metavar="X", help="share of variance to keep, in every layer")


def _settings(run: argparse.ArgumentParser) -> None:
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


def _data(commands: Any) -> None:
    data = commands.add_parser(
        "data",
        help="list, fetch or check datasets",
        description="Say which datasets are there (list), download them from their publishers (fetch), or read them whole "
        "and compare them with what was published (check).",
        epilog="Exit codes: 0 done, 1 something is damaged, or missing though named, 2 wrong usage.",
    )
    data.add_argument("action", choices=("list", "fetch", "check"))
    data.add_argument("names", nargs="*", metavar="NAME", help="datasets, or benchmarks for all that they need (default: all)")
    data.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")
    data.add_argument("--force", action="store_true", help="fetch what is there already, too")
    data.add_argument("--quiet", action="store_true", help="no progress bars")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors made for users are shown as text, without a traceback."""
    try:
        with keep_interrupts():
            options = parser().parse_args(arguments)
            options.arguments = sys.argv[1:] if arguments is None else list(arguments)
            return _DO[options.command](options)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        from .errors import SpaceError

        if not isinstance(error, (SpaceError, OSError)):
            raise
        print(f"spacecl: {error}", file=sys.stderr)
        return 1


def _do_demo(options: argparse.Namespace) -> int:
    from . import demo

    demo.run(options.out, options.tasks, options.variance, options.epochs, options.seed, False if options.quiet else None)
    return 0


def _given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What a user has set for a run: the folder's own settings, if it is to be resumed, then a file, then the command line."""
    from . import config, folder

    names = ("benchmark", "method", "recipe", "seed", "tasks", "limit", "model", "device")
    flags = {key: getattr(options, key, None) for key in names}
    if options.order is not None:
        flags["order"] = config.assigned([f"order={_listed(options.order)}"])["order"]
    train = {key: getattr(options, key) for key in ("epochs", "retrain_epochs", "batch_size", "lr")}
    tables = {"train": _given(train), "options": _given({"variance": getattr(options, "variance", None)})}
    return config.merged(
        folder.settings_in(options.out) if options.command == "run" and options.resume and options.out else {},
        config.read(options.config) if options.config else {},
        _given(flags) | {name: table for name, table in tables.items() if table},
        config.assigned(options.set),
    )


def _do_tune(options: argparse.Namespace) -> int:
    from . import config, folder, tune

    show_warnings_as_text()
    given, over = _given_settings(options), tune.choices(options.over)
    out = options.out or f"runs/tune-{folder.short_name(given['benchmark'])}-{given.get('method', 'space')}"
    say = lambda text: print(text, flush=True)  # noqa: E731
    try:
        found = tune.tune(given, over, out, data=options.data, progress=False if options.quiet else None, say=say)
    except KeyboardInterrupt:
        print(f"\n{folder.interrupted(out)}", file=sys.stderr)
        return 130
    console().print(tune.table(found))
    if found["best"] is None:
        print("spacecl: every combination diverged. Try a lower learning rate: --lr ...", file=sys.stderr)
        return 1
    best = [part for key, value in found["best"].items() for part in ("--set", f"{key}={config.as_toml(value)}")]
    command = shlex.join(["spacecl", "run", *_without(options.arguments[1:], ("--over", "--out")), *best])
    print(f"{out}/tune.json has all of it. To use the best: {command}")
    return 0


def _without(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command line without some flags and their values."""
    found, skip = [], False
    for argument in arguments:
        if not skip and argument.partition("=")[0] not in flags:
            found.append(argument)
        skip = not skip and argument in flags
    return found


def _do_run(options: argparse.Namespace) -> int:
    from . import config, folder, run

    show_warnings_as_text()
    given = _given_settings(options)
    if options.resume and not options.out:
        raise config.ConfigError("--resume goes on with the run in a folder; say which with --out DIR.")
    if "benchmark" not in given:
        raise config.ConfigError(f"Which benchmark? One of {', '.join(BENCHMARKS)}, a folder of pictures or a Python file.")
    if options.resume and not options.trust_code:
        named = {options.benchmark, options.model}  # by the user, who knows what they are
        code = config.Config.from_file(Path(options.out) / "config.json").own_code()
        folder.refuse_code(options.out, [name for name in code if name in map(str, given.values()) and name not in named])
    settings = config.resolve(given, options.data)
    out = options.out or folder.folder_for(settings)
    try:
        result = run.run(
            settings,
            out,
            data=options.data,
            progress=False if options.quiet else None,
            tensorboard=options.tensorboard,
            measure=not options.no_measure,
            say=lambda text: print(text, flush=True),
        )
    except KeyboardInterrupt:
        print(f"\n{folder.interrupted(out)}", file=sys.stderr)
        return 130
    console().print(run.table(result))
    print(f"{out}/result.json has all of it, {out}/model the network.")
    return 0


def _do_compare(options: argparse.Namespace) -> int:
    from . import compare, config, figures, folder

    show_warnings_as_text()
    figures.check_installed()  # before hours of training, not after
    say = lambda text: print(text, flush=True)  # noqa: E731
    out, given = options.out, _given_settings(options)
    if options.resume and not out:
        raise config.ConfigError("--resume goes on with the runs in a folder; say which with --out DIR.")
    if options.resume and "benchmark" not in given:
        if given or options.methods or options.preset or options.seeds != "1":
            raise config.ConfigError(
                "--resume takes all settings from the folder: leave out the others, or name the benchmark."
            )
        folders = compare.planned(out)
    else:
        if "benchmark" not in given:
            raise config.ConfigError(f"Which benchmark? One of {', '.join(BENCHMARKS)}, a folder of pictures or a Python file.")
        out = out or compare.default_folder(given, options.preset or "compare")
        arms = compare.preset_arms(options.preset, given) if options.preset else compare.methods_arms(options.methods or "all")
        folders = compare.plan(given, arms, compare.seeds_of(options.seeds), Path(out), options.data)
    try:
        failed = compare.compare(
            out,
            folders,
            data=options.data,
            jobs=options.jobs,
            engine=options.engine,
            trust_code=options.trust_code or not options.resume or "benchmark" in given,
            progress=False if options.quiet else None,
            say=say,
        )
    except KeyboardInterrupt:
        print(f"\n{folder.interrupted(out)}", file=sys.stderr)
        return 130
    for text in failed:
        print(f"spacecl: failed: {text}", file=sys.stderr)
    if failed:
        again = ["spacecl", "compare", "--resume", "--out", str(out)]
        again += ["--data", options.data] if options.data else []
        again += ["--trust-code"] if options.trust_code else []
        again += ["--engine", options.engine] if options.engine != "local" else []
        print(f"spacecl: to do what is missing: {shlex.join(again)}", file=sys.stderr)
    if any((folder / "result.json").exists() for folder in folders):
        _show_report(out)
    return int(bool(failed))


def _do_report(options: argparse.Namespace) -> int:
    _show_report(options.folder)
    return 0


def _show_report(folder: str) -> None:
    """Print the table and write the page."""
    from rich.markup import escape
    from rich.table import Table

    from . import report, summary

    arms, left = summary.read(folder)
    titles, rows = summary.table(arms)
    shown = Table(title=escape(summary.title(arms)), caption_justify="left", caption=escape(summary.remarks(arms)))
    for title in titles:
        shown.add_column(title, justify="left" if title == "method" else "right", overflow="fold")
    for row in rows:
        shown.add_row(*map(escape, row))
    console().print(shown)
    if left:
        print(f"Left out: {', '.join(left)}.")
    print(f"{report.write(folder, arms, left)} shows it all.")


def _do_data(options: argparse.Namespace) -> int:
    from rich.markup import escape
    from rich.table import Table

    from .benchmarks import sources
    from .errors import ConfigError, SpaceError

    names = list(
        dict.fromkeys(n for name in options.names for n in (BENCHMARKS[name].datasets if name in BENCHMARKS else (name,)))
    )
    unknown = [name for name in names if name not in sources.DATASETS]
    if unknown:
        raise ConfigError(f"No such dataset: {', '.join(unknown)}. There are {', '.join(sources.DATASETS)}.")
    chosen = names if options.names else list(sources.DATASETS)
    failed = False
    if options.action == "fetch":
        roots = sources.named(options.data)
        into: Path = roots[0] if roots else sources.cache() / "downloads"
        for name in chosen:
            found = None if options.force else sources.check(name, str(into) if into.is_dir() else None)
            if found is not None and found.state in ("whole", "other"):
                print(
                    f"{name}: there already, in {found.folder}: {found.told}"
                    + ("" if found.state == "whole" else "; --force fetches it anew")
                )
                continue
            try:
                print(f"{name}: fetched into {sources.fetch(name, into, False if options.quiet else None)}")
            except SpaceError as error:
                failed = True
                print(f"spacecl: {error}", file=sys.stderr)
        return int(failed)
    table = Table()
    for column in ("dataset", "state", "what", "where"):
        table.add_column(column)
    for name in chosen:
        dataset = sources.DATASETS[name]
        if options.action == "list":
            folder = dataset.find(sources.places(options.data))
            state, told = ("there", dataset.title) if folder else ("missing", f"{dataset.title}. {dataset.how()}")
        else:
            found = sources.check(name, options.data)
            folder, told = found.folder, found.told
            state = {"whole": "as published", "other": "readable", "damaged": "damaged", "missing": "missing"}[found.state]
            failed |= found.state == "damaged" or (found.state == "missing" and bool(names))
        table.add_row(name, state, *(escape(text) for text in (told, str(folder or ""))))
    console().print(table)
    return int(failed)


_DO = {
    "demo": _do_demo,
    "run": _do_run,
    "tune": _do_tune,
    "compare": _do_compare,
    "report": _do_report,
    "data": _do_data,
    **using.DO,
}


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _listed(order: str) -> str:
    """Numbers with commas between them as a list; words as they are."""
    return f"[{order}]" if order[:1].isdigit() else order


if __name__ == "__main__":
    sys.exit(main())
