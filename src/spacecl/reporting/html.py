"""Render the page as one HTML file that needs no network and no other files. The template is page.html.j2."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .drawing import COLOUR_VARIABLES, draw_legend_key, draw_panel
from .figures import Figure, check_installed
from .page import Page
from .text import to_printable

if TYPE_CHECKING:
    from jinja2 import Environment


def render(page: Page) -> str:
    """Return the page as HTML. Every text in it is escaped."""
    from markupsafe import Markup

    script = files(__package__).joinpath("page.js").read_text(encoding="utf-8")
    return (
        make_environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            colours=COLOUR_VARIABLES,
            script=Markup(script),  # our own file, not text of users
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


@cache
def make_environment() -> Environment:
    """Return the templates' environment, which escapes every text of users."""
    check_installed()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_to_output,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"draw_panels": _draw_panels, "draw_legend": _draw_legend}
    return environment


def _to_output(value: Any) -> Any:
    """Make text of users printable; Jinja escapes it afterwards. Our own markup stays as it is."""
    return to_printable(value) if type(value) is str else value


def _draw_panels(figure: Figure) -> list[Any]:
    from markupsafe import Markup

    return [Markup(draw_panel(panel, figure.title, f"{figure.name}-{number}-")) for number, panel in enumerate(figure.panels)]


def _draw_legend(figure: Figure) -> list[tuple[Any, str]]:
    """Return the line or bar of every series and its label; a single series needs no legend."""
    from markupsafe import Markup

    legend = figure.legend if len(figure.legend) > 1 else {}
    return [
        (Markup(draw_legend_key(series, f"{figure.name}-key{number}-")), label)
        for number, (label, series) in enumerate(legend.items())
    ]
