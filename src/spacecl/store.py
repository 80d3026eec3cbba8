"""Folders of tensors: safetensors files and one JSON manifest, written whole or not at all, never pickled.

Files are named by their content and written first; the manifest that lists them is replaced last, in one step. A crash
at any moment leaves the version before, whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from .errors import StoreError

FORMAT = 2
MANIFEST = "spacecl.json"
TEMPORARY = ".spacecl-tmp"


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


def load(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Read a folder back: the body and the sets of tensors, every byte checked."""
    content = read_manifest(folder)
    return content, {name: _read(Path(folder) / entry["file"], entry, name) for name, entry in content["files"].items()}


def damaged(folder: str | os.PathLike[str]) -> dict[str, str]:
    """What is wrong with each set of tensors of a folder, in words; empty if all are as they were written."""
    found = {}
    for name, entry in read_manifest(folder)["files"].items():
        try:
            _read(Path(folder) / entry["file"], entry, name)
        except StoreError as error:
            found[name] = str(error)
    return found


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The body of a folder, checked, without its tensors."""
    path = Path(folder)
    manifest = path / MANIFEST
    if not manifest.is_file():
        raise StoreError(f"{path} holds no saved learner: there is no {MANIFEST} in it.")
    try:
        document = json.loads(manifest.read_bytes())
        content, checksum = document["content"], document["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{manifest} is truncated or damaged: it cannot be read as JSON. Restore it from a copy.") from error
    if checksum != _checksum(content):
        raise StoreError(f"{manifest} was changed after it was written: its checksum does not match. Restore it from a copy.")
    if content["format"] != FORMAT:
        raise StoreError(f"{manifest} has format {content['format']}; this version of spacecl reads format {FORMAT}.")
    return content


def _read(file: Path, entry: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    if not file.is_file():
        raise StoreError(f"{file} ({name}) is missing. Restore it from a copy.")
    data = file.read_bytes()
    if len(data) != entry["bytes"]:
        how = "truncated" if len(data) < entry["bytes"] else "too long"
        raise StoreError(f"{file} ({name}) is {how}: {len(data)} bytes instead of {entry['bytes']}. Restore it from a copy.")
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise StoreError(
            f"{file} ({name}) was changed after it was written: its checksum does not match. Restore it from a copy."
        )
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise StoreError(f"{file} ({name}) is not a safetensors file: {error}. Restore it from a copy.") from error


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
