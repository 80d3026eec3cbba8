"""Prepare docstrings for the page of the reference: an extension of griffe, which reads them from the source.

Classes of options get the docstrings that they have when the program runs, with a line for every option. Everywhere, examples
become blocks of code, and parameters, which are written as `name : description`, come last.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

import spacecl
from spacecl.options import describe_options

PARAMETERS = "Parameters\n----------\n"


class Docstrings(griffe.Extension):
    """Rewrites every docstring of spacecl before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        kind = getattr(spacecl, obj.name, None) if obj.name in spacecl.__all__ else None
        options = describe_options(kind) if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__") else []
        has_options = any(option.help for option in options)
        if has_options and kind is not None and obj.path == f"{kind.__module__}.{kind.__qualname__}":
            obj.docstring = griffe.Docstring(inspect.cleandoc(kind.__doc__ or ""), parent=obj)
        elif obj.docstring is None:
            return
        obj.docstring.value = rewrite_docstring(inspect.cleandoc(obj.docstring.value), has_types=has_options)


def rewrite_docstring(text: str, has_types: bool = False) -> str:
    """Fence examples, and put parameters last, without a type unless `has_types`."""
    before, found, after = text.partition(PARAMETERS)
    entries, *rest = after.split("\n\n")
    if not has_types:
        entries = re.sub(r"^(\S.*?) : ", r"\1\n    ", entries, flags=re.MULTILINE)
    paragraphs = [_fence(paragraph) for paragraph in "\n\n".join([before.rstrip(), *rest]).split("\n\n")]
    return "\n\n".join([*paragraphs, *([found + entries] if found else [])])


def _fence(paragraph: str) -> str:
    """Put the lines of an example between fences."""
    text = inspect.cleandoc(paragraph)
    return f"```pycon\n{text}\n```" if text.startswith(">>>") else paragraph
