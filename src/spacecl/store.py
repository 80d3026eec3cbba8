"""Folders of tensors: safetensors files and one JSON manifest, written whole or not at all, never pickled.

Files are named by their content and written first; the manifest that lists them is replaced last, in one step. A crash
at any moment leaves the version before, whole. Writers take turns by a lock; readers need none, and a folder on a
read-only disk can be loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock
import safetensors
import safetensors.torch
from torch import Tensor

from . import disk
from .errors import SpaceError, StoreError

FORMAT = 2
MANIFEST = "spacecl.json"
TENSORS = f"{'[0-9a-f]' * 32}.safetensors"  # a pattern for the names of files
LOCK = ".lock"  # stays in the folder, empty: to remove it would let two processes hold two locks of one name
WAIT = 30.0  # seconds that a save waits for another one
ATTEMPTS = 20  # at reading a folder that is saved anew all the time


def save(folder: str | os.PathLike[str], body: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write named sets of tensors and a JSON body as the new content of a folder."""
    path = Path(folder)
    busy = StoreError(f"Another process has been saving to {path} for {WAIT:.0f} seconds. Save again later, or elsewhere.")
    disk.make_folder(path)
    with lock_folder(path, WAIT, busy):
        disk.remove_leftovers(path, MANIFEST, TENSORS)
        listed = _write_tensors(path, files)
        content = {"format": FORMAT, **body, "files": listed}
        text = json.dumps({"sha256": _checksum(content), "content": content}, indent=1)
        disk.write_file(path / MANIFEST, text.encode())
        used = {entry["file"] for entry in listed.values()}
        old = (file for file in path.glob(TENSORS) if file.name not in used)  # or of a save that was killed
        disk.remove(*old, sync_name=False)


def _write_tensors(path: Path, files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Any]]:
    """Write one file for each set of tensors, unless it is there already; return what the manifest lists of them."""
    listed = {}
    new: list[Path] = []
    try:
        for name, tensors in files.items():
            data = safetensors.torch.save({key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()})
            digest = hashlib.sha256(data).hexdigest()
            file = path / f"{digest[:32]}.safetensors"
            if not file.exists():
                new.append(file)
            if file in new or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
                disk.write_file(file, data, sync_name=False)
            listed[name] = {"file": file.name, "bytes": len(data), "sha256": digest}
        disk.sync_folder(path)
    except BaseException:
        with suppress(SpaceError):
            disk.remove(*new)  # no manifest lists them, and the disk may be full
        raise
    return listed


@contextmanager
def lock_folder(folder: Path, seconds: float, busy: SpaceError) -> Iterator[None]:
    """Be the only process, and thread, that writes to a folder; raise `busy` if another one has not ended in time.

    A process that is killed leaves nothing that would keep others out.
    """
    lock = filelock.FileLock(folder / LOCK, timeout=seconds, poll_interval=0.02)
    with disk.explain(folder / LOCK):
        try:
            lock.acquire()
        except filelock.Timeout:
            raise busy from None
    try:
        yield
    finally:
        lock.release()


def load(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Read a folder back: the body and the sets of tensors, every byte checked."""
    content, files, problems = _read_version(folder)
    for problem in problems.values():
        raise problem
    return content, files


def damaged(folder: str | os.PathLike[str]) -> dict[str, str]:
    """What is wrong with each set of tensors of a folder, in words; empty if all are as they were written."""
    return {name: str(problem) for name, problem in _read_version(folder)[2].items()}


def _read_version(
    folder: str | os.PathLike[str],
) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]], dict[str, StoreError]]:
    """The manifest, the sets of tensors that it lists, and those that cannot be read.

    Files are missing, too, when another process has saved a new version since the manifest was read: then the new one
    is read.
    """
    content = read_manifest(folder)
    for _ in range(ATTEMPTS):
        files, problems = {}, {}
        for name, entry in content["files"].items():
            try:
                files[name] = _read(Path(folder) / entry["file"], entry, name)
            except FileNotFoundError:  # removed between two looks at it
                problems[name] = StoreError(f"{Path(folder) / entry['file']} ({name}) is missing. Restore it from a copy.")
            except StoreError as error:
                problems[name] = error
        before = content
        if not problems or (content := read_manifest(folder)) == before:
            return content, files, problems
    raise StoreError(f"{folder} is saved anew faster than it can be read. Read it again when fewer processes save to it.")


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
