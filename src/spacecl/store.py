"""Folders of tensors: safetensors files and one JSON manifest, replaced atomically, never pickled.

Files are named by their content and written first; the manifest that lists them is replaced last, in one step. A crash
at any moment leaves the previous version intact. Writers take turns by a lock; readers need none, so a folder on a
read-only disk can be loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import filelock
import safetensors
import safetensors.torch
from torch import Tensor

from . import disk
from .documents import (
    LARGEST_DOCUMENT,
    RESTORE,
    Count,
    FileName,
    Sha256,
    digest_json,
    encode_json,
    load_json,
    parse_document,
    read_bytes,
)
from .errors import SpaceError, StoreError, first_line

FORMAT = 3
READABLE = (2, 3)  # in format 2, a learner's core file had parts of all tasks
MANIFEST = "spacecl.json"
TENSORS = f"{'[0-9a-f]' * 32}.safetensors"  # a pattern for the names of files
LOCK = ".lock"  # stays in the folder, empty: if it were removed, two processes could hold two locks of one name
WAIT = 30.0  # seconds that a save waits for another one
UNSETTLED = 2 * 10**9  # nanoseconds in which two changes of a file may have one time, at the most: those of FAT
ATTEMPTS = 20  # at reading a folder that other processes keep saving to

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


@dataclass(eq=False)
class TensorFile:
    """Tensors that never change, as a file: saving them again does not serialize, hash or write them again.

    A file that somebody has changed since, as its status on the disk shows, is compared again.
    """

    tensors: Mapping[str, Tensor]
    entry: StoredFile | None = None  # once they have been serialized
    text: str = ""  # the entry, as JSON
    seen: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the status of files that had the right content

    def serialize(self) -> bytes:
        """The content of the file."""
        return safetensors.torch.save({key: tensor.detach().cpu().contiguous().clone() for key, tensor in self.tensors.items()})

    def write(self, folder: Path) -> Path | None:
        """Write the file into a folder, unless it is there; return it if there was none of its name."""
        data = None
        if self.entry is None:
            data = self.serialize()
            digest = hashlib.sha256(data).hexdigest()
            self.entry = StoredFile(f"{digest[:32]}.safetensors", len(data), digest)
            self.text = encode_json(asdict(self.entry))
        name = f"{folder}{os.sep}{self.entry.file}"  # quicker than paths, for thousands of files
        status = _read_status(name)
        if status is not None and self.seen.get(name) == status:
            return None
        file = Path(name)
        is_there = file.exists()
        if not is_there or hashlib.sha256(file.read_bytes()).hexdigest() != self.entry.sha256:
            disk.write_file(file, data or self.serialize(), sync_name=False)
        status = _read_status(name)
        if status is not None and time.time_ns() - max(status[-2:]) > UNSETTLED:
            self.seen[name] = status
        return None if is_there else file


def _read_status(file: str) -> tuple[int, ...] | None:
    """What changes whenever a file is written or replaced; None if there is none."""
    try:
        status = os.lstat(file)
    except OSError:
        return None
    return status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def save(
    folder: str | os.PathLike[str], body: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor] | TensorFile]
) -> None:
    """Replace the content of a folder.

    Parameters
    ----------
    folder : made if it does not exist.
    body : JSON values for the manifest.
    files : named sets of tensors; each becomes a file.
    """
    path = Path(folder)
    busy = StoreError(f"Another process has been saving to {path} for {WAIT:.0f} seconds. Save again later, or elsewhere.")
    disk.make_folder(path)
    with lock_folder(path, WAIT, busy):
        disk.remove_leftovers(path, MANIFEST, TENSORS)
        stored = _write_tensors(path, files)
        content = encode_json({"format": FORMAT, **body, "files": {name: file.text for name, file in stored.items()}})
        text = f'{{"sha256": "{hashlib.sha256(content.encode()).hexdigest()}", "content": {content}}}'
        disk.write_file(path / MANIFEST, text.encode())
        _remove_unlisted(path, {file.entry.file for file in stored.values() if file.entry is not None})


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Remove what a killed save left in a folder: parts of files, and files of the previous version."""
    path = Path(folder)
    with lock_folder(path, WAIT, StoreError(f"Another process is saving to {path}.")):
        disk.remove_leftovers(path, MANIFEST, TENSORS)
        _remove_unlisted(path, {entry.file for entry in read_manifest(path, dict)[1].values()})


