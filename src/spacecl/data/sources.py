"""Datasets by name: find them, download them from their publishers, load them, and check them."""

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
from typing import Literal

from filelock import FileLock

from .. import disk
from ..errors import ConfigError, DataError
from .arrays import DecodedDataset
from .cache import cache_folder, load_decoded
from .catalogue import DATASETS
from .files import CHUNK, open_decompressed
from .readers import add_gz, read_dataset

SYSTEM = (Path("/usr/share/datasets"),)  # where Debian's packages install datasets
LARGEST_ARCHIVE = 1 << 31  # bytes when unpacked; the largest that is published has 276 MB


@dataclass(frozen=True)
class CheckResult:
    """The result of checking one dataset."""

    state: Literal["missing", "damaged", "published", "different"]  # the last two can be read
    folder: Path | None
    message: str


def user_folders(data: str | os.PathLike[str] | None) -> list[Path]:
    """Return the data folders that the user names: `data` (--data), or else $SPACECL_DATA, separated as in $PATH."""
    text = os.fspath(data) if data is not None else os.environ.get("SPACECL_DATA", "")
    folders = [Path(part).expanduser() for part in text.split(os.pathsep) if part]
    if data is not None and not folders:
        raise ConfigError("--data names no folder. Give one, or leave it out.")
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise ConfigError(f"The data folder {', '.join(missing)} does not exist. Give another with --data or SPACECL_DATA.")
    return folders


def search_folders(data: str | os.PathLike[str] | None) -> list[Path]:
    """Return all folders to search for data, those that the user names first."""
    return [*user_folders(data), cache_folder() / "downloads", *SYSTEM]


def find_missing(names: Iterable[str], data: str | os.PathLike[str] | None) -> list[str]:
    """Return a sentence for each dataset that is missing and would not be downloaded automatically."""
    folders, named_folders = search_folders(data), user_folders(data)
    problems = []
    for name in names:
        dataset = DATASETS[name]
        if dataset.find(folders) is None and (named_folders or not dataset.downloads):
            places = ", ".join(str(folder) for folder in named_folders) or str(folders[0])
            problems.append(f"{dataset.title} is not in {places} (as {' or '.join(dataset.folders)}). {dataset.instructions}.")
    return problems


def find_absent(names: Iterable[str], data: str | os.PathLike[str] | None) -> list[str]:
    """Return the titles of the datasets that are not on this machine, whether or not they could be downloaded."""
    folders = search_folders(data)
    return [DATASETS[name].title for name in names if DATASETS[name].find(folders) is None]


def load(name: str, data: str | os.PathLike[str] | None = None) -> DecodedDataset:
    """Load a dataset as memory-mapped arrays. It is decoded the first time only.

    Parameters
    ----------
    name : a key of DATASETS.
    data : folders to search, separated as in $PATH. Default: $SPACECL_DATA. If no folder is named, a missing dataset is
        downloaded into the cache.
    """
    dataset, roots = DATASETS[name], search_folders(data)
    folder = dataset.find(roots)
    if folder is None:
        problems = find_missing([name], data)
        if problems:
            raise DataError(problems[0])
        fetch(name, cache_folder() / "downloads")
        folder = dataset.find(roots)
        if folder is None:
            raise DataError(f"{dataset.title} was fetched, but its files are not where they should be, in {roots[-2]}.")
    return load_decoded(name, list(dataset.list_files(folder)), partial(read_dataset, name, folder))


# -- download ----------------------------------------------------------------------------------------------------------


def fetch(name: str, into: Path, progress: bool | None = None) -> Path:
    """Download a dataset from its publisher, compare checksums and unpack it. Returns its folder.

    The folder appears when it is complete.
    """
    dataset = DATASETS[name]
    if not dataset.downloads:
        raise DataError(f"{dataset.title} cannot be fetched. {dataset.instructions}.")
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
            folder = staging / "archives" if part.unpack else target
            try:
                with download_bar(part.name, progress) as bar:
                    loader = pooch.HTTPDownloader(progressbar=bar, timeout=60)
                    file = pooch.retrieve(part.url, f"md5:{part.md5}", part.name, folder, downloader=loader)
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


def _unpack(archive: Path, target: Path) -> None:
    """Unpack a zip or tar file. Paths outside of `target` and more than LARGEST_ARCHIVE bytes are refused."""
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


# -- check -------------------------------------------------------------------------------------------------------------


def check(name: str, data: str | os.PathLike[str] | None = None) -> CheckResult:
    """Read all of a dataset's files and compare them with the published ones."""
    dataset = DATASETS[name]
    folder = dataset.find(search_folders(data))
    if folder is None:
        return CheckResult("missing", None, dataset.instructions)
    try:
        arrays = read_dataset(name, folder)
    except DataError as error:
        return CheckResult("damaged", folder, str(error))
    counts = len(arrays.train.labels), len(arrays.test.labels)
    changed_files = [file for file, md5 in dataset.md5.items() if _md5(add_gz(folder / file)) != md5]
    message = f"{counts[0]:,} + {counts[1]:,} images, {len(arrays.classes)} classes"
    if arrays.note:
        message += f", {arrays.note}"
    if counts != dataset.counts:
        message += f"; {dataset.counts[0]:,} + {dataset.counts[1]:,} were published"
    if changed_files:
        message += f"; not the published bytes: {', '.join(changed_files)}"
    if not dataset.md5:
        message += "; no checksums are known of its files"
    is_different = changed_files or counts != dataset.counts or not dataset.md5
    return CheckResult("different" if is_different else "published", folder, message)


def _md5(file: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open_decompressed(file) as stream:
        while part := stream.read(CHUNK):
            digest.update(part)
    return digest.hexdigest()
