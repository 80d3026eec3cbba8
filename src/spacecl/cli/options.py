"""Flags that several commands share. Those of settings take type, default and help text from the declaration of the setting."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from ..options import Option

FLAGS = {  # settings that have a flag of their own, by the group in which --help shows them
    "what to learn": ("method", "model", "tasks", "limit", "order", "seed"),
    "how to train": (
        *("recipe", "train.epochs", "train.retrain_epochs", "train.batch_size", "train.lr"),
        *("options.variance", "device"),
    ),
}
OF_ONE_RUN = ("method", "seed", "options.variance")  # what `spacecl compare` varies


class CommandParser(argparse.ArgumentParser):
    """The parser of one command. `declare` adds its arguments when the command is used, so that `spacecl --help` is fast."""

    declare: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.declare is not None:
            declare, self.declare = self.declare, None
            declare(self)
        return super().parse_known_args(args, namespace)


class HelpFormatter(argparse.HelpFormatter):
    """Wrap the paragraphs of descriptions to the terminal, and keep those with indented lines, such as lists, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.rstrip().split("\n\n")
        for number, text in enumerate(paragraphs):
            if "\n  " not in text and not text.startswith("  "):
                paragraphs[number] = super()._fill_text(text, width, indent)
        return "\n\n".join(paragraphs)


def add_settings(command: argparse.ArgumentParser, one_run: bool = True) -> None:
    """Add the flags of settings, those of one run included if `one_run`, and where the data is and the output goes."""
    groups = {title: command.add_argument_group(title) for title in FLAGS}
    for title, names in FLAGS.items():
        for name in names:
            if one_run or name not in OF_ONE_RUN:
                _add_flag(groups[title], name)
    first = groups[next(iter(groups))]
    first.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else they are downloaded)")
    other = command.add_argument_group("other settings")
    other.add_argument("--config", metavar="FILE", help="read settings from a TOML file; flags override it")
    other.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set any setting that spacecl run --help lists; may be given several times",
    )


