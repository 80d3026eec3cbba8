"""Write docs/options.md: every option of the recipe, the methods and a run's settings, from their declarations.

python docs/generate/options.py
"""

from __future__ import annotations

from pathlib import Path

from spacecl.learning.recipe import Recipe
from spacecl.methods import METHODS
from spacecl.options import describe_options
from spacecl.runs.config import Config

PAGE = Path(__file__).parents[1] / "options.md"


def make_page() -> str:
    """The page as Markdown."""
    sections = [
        _describe("Settings of a run", "Flags of `spacecl run`, keys of a `--config` file, or `--set NAME=VALUE`.", Config),
        _describe("Recipe", "How tasks are trained: `spacecl.Recipe(...)`, or `--set train.NAME=VALUE`.", Recipe),
    ]
    for name, method in METHODS.items():
        how = f"`spacecl.{name}(...)`, or `--method {name.lower()} --set options.NAME=VALUE`."
        sections.append(_describe(name, f"{(method.__doc__ or '').splitlines()[0]} {how}", method))
    note = "Written by `make docs` from the declarations that `help(spacecl.SPACE)` and `spacecl run --help` show, too."
    return f"# Options\n\n{note}\n\n" + "\n".join(sections)


def _describe(title: str, text: str, kind: type) -> str:
    rows = [
        f"| `{entry.name}` | {entry.values} | `{entry.default!r}` | {entry.help} |".replace("\n", " ")
        for entry in describe_options(kind)
    ]
    table = ["| option | values | default | meaning |", "|---|---|---|---|", *rows] if rows else ["It has no options."]
    return "\n".join([f"## {title}", "", text, "", *table, ""])


if __name__ == "__main__":
    PAGE.write_text(make_page())