def _remove_unlisted(path: Path, listed: set[str]) -> None:
    with disk.explain(path, "read"):
        unlisted = [name for name in os.listdir(path) if name not in listed and fnmatchcase(name, TENSORS)]
    disk.remove(*(path / name for name in unlisted), sync_name=False)


def _write_tensors(path: Path, files: Mapping[str, Mapping[str, Tensor] | TensorFile]) -> dict[str, TensorFile]:
    """Write one file for each set of tensors, unless it exists already; return them."""
    result = {}
    new: list[Path] = []
    try:
        for name, tensors in files.items():
            result[name] = tensors if isinstance(tensors, TensorFile) else TensorFile(tensors)
            file = result[name].write(path)
            new += [] if file is None else [file]
        disk.sync_folder(path)
    except BaseException:
        with suppress(SpaceError):
            disk.remove(*new)  # no manifest lists them, and the disk may be full
        raise
    return result


@contextmanager
def lock_folder(folder: Path, seconds: float, busy: SpaceError) -> Iterator[None]:
    """Be the only process, and thread, that writes to a folder; raise `busy` if another one does not finish in time.

    A killed process releases its lock.
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


def load(folder: str | os.PathLike[str], kind: type[Body]) -> tuple[Body, dict[str, dict[str, Tensor]]]:
    """Read a folder: the body as a value of its type, and the sets of tensors, with all checksums verified."""
    body, files, problems = read_version(folder, kind)
    for problem in problems.values():
        raise problem
    return body, files


def read_version(
    folder: str | os.PathLike[str], kind: type[Body]
) -> tuple[Body, dict[str, dict[str, Tensor]], dict[str, StoreError]]:
    """Read a folder: the body, the sets of tensors, and the problems of those that cannot be read.

    If another process saves a new version after the manifest was read, files may be missing: then the new one is read.
    """
    body, entries = read_manifest(folder, kind)
    for _ in range(ATTEMPTS):
        files, problems = {}, {}
        for name, entry in entries.items():
            try:
                files[name] = _read_tensors(Path(folder), entry, name)
            except StoreError as error:
                problems[name] = error
        before = entries
        if not problems:
            return body, files, problems
        body, entries = read_manifest(folder, kind)
        if entries == before:
            return body, files, problems
    raise StoreError(f"{folder} is saved to faster than it can be read. Try again when fewer processes save to it.")


def read_manifest(folder: str | os.PathLike[str], kind: type[Body]) -> tuple[Body, dict[str, StoredFile]]:
    """Read the manifest of a folder: the body as a value of its type, and the entries of the files, which are not read."""
    manifest = Path(folder) / MANIFEST
    if not os.path.lexists(manifest):
        raise StoreError(f"{folder} has no saved learner: there is no {MANIFEST} in it.")
    document = load_json(read_bytes(manifest, LARGEST_DOCUMENT), manifest)
    if not isinstance(document, dict) or not isinstance(document.get("content"), dict):
        raise StoreError(f"{manifest} is damaged or truncated: it is not what spacecl writes. {RESTORE}")
    content = document["content"]
    try:
        checksum = digest_json(content)
    except RecursionError:
        raise StoreError(f"{manifest} is damaged: it is nested deeper than anything that spacecl writes. {RESTORE}") from None
    if document.get("sha256") != checksum:
        raise StoreError(f"{manifest} was changed after it was written: its checksum does not match. {RESTORE}")
    if content.get("format") not in READABLE:
        readable = " and ".join(map(str, READABLE))
        raise StoreError(f"{manifest} has format {content.get('format')!r}; this version of spacecl reads {readable}.")
    text = json.dumps(content).encode()
    return parse_document(text, kind, manifest), parse_document(text, Listing, manifest).files


def _read_tensors(folder: Path, entry: StoredFile, name: str) -> dict[str, Tensor]:
    file = folder / entry.file
    try:
        status = file.lstat()
    except FileNotFoundError:
        raise StoreError(f"{file} ({name}) is missing. {RESTORE}") from None
    if stat.S_ISREG(status.st_mode) and status.st_size != entry.bytes:
        how = "truncated" if status.st_size < entry.bytes else "too long"
        raise StoreError(f"{file} ({name}) is {how}: {status.st_size} bytes instead of {entry.bytes}. {RESTORE}")
    data = read_bytes(file, entry.bytes)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise StoreError(f"{file} ({name}) was changed after it was written: its checksum does not match. {RESTORE}")
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise StoreError(f"{file} ({name}) is not a safetensors file: {first_line(error)}. {RESTORE}") from error
