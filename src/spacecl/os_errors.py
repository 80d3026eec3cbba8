"""Turn errors of the operating system into sentences: the problem, the reason, the place, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StoreError

FREE_SPACE = "Free some space there, or choose a folder on another disk"
REMEDIES = {
    errno.ENOSPC: FREE_SPACE,
    getattr(errno, "EDQUOT", errno.ENOSPC): FREE_SPACE,
    errno.EFBIG: "Raise the limit for the size of a file (ulimit -f), or choose a folder on another disk",
    errno.EROFS: "Choose a folder on a disk that can be written to",
    errno.EACCES: "Change the permissions of the folder, or choose another one",
    errno.EPERM: "Change the permissions of the folder, or choose another one",
    errno.EIO: "The disk may be failing: check it, and choose a folder on another one",
}


@contextmanager
def explain(path: Path, what: str = "written") -> Iterator[None]:
    """Raise errors of the operating system as `StoreError`: "{path} cannot be {what}", the folder, and what to do."""
    with file_errors(f"{path} cannot be {what}", path):
        yield


@contextmanager
def file_errors(problem: str, path: Path | None = None) -> Iterator[None]:
    """Raise errors of the operating system as `StoreError`; also a decorator.

    Parameters
    ----------
    problem : what fails; the message begins with it.
    path : the file that is used; the message names its folder. Without it, the message names the file that the operating
        system reports, if any.
    """
    try:
        yield
    except OSError as error:
        raise to_store_error(error, problem, path) from error


def to_store_error(error: OSError, problem: str, path: Path | None = None) -> StoreError:
    """Return the `StoreError` for an error of the operating system: the problem, the reason, the place, and what to do."""
    reason = f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, type(error).__name__)})"
    remedy = REMEDIES.get(error.errno or 0, "Check the path and its permissions, or choose another one")
    place = f" The folder is {path.absolute().parent}." if path else f" The file is {error.filename}." if error.filename else ""
    return StoreError(f"{problem}: {reason}.{place} {remedy}.")
