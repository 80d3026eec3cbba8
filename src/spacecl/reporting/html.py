"""One page of HTML that needs nothing else: no network, no files beside it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from .figures import VARIABLES, Figure, inline, key, printable


@dataclass(frozen=True)
class Section:
    """A part of the page: a heading with remarks, then figures, tables, commands and settings."""

    name: str
    title: str
    notes: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[tuple[str, list[str], list[list[str]]]] = ()  # each with a name, titles and rows
    folded_figures: Sequence[str] = ()  # names of those that are opened by the reader
    folded_tables: Sequence[str] = ()
    commands: Sequence[tuple[str, list[str]]] = ()  # what for, and the command's parts
    settings: Mapping[str, Any] = field(default_factory=dict)


def page(title: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a>' for section in sections)
    body = "\n".join(map(_section, sections))
    script = _beside("page.js")
    policy = _POLICY.format(script=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    return _PAGE.format(policy=policy, title=escape(title), style=_style(), links=links, body=body, script=script)


def escape(text: str) -> str:
    """Text as HTML shows it, in an element or an attribute."""
    return html.escape(printable(text))


def _section(section: Section) -> str:
    notes = [f"<p>{escape(note)}</p>" for note in section.notes]
    tables = [
        _folded(f"Table: {name.replace('-', ' ')}", name in section.folded_tables, _table(name, titles, rows))
        for name, titles, rows in section.tables
    ]
    figures = [_folded(figure.title, figure.name in section.folded_figures, _figure(figure)) for figure in section.figures]
    body = [*tables, *notes, *figures] if section.name == "table" else [*notes, *figures, *tables]  # the answer comes first
    parts = [f'<section id="{section.name}">', f"<h2>{escape(section.title)}</h2>", *body]
    for what, command in section.commands:
        parts.append(
            f"<figure class=command><figcaption>{escape(what)}</figcaption><pre>{escape(shlex.join(command))}</pre></figure>"
        )
    for what, values in section.settings.items():
        text = escape(json.dumps(values, indent=1))
        parts.append(f"<details><summary>All settings: {escape(what)}</summary><pre>{text}</pre></details>")
    return "\n".join([*parts, "</section>"])


def _folded(title: str, folded: bool, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{text}</details>" if folded else text


def _table(name: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th scope=col>{escape(title)}</th>" for title in titles)
    body = "".join(
        f"<tr><th scope=row>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    content = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class=scroll tabindex=0><table id="table-{name}">{content}</table></div>'


def _figure(figure: Figure) -> str:
    marks = f"{figure.name}-"
    panels = "".join(
        f"<div class=panel>{inline(panel, figure.title, f'{marks}{n}-')}</div>" for n, panel in enumerate(figure.panels)
    )
    legend = figure.legend
    keys = [
        f"<span class=key>{key(entry, f'{marks}key{n}-')}{escape(name)}</span>"
        for n, (name, entry) in enumerate(legend.items())
    ]
    grid = "panels many" if len(figure.panels) > 1 else "panels"
    return (
        f'<figure id="figure-{figure.name}"><figcaption>{escape(figure.title)}</figcaption>'
        f"<div class=legend>{''.join(keys) if len(keys) > 1 else ''}</div><div class='{grid}'>{panels}</div></figure>"
    )


def _style() -> str:
    light = "".join(f"--{name}:{pair[0]};" for name, pair in VARIABLES.items())
    dark = "".join(f"--{name}:{pair[1]};" for name, pair in VARIABLES.items())
    return _beside("page.css").replace("/*light*/", light).replace("/*dark*/", dark)


def _beside(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


# A browser runs this page's script and no other, whatever the names in it, and loads nothing. Styles stand in attributes, too.
_POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header><h1>{title}</h1><nav>{links}</nav></header>
<main>
{body}
</main>
<div id="tip" role="status" hidden></div>
<script>{script}</script>
</body>
</html>
"""