def add_output(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the group of flags for what a command writes and prints; commands add their own to it."""
    group = command.add_argument_group("output")
    group.add_argument("--out", metavar="DIR", help="output folder (default: a folder in runs/, named after the settings)")
    group.add_argument("--quiet", action="store_true", help="no progress bars")
    return group


def add_resume(command: argparse.ArgumentParser, help: str) -> None:
    group = command.add_argument_group("resuming")
    group.add_argument("--resume", action="store_true", help=help)
    group.add_argument(
        "--trust-code", action="store_true", help="with --resume: execute the Python files that the folder's settings name"
    )


def add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="folder of a run, finished or not, or of learner.save()")
    command.add_argument(
        "--model", metavar="NAME", help="function that builds the network, as my_net.py:function (default: the run's own)"
    )
    command.add_argument(
        "--trust-code", action="store_true", help="execute the Python file that the folder names as its network"
    )


def add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")


def collect_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that a user gave: those of the folder if it is resumed, then a TOML file, then flags, then `--set`."""
    from ..runs.config import rename_deprecated
    from ..runs.resolve import merge_settings, parse_assignments, read_toml
    from ..runs.run_folder import read_settings

    flags: dict[str, Any] = {}
    for name in ("benchmark", *(name for names in FLAGS.values() for name in names)):
        value = getattr(options, name, None)
        if value is not None:
            table, _, key = name.rpartition(".")
            (flags.setdefault(table, {}) if table else flags)[key] = value
    with _print_deprecations():
        settings = merge_settings(
            read_settings(options.out) if options.command == "run" and options.resume and options.out else {},
            read_toml(options.config) if options.config else {},
            flags,
            parse_assignments(options.set),
        )
        return rename_deprecated(settings, warn=True)


def describe_method(name: str, method: type) -> list[str]:
    """Lines that describe a method for `--help`: its summary and its options."""
    from ..options import describe_options

    summary = " ".join((method.__doc__ or "").split()).replace("`", "").partition(". ")[0].rstrip(".")
    lines = textwrap.wrap(f"{name}: {summary}", _width(), initial_indent="  ", subsequent_indent="    ")
    return [*lines, *_list_options(describe_options(method), "    ")]


def describe_settings() -> str:
    """All settings of a run, of training and of the methods, for `--help`: name, help text and, in brackets, the default."""
    from ..learning.recipe import Recipe
    from ..options import describe_options
    from ..runs.config import Config
    from ..runs.methods import METHOD_ORDER, get_methods

    flags = {name for names in FLAGS.values() for name in names} | {"benchmark", "train", "options"}
    lines = ["settings without a flag, --set NAME=VALUE (default in brackets):"]
    lines += _list_options([entry for entry in describe_options(Config) if entry.name not in flags])
    lines += ["", "training, --set train.NAME=VALUE (default in brackets, unless the recipe sets it):"]
    lines += _list_options(describe_options(Recipe))
    lines += ["", "methods and their options, --set options.NAME=VALUE (default in brackets):"]
    for name in reversed(METHOD_ORDER):
        lines += [*describe_method(name, get_methods()[name]), ""]
    return "\n".join(lines).rstrip()


def _list_options(entries: Sequence[Option], indent: str = "  ") -> list[str]:
    lines = []
    for entry in entries:
        default = _format_value(entry.default)
        text = _describe_option(entry) + (f" ({default})" if default else "")
        start, rest = f"{indent}{entry.name:20} ", " " * (len(indent) + 21)
        lines += textwrap.wrap(text, _width(), initial_indent=start, subsequent_indent=rest) or [start.rstrip()]
    return lines


def _width() -> int:
    return max(shutil.get_terminal_size().columns - 2, 60)


def _describe_option(entry: Option) -> str:
    """The help text of an option, with the words that it may be where the text does not name them all."""
    words = entry.values.removeprefix("one of ").split(", ") if entry.values.startswith("one of ") else []
    return entry.help if all(word in entry.help for word in words) else f"{entry.help}: {', '.join(words)}"


def _format_value(value: Any) -> str:
    """A default value for people; empty where there is none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value in (None, (), {}) else str(value)


def _add_flag(group: argparse._ArgumentGroup, name: str) -> None:
    """Add the flag of one setting, named as in `--set`."""
    from ..learning.recipe import Recipe
    from ..methods.space import SPACE
    from ..options import describe_options
    from ..runs.config import Config

    table, _, key = name.rpartition(".")
    kind = {"": Config, "train": Recipe, "options": SPACE}[table]
    entry = next(entry for entry in describe_options(kind) if entry.name == key)
    convert, metavar = _choose_converter(get_type_hints(kind)[key])
    default = _format_value(entry.default) if kind is Config else ""

    def parse(text: str) -> Any:
        try:
            return convert(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be {entry.values}") from None

    help = (_describe_option(entry) + (f" (default: {default})" if default else "")).replace("%", "%%")
    group.add_argument(f"--{key.replace('_', '-')}", dest=name, type=parse, metavar=metavar, help=help)


def _choose_converter(hint: Any) -> tuple[Callable[[str], Any], str]:
    """What turns the text of a flag into a value of a type, and what `--help` calls the value."""
    if any(get_origin(entry) is tuple for entry in get_args(hint)):
        return _parse_numbers, "LIST"
    for number, metavar in ((int, "N"), (float, "X")):
        if hint is number or number in get_args(hint):
            return number, metavar
    return str, "NAME"


def _parse_numbers(text: str) -> str | list[int]:
    """Numbers with commas between them as a list; other text as it is."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return text


@contextmanager
def _print_deprecations() -> Iterator[None]:
    """Print warnings of deprecated names, which Python would hide, as every other warning of the command line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeprecationWarning)
        yield
    for warning in caught:
        print(f"spacecl: warning: {warning.message}", file=sys.stderr)
