"""Every write to a disk: atomic files, names that survive a power cut, errors that say what to do.

A write has reached the disk when its data has been synced *and* its name has, by syncing the folder that lists it. Functions
here return only then, unless the caller syncs the names of many files at once.
"""

from __future__ import annotations

import errno
import io
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .os_errors import explain

TEMPORARY = ".spacecl-tmp"
UNSUPPORTED = {errno.EINVAL, getattr(errno, "ENOTSUP", errno.EINVAL)}  # some network file systems cannot sync a folder


class System:
    """The primitive operations on files; tests record them to simulate power cuts."""

    def open(self, file: Path, flags: int) -> int:
        return os.open(file, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0), 0o666)

    def write(self, descriptor: int, data: Any) -> int:
        return os.write(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, file: Path) -> None:
        os.unlink(file)

    def make_folder(self, folder: Path) -> None:
        os.mkdir(folder)

    def remove_folder(self, folder: Path) -> None:
        os.rmdir(folder)

    def sync_folder(self, folder: Path) -> None:
        if os.name == "nt":  # where folders cannot be opened
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        finally:
            os.close(descriptor)


system = System()


def write_file(file: Path, data: bytes | Callable[[io.RawIOBase], object], *, sync_name: bool = True) -> None:
    """Write a file atomically: whoever opens it, even after a power cut, sees the old content or the new one.

    Parameters
    ----------
    file : the file; its folder must exist.
    data : the content, or a function that writes it to a stream.
    sync_name : if False, the caller calls `sync_folder` itself, once for many files.
    """
    temporary = _make_temporary_name(file)
    with explain(file):
        try:
            with _open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
                if isinstance(data, bytes):
                    _Stream(descriptor).write(data)
                else:
                    data(_Stream(descriptor))
                system.sync(descriptor)
            system.rename(temporary, file)
        except BaseException:
            with suppress(OSError):
                system.unlink(temporary)
            raise
        if sync_name:
            system.sync_folder(file.parent)


def append_line(file: Path, line: bytes) -> None:
    """Append a line to a file. If it cannot be written completely, the file is left as it was."""
    with explain(file):
        new = not file.exists()
        with _open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
            size = os.fstat(descriptor).st_size
            try:
                _Stream(descriptor).write(line + b"\n")
                system.sync(descriptor)
            except BaseException:
                with suppress(OSError):
                    system.truncate(descriptor, size)
                raise
        if new:
            system.sync_folder(file.parent)


def truncate_file(file: Path, size: int) -> None:
    """Cut a file to a size in bytes."""
    with explain(file), _open(file, os.O_WRONLY) as descriptor:
        system.truncate(descriptor, size)
        system.sync(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents; existing ones stay as they are."""
    with explain(folder):
        if folder.is_dir():
            return
        if folder.parent != folder:
            make_folder(folder.parent)
        try:
            system.make_folder(folder)
        except FileExistsError:
            if not folder.is_dir():
                raise
        system.sync_folder(folder.parent)


def replace_folder(source: Path, target: Path) -> None:
    """Move a folder to the place of another, after all of its content has been synced.

    After a power cut there is the old folder, the new one, or neither; never a part of one.
    """
    with explain(target):
        for top, _, files in os.walk(source):
            for file in (Path(top) / name for name in files):
                if file.is_file():  # not a broken link
                    with _open(file, os.O_RDWR if os.name == "nt" else os.O_RDONLY) as descriptor:
                        system.sync(descriptor)
            system.sync_folder(Path(top))
        remove(target)
        system.rename(source, target)
        system.sync_folder(target.parent)


def remove(*paths: Path, sync_name: bool = True) -> None:
    """Remove files, and folders with all their content, each atomically; missing ones are ignored.

    With `sync_name=False` a power cut may bring files back.
    """
    removals: list[Path] = []
    for path in paths:
        with explain(path, "removed"), suppress(FileNotFoundError):
            if path.is_symlink() or not path.is_dir():
                system.unlink(path)
            else:  # rename it first: a half-removed folder must not look like a complete one
                system.rename(path, temporary := _make_temporary_name(path))
                removals.append(temporary)
    for parent in dict.fromkeys(path.parent for path in paths):
        if sync_name and parent.is_dir():
            sync_folder(parent)
    for folder in removals:
        with suppress(OSError):  # nobody sees it any more; the rest can be removed later
            _remove_tree(folder)


def remove_leftovers(folder: Path, *names: str) -> None:
    """Remove temporary files that killed processes left of their writes to these names, which may be patterns.

    The caller must hold the folder's lock, and all writes to these names must need it.
    """
    for name in names:
        for path in folder.glob(f".{name}.*{TEMPORARY}"):
            with suppress(OSError):
                _remove_tree(path)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    with explain(folder):
        system.sync_folder(folder)


class _Stream(io.RawIOBase):
    """An open file as a stream whose `write` always writes all of its data."""

    def __init__(self, descriptor: int):
        super().__init__()
        self.descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        while remaining:
            remaining = remaining[system.write(self.descriptor, remaining) :]
        return size


@contextmanager
def _open(file: Path, flags: int) -> Iterator[int]:
    descriptor = system.open(file, flags)
    try:
        yield descriptor
    finally:
        system.close(descriptor)


def _make_temporary_name(path: Path) -> Path:
    """Return a name in the same folder that no other process or thread uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:16]}{TEMPORARY}")


def _remove_tree(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        system.unlink(path)
        return
    for inner in path.iterdir():
        _remove_tree(inner)
    system.remove_folder(path)
