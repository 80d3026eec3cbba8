"""Every write to a disk: files whole or not at all, names that survive a power cut, errors that say what to do.

A write has reached the disk when its data has been synced *and* its name has: the folder that lists it. Everything here
returns only then, unless a caller syncs the names of many files at once.
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

from .errors import StoreError

TEMPORARY = ".spacecl-tmp"
FREE = "Free some space there, or choose a folder on another disk"
REMEDIES = {
    errno.ENOSPC: FREE,
    getattr(errno, "EDQUOT", errno.ENOSPC): FREE,
    errno.EFBIG: "Raise the limit for the size of a file (ulimit -f), or choose a folder on another disk",
    errno.EROFS: "Choose a folder on a disk that can be written to",
    errno.EACCES: "Change the permissions of the folder, or choose another one",
    errno.EPERM: "Change the permissions of the folder, or choose another one",
    errno.EIO: "The disk may be failing: check it, and choose a folder on another one",
}
UNSUPPORTED = {errno.EINVAL, getattr(errno, "ENOTSUP", errno.EINVAL)}  # some network file systems cannot sync a folder


class System:
    """The primitive operations that everything here is made of; tests record them to simulate power cuts."""

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
        if os.name == "nt":  # folders cannot be opened there
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
    """Write a file in one step: whoever opens it, even after a power cut, sees the old content or the new one.

    `data` may be a function that writes to a stream. With `sync_name=False` the caller calls `sync_folder`, once for many
    files.
    """
    temporary = _temporary(file)
    with explain(file):
        try:
            with _descriptor(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
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
    """Append a line to a file; one that cannot be written whole is taken back."""
    with explain(file):
        new = not file.exists()
        with _descriptor(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor:
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
    """Cut off the end of a file."""
    with explain(file), _descriptor(file, os.O_WRONLY) as descriptor:
        system.truncate(descriptor, size)
        system.sync(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; what exists stays."""
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
    """Move a folder to the place of another, with everything in it on the disk first.

    After a power cut there is the new folder, or none if the old one has been removed already; never a part of one.
    """
    with explain(target):
        for top, _, files in os.walk(source):
            for file in (Path(top) / name for name in files):
                if file.is_file():  # and no link that leads nowhere
                    with _descriptor(file, os.O_RDWR if os.name == "nt" else os.O_RDONLY) as descriptor:
                        system.sync(descriptor)
            system.sync_folder(Path(top))
        remove(target)
        system.rename(source, target)
        system.sync_folder(target.parent)


def remove(*paths: Path, sync_name: bool = True) -> None:
    """Remove files, and folders with all that they hold, each in one step; what is not there is no error.

    With `sync_name=False` a power cut may bring files back.
    """
    doomed: list[Path] = []
    for path in paths:
        with explain(path, "removed"), suppress(FileNotFoundError):
            if path.is_symlink() or not path.is_dir():
                system.unlink(path)
            else:  # under another name first: a half-removed folder must not pass for a whole one
                system.rename(path, temporary := _temporary(path))
                doomed.append(temporary)
    for parent in dict.fromkeys(path.parent for path in paths):
        if sync_name and parent.is_dir():
            sync_folder(parent)
    for folder in doomed:
        with suppress(OSError):  # it is gone for everyone; what is left of it can be removed later
            _remove_tree(folder)


def remove_leftovers(folder: Path, *names: str) -> None:
    """Remove what killed processes left of their writes to these names, which may be patterns.

    Only for the one who holds the folder's lock, and for names that nobody writes without it.
    """
    for name in names:
        for left in folder.glob(f".{name}.*{TEMPORARY}"):
            with suppress(OSError):
                _remove_tree(left)


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk."""
    with explain(folder):
        system.sync_folder(folder)


@contextmanager
def explain(path: Path, what: str = "written") -> Iterator[None]:
    """Report an error of the operating system with the file, the folder, and what to do."""
    try:
        yield
    except OSError as error:
        why = f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, type(error).__name__)})"
        remedy = REMEDIES.get(error.errno or 0, "Check the folder, or choose another one")
        raise StoreError(f"{path} cannot be {what}: {why}. The folder is {path.absolute().parent}. {remedy}.") from error


class _Stream(io.RawIOBase):
    """An open file as a stream whose `write` writes all that it is given."""

    def __init__(self, descriptor: int):
        super().__init__()
        self.descriptor = descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[system.write(self.descriptor, rest) :]
        return size


@contextmanager
def _descriptor(file: Path, flags: int) -> Iterator[int]:
    descriptor = system.open(file, flags)
    try:
        yield descriptor
    finally:
        system.close(descriptor)


def _temporary(path: Path) -> Path:
    """A name in the same folder that no other process or thread has."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:16]}{TEMPORARY}")


def _remove_tree(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        system.unlink(path)
        return
    for inner in path.iterdir():
        _remove_tree(inner)
    system.remove_folder(path)
