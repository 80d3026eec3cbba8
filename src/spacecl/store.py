"""Folders of tensors: safetensors files and one JSON manifest, written whole or not at all, never pickled.

Files are named by their content and written first; the manifest that lists them is replaced last, in one step. A crash
at any moment leaves the version before, whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
from torch import Tensor

from .documents import LARGEST_DOCUMENT, RESTORE, Count, FileName, Sha256, load_json, parse_document, read_bytes
from .errors import StoreError
from .graph import first_line

FORMAT = 2
MANIFEST = "spacecl.json"
TEMPORARY = ".spacecl-tmp"
Body = TypeVar("Body")


@dataclass(frozen=True)
class StoredFile:
    """A file of tensors as a manifest lists it."""

    file: FileName
    bytes: Count
    sha256: Sha256


@dataclass(frozen=True)
class Listing:
    """The part of a manifest that every folder has."""

    files: dict[str, StoredFile]


def save(folder: str | os.PathLike[str], body: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write named sets of tensors and a JSON body as the new content of a folder."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    listed = {}
    for name, tensors in files.items():
        data = safetensors.torch.save({key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()})
        digest = hashlib.sha256(data).hexdigest()
        file = path / f"{digest[:32]}.safetensors"
        if not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            write_whole(file, data, named=False)
        listed[name] = {"file": file.name, "bytes": len(data), "sha256": digest}
    on_disk(path)
    content = {"format": FORMAT, **body, "files": listed}
    text = json.dumps({"sha256": _checksum(content), "content": content}, indent=1)
    write_whole(path / MANIFEST, text.encode())
    used = {entry["file"] for entry in listed.values()}
    for file in path.glob("*.safetensors"):  # of the version before, or left by a save that was killed
        if file.name not in used and re.fullmatch(r"[0-9a-f]{32}", file.stem):
            file.unlink(missing_ok=True)


def load(folder: str | os.PathLike[str], kind: type[Body]) -> tuple[Body, dict[str, dict[str, Tensor]]]:
    """Read a folder back: the body as a value of its type, and the sets of tensors, every byte checked."""
    body, files = read_manifest(folder, kind)
    return body, {name: _read(Path(folder), entry, name) for name, entry in files.items()}


def damaged(folder: str | os.PathLike[str], files: Mapping[str, StoredFile]) -> dict[str, str]:
    """What is wrong with each set of tensors of a folder, in words; empty if all are as they were written."""
    found = {}
    for name, entry in files.items():
        try:
            _read(Path(folder), entry, name)
        except StoreError as error:
            found[name] = str(error)
    return found


def read_manifest(folder: str | os.PathLike[str], kind: type[Body]) -> tuple[Body, dict[str, StoredFile]]:
    """The body of a folder as a value of its type, and the files that it lists, which are not read."""
    manifest = Path(folder) / MANIFEST
    if not os.path.lexists(manifest):
        raise StoreError(f"{folder} holds no saved learner: there is no {MANIFEST} in it.")
    document = load_json(read_bytes(manifest, LARGEST_DOCUMENT), manifest)
    if not isinstance(document, dict) or not isinstance(document.get("content"), dict):
        raise StoreError(f"{manifest} is damaged or truncated: it is not what spacecl writes. {RESTORE}")
    content = document["content"]
    if document.get("sha256") != _checksum(content):
        raise StoreError(f"{manifest} was changed after it was written: its checksum does not match. {RESTORE}")
    if content.get("format") != FORMAT:
        raise StoreError(f"{manifest} has format {content.get('format')!r}; this version of spacecl reads format {FORMAT}.")
    text = json.dumps(content).encode()
    return parse_document(text, kind, manifest), parse_document(text, Listing, manifest).files


def _read(folder: Path, entry: StoredFile, name: str) -> dict[str, Tensor]:
    file = folder / entry.file
    try:
        about = file.lstat()
    except FileNotFoundError:
        raise StoreError(f"{file} ({name}) is missing. {RESTORE}") from None
    if stat.S_ISREG(about.st_mode) and about.st_size != entry.bytes:
        how = "truncated" if about.st_size < entry.bytes else "too long"
        raise StoreError(f"{file} ({name}) is {how}: {about.st_size} bytes instead of {entry.bytes}. {RESTORE}")
    data = read_bytes(file, entry.bytes)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise StoreError(f"{file} ({name}) was changed after it was written: its checksum does not match. {RESTORE}")
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise StoreError(f"{file} ({name}) is not a safetensors file: {first_line(error)}. {RESTORE}") from error


def _checksum(content: Mapping[str, Any]) -> str:
    try:
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        return ""  # nested deeper than anything that was ever written


def write_whole(file: Path, data: bytes, named: bool = True) -> None:
    """Write a file under another name, make sure that it is on the disk, and put it in place in one step.

    Without `named`, the caller sees to it that the file's name is on the disk, too: once for many.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}{TEMPORARY}")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    finally:
        for left in file.parent.glob(f".{file.name}.*{TEMPORARY}"):  # this one, or one of a process that was killed
            left.unlink(missing_ok=True)
    if named:
        on_disk(file.parent)


def on_disk(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
