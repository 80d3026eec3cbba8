"""Datasets by name: found, or fetched from their publishers; read, or checked against what was published."""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath

from filelock import FileLock

from .. import disk
from ..errors import ConfigError, DataError
from .cache import cache, decoded
from .catalogue import DATASETS, files_of
from .files import CHUNK, open_unpacked
from .readers import Decoded, packed, read

SYSTEM = (Path("/usr/share/datasets"),)  # where Debian's packages put datasets


def named(data: str | os.PathLike[str] | None) -> list[Path]:
    """The folders that a user names as data: with --data, or else with SPACECL_DATA; several are divided as in PATH."""
    given = os.fspath(data) if data is not None else os.environ.get("SPACECL_DATA", "")
    folders = [Path(part).expanduser() for part in given.split(os.pathsep) if part]
    if data is not None and not folders:
        raise ConfigError("--data names no folder. Give one, or leave it out.")
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ConfigError(f"The data folder {', '.join(missing)} does not exist. Give another with --data or SPACECL_DATA.")
    return folders


def search_folders(data: str | os.PathLike[str] | None) -> list[Path]:
    """All folders to look for data in, those that the user names first."""
    return [*named(data), cache() / "downloads", *SYSTEM]


def find_missing(names: Iterable[str], data: str | os.PathLike[str] | None) -> list[str]:
    """A sentence for each dataset that is not there and will not be fetched by itself."""
    folders, asked = search_folders(data), named(data)
    found = []
    for name in names:
        dataset = DATASETS[name]
        if dataset.find(folders) is None and (asked or not dataset.downloads):
            looked = ", ".join(str(folder) for folder in asked) or str(folders[0])
            found.append(f"{dataset.title} is not in {looked} (as {' or '.join(dataset.folders)}). {dataset.how()}.")
    return found


def load(name: str, data: str | os.PathLike[str] | None = None) -> Decoded:
    """A dataset as memory-mapped arrays: found, or fetched if the user named no folder; decoded the first time only."""
    dataset, roots = DATASETS[name], search_folders(data)
    folder = dataset.find(roots)
    if folder is None:
        problems = find_missing([name], data)
        if problems:
            raise DataError(problems[0])
        fetch(name, cache() / "downloads")
        folder = dataset.find(roots)
        if folder is None:
            raise DataError(f"{dataset.title} was fetched, but its files are not where they should be, in {roots[-2]}.")
    return decoded(name, list(files_of(dataset, folder)), partial(read, name, folder))


# -- getting and checking ------------------------------------------------------------------------------------------


def fetch(name: str, into: Path, progress: bool | None = None) -> Path:
    """Download a dataset from its publisher, checksums compared, and unpack it; it is put in place when it is whole."""
    dataset = DATASETS[name]
    if not dataset.downloads:
        raise DataError(f"{dataset.title} cannot be fetched. {dataset.how()}.")
    try:
        import pooch
        import requests
    except ImportError as error:
        raise ConfigError('Downloading data needs pooch. Install it with: pip install "spacecl[data]"') from error
    from ..progress import download_bar

    disk.make_folder(into)
    staging, final = into / f".fetching-{name}", into / dataset.folders[0]
    with FileLock(into / ".lock"):
        for part in dataset.downloads:
            target = staging / part.into
            keep = staging / "archives" if part.unpack else target
            try:
                with download_bar(part.name, progress) as bar:
                    loader = pooch.HTTPDownloader(progressbar=bar, timeout=60)
                    file = pooch.retrieve(part.url, f"md5:{part.md5}", part.name, keep, downloader=loader)
            except ValueError as error:  # the checksum
                raise DataError(f"{part.url} is not the file that was published: {error}. Get it by hand.") from error
            except (requests.RequestException, OSError) as error:
                raise DataError(
                    f"{part.url} cannot be downloaded: {error}. Try again, or get the file elsewhere (md5 {part.md5}) and put "
                    f"{'its content' if part.unpack else 'it'} into {into / part.into}."
                ) from error
            if part.unpack:
                with disk.explain(target):
                    _unpack(Path(file), target)
        disk.make_folder(final.parent)
        disk.replace_folder(staging / dataset.folders[0], final)
        disk.remove(staging)
    return final


LARGEST_ARCHIVE = 1 << 31  # bytes when unpacked; the largest that is published has 276 MB


def _unpack(archive: Path, target: Path) -> None:
    """Unpack a zip or tar file. Members that would land elsewhere, and more than LARGEST_ARCHIVE bytes, are refused."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed_zip:
                _check_members(archive, ((member.filename, member.file_size) for member in packed_zip.infolist()))
                packed_zip.extractall(target)
            return
        with tarfile.open(archive) as packed_tar:
            if not hasattr(tarfile, "data_filter"):  # Python before its security updates of 2023
                raise ConfigError(f"This Python cannot unpack {archive.name} safely. Update it, or unpack the file by hand.")
            _check_members(archive, ((member.name, member.size) for member in packed_tar))
            packed_tar.extractall(target, filter="data")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}. Fetch it again.") from error


def _check_members(archive: Path, members: Iterable[tuple[str, int]]) -> None:
    total = 0
    for name, size in members:
        if PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive or ".." in re.split(r"[/\\]", name):
            raise DataError(f"{archive} would write outside of its folder: {name!r}. Get another copy.")
        total += size
        if total > LARGEST_ARCHIVE:
            raise DataError(f"{archive} has more than {LARGEST_ARCHIVE:,} bytes when unpacked. Get another copy.")


@dataclass(frozen=True)
class Finding:
    """What a check of one dataset came to."""

    state: str  # "missing", "whole", "other" or "damaged"
    folder: Path | None
    told: str


def check(name: str, data: str | os.PathLike[str] | None = None) -> Finding:
    """Read a dataset's files whole, and compare them with what was published."""
    dataset = DATASETS[name]
    folder = dataset.find(search_folders(data))
    if folder is None:
        return Finding("missing", None, dataset.how())
    try:
        found = read(name, folder)
    except DataError as error:
        return Finding("damaged", folder, str(error))
    counts = len(found.train[1]), len(found.test[1])
    differ = [file for file, md5 in dataset.md5.items() if _md5(packed(folder / file)) != md5]
    told = f"{counts[0]:,} + {counts[1]:,} images, {len(found.classes)} classes"
    if found.note:
        told += f", {found.note}"
    if counts != dataset.counts:
        told += f"; {dataset.counts[0]:,} + {dataset.counts[1]:,} were published"
    if differ:
        told += f"; not the published bytes: {', '.join(differ)}"
    if not dataset.md5:
        told += "; no checksums are known of its files"
    return Finding("other" if differ or counts != dataset.counts or not dataset.md5 else "whole", folder, told)


def _md5(file: Path) -> str:
    found = hashlib.md5(usedforsecurity=False)
    with open_unpacked(file) as stream:
        while part := stream.read(CHUNK):
            found.update(part)
    return found.hexdigest()
