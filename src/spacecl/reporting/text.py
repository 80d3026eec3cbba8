"""Make text of users safe for the files that it goes into: CSV, Markdown, and any other text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Sequence

DASH = "\N{EN DASH}"  # for values that are not known


def to_printable(text: str) -> str:
    """Replace characters that text files cannot hold, such as control characters and halves of surrogate pairs."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


def to_csv(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([to_csv_cell(text) for text in row] for row in (titles, *rows))
    return stream.getvalue()


def to_csv_cell(text: str) -> str:
    """Put a quotation mark before text that spreadsheets would run as a formula."""
    text = to_printable(text)
    return f"'{text}" if re.match(r"\s*[=@]|\s*[-+](?![\d.,e%±+ -]*$|inf$|nan$)", text) else text


def to_markdown(titles: Sequence[str], rows: Sequence[Sequence[str]], best: Collection[tuple[int, int]] = frozenset()) -> str:
    """Format a table as Markdown, numbers to the right; cells in `best`, by row and column, are bold."""
    cells = [[to_markdown_text(text) for text in row] for row in rows]
    for row, column in best:
        cells[row][column] = f"**{cells[row][column]}**"
    lines = [f"| {' | '.join(row)} |" for row in ([to_markdown_text(title) for title in titles], *cells)]
    return "\n".join([lines[0], f"|---{'|---:' * (len(titles) - 1)}|", *lines[1:]]) + "\n"


def to_markdown_text(text: str) -> str:
    """Escape text for a cell of a Markdown table: no markup, no HTML, no line breaks."""
    return re.sub(r"([\\`*_\[\]<>&|~$])", r"\\\1", " ".join(to_printable(text).split()))


def to_markdown_code(text: str) -> str:
    """Format a command for a cell of a Markdown table."""
    text = " ".join(to_printable(text).split()).replace("|", "\\|")
    marks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{marks} {text} {marks}" if len(marks) > 1 else f"{marks}{text}{marks}"


def capitalize(text: str) -> str:
    """A text with a capital first letter; the rest stays as it is.

    >>> capitalize("mean average precision"), capitalize("R²")
    ('Mean average precision', 'R²')
    """
    return text[:1].upper() + text[1:]
