"""Real text that every Python has: the sources of its standard library, as rows of tokens.

A piece of text is a run of code, of comments or of one docstring, at most `LENGTH` tokens long. Files are divided between
training and test, not pieces, so that no test is about a file that was seen in training.
"""

from __future__ import annotations

import re
import sysconfig
import tokenize
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LENGTH, SHORTEST = 24, 6  # tokens of a piece of text
VOCABULARY = 2000  # token 0 is padding; a word's number is a hash, so nothing is counted beforehand
KINDS = ("code", "comment", "docstring")
PACKAGES = ("asyncio", "email", "multiprocessing", "xml")
Split = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]  # training and test data, as tokens and labels


def load_kinds(train: int, test: int, seed: int) -> Split:
    """Is a piece of text code, a comment or a docstring? Comments have no # here, and docstrings no quotes."""
    return _draw([(file, kind, kind) for file in sorted(_library().glob("*.py")) for kind in KINDS], KINDS, train, test, seed)


def load_packages(train: int, test: int, seed: int) -> Split:
    """Which of four packages does a piece of code come from?"""
    files = [(file, "code", name) for name in PACKAGES for file in sorted((_library() / name).rglob("*.py"))]
    return _draw(files, PACKAGES, train, test, seed)


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _draw(sources: Sequence[tuple[Path, str, str]], classes: Sequence[str], train: int, test: int, seed: int) -> Split:
    """Draw as many pieces of each class, from one fifth of the files for the test and from the others for training.

    A source is a file, the kind of text that counts, and its class.
    """
    rows: dict[tuple[bool, str], list[list[int]]] = {(part, name): [] for part in (False, True) for name in classes}
    for file, wanted, name in sources:
        held_out = zlib.crc32(str(file.relative_to(_library())).encode()) % 5 == 0
        rows[held_out, name] += [numbers for kind, numbers in _read_pieces(file) if kind == wanted]
    generator, parts = np.random.default_rng(seed), []
    for held_out, count in ((False, train), (True, test)):
        pieces = [rows[held_out, name] for name in classes]
        each = min(count // len(classes), *map(len, pieces))
        chosen = [piece[row] for piece in pieces for row in generator.permutation(len(piece))[:each]]
        parts.append((torch.tensor(chosen), torch.arange(len(classes)).repeat_interleave(each)))
    return parts[0], parts[1]


_cache: dict[Path, list[tuple[str, list[int]]]] = {}


def _read_pieces(file: Path) -> list[tuple[str, list[int]]]:
    if file not in _cache:
        _cache[file] = list(_split(file))
    return _cache[file]


def _split(file: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield the pieces of a file: what they are, and their tokens."""
    kind, words, before = "code", [], tokenize.NEWLINE
    try:
        with tokenize.open(file) as stream:
            tokens = list(tokenize.generate_tokens(stream.readline))
    except (SyntaxError, tokenize.TokenError):  # a file that is not Python text
        return
    for token in tokens:
        layout = token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
        if not layout:
            starts = before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
            is_docstring = token.type == tokenize.STRING and starts
            now = "comment" if token.type == tokenize.COMMENT else "docstring" if is_docstring else "code"
            if now != kind or is_docstring:
                yield from _cut(kind, words)
                kind, words = now, []
            words += re.findall(r"\w+|[^\w\s]", token.string.lstrip("# ") if now == "comment" else token.string.strip("rR'\""))
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type
    yield from _cut(kind, words)


def _cut(kind: str, words: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    for start in range(0, len(words), LENGTH):
        part = words[start : start + LENGTH]
        if len(part) >= SHORTEST:
            numbers = [1 + zlib.crc32(word.lower().encode()) % (VOCABULARY - 1) for word in part]
            yield kind, numbers + [0] * (LENGTH - len(part))
