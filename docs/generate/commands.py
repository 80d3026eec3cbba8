"""Write docs/commands.md: every command with its arguments, from the declarations that `spacecl COMMAND --help` shows.

python docs/generate/commands.py
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from spacecl.cli.main import build_parser
from spacecl.cli.options import CommandParser, describe_settings

PAGE = Path(__file__).parents[1] / "commands.md"
WIDTH = "120"  # of the lists that descriptions contain


def make_page() -> str:
    """The page as Markdown."""
    os.environ["COLUMNS"] = WIDTH
    parser = build_parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    summaries = {choice.dest: choice.help for choice in commands._choices_actions}
    note = "Written by `make docs` from the declarations that `spacecl COMMAND --help` shows, too."
    index = [f"| [`spacecl {name}`](#spacecl-{name}) | {summary} |" for name, summary in summaries.items()]
    parts = ["# Commands", note, "\n".join(["| command | what it does |", "|---|---|", *index]), parser.epilog or ""]
    for name, command in commands.choices.items():
        parts += [f"## spacecl {name}", *_describe(command)]
    return "\n\n".join(parts) + "\n"


def _describe(command: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the description of a command, a table for each group of arguments, and what stands below them."""
    if isinstance(command, CommandParser) and command.declare is not None:
        command.declare(command)
    yield from _format_paragraphs(command.description or "")
    for group in command._action_groups:
        rows = [_format_argument(command, action) for action in group._group_actions if action.dest != "help"]
        if rows:
            yield "\n".join([f"| {group.title} | |", "|---|---|", *rows])
    epilog = (command.epilog or "").replace("%%", "%").replace("%(prog)s", command.prog)
    yield from _format_paragraphs(epilog.replace(describe_settings(), "All settings are in the list of [options](options.md)."))


def _format_argument(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper())
    names = [f"{name} {value}" if action.nargs != 0 else name for name in action.option_strings[-1:]] or [str(value)]
    text = command._get_formatter()._expand_help(action) if action.help else ""
    return f"| `{', '.join(names)}` | {text} |".replace("\n", " ")


def _format_paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs, those with indented lines as blocks of text."""
    for paragraph in text.strip().split("\n\n"):
        if "\n  " in paragraph or paragraph.startswith("  "):
            yield f"```text\n{paragraph}\n```"
        elif paragraph:
            yield paragraph


if __name__ == "__main__":
    PAGE.write_text(make_page())
