"""Datasets by name: where their files lie, how to get them, whether they are whole; decoded once and memory-mapped."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ..errors import ConfigError, DataError
from ..images import statistics
from ..store import write_whole
from .formats import Decoded, content, packed, pictures, read

VERSION = 1  # of the decoded form; another number makes all be decoded anew
SYSTEM = (Path("/usr/share/datasets"),)  # where Debian's packages put datasets


@dataclass(frozen=True)
class Download:
    """A file of a publisher's, with the folder that it is put or unpacked into."""

    url: str
    md5: str
    into: str = ""
    unpack: bool = False

    @property
    def name(self) -> str:
        return self.url.split("?")[0].rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Dataset:
    """One dataset: what it is, in which folders it may lie, which files must be there, and where to get it."""

    name: str
    title: str
    folders: tuple[str, ...]
    files: tuple[str, ...]  # of IDX files, each may also end in .gz; alternatives are divided by |
    counts: tuple[int, int]  # of training and test images, as published
    downloads: tuple[Download, ...] = ()
    md5: dict[str, str] = field(default_factory=dict)  # of published files, unpacked, where they are known
    by_hand: str = ""

    def present(self, folder: Path) -> bool:
        if self.name == "facescrub":
            return folder.is_dir() and _has_faces(folder)
        return folder.is_dir() and all(
            any((folder / one).exists() or _packed(folder / one) is not None for one in entry.split("|"))
            for entry in self.files
        )

    def find(self, roots: Sequence[Path]) -> Path | None:
        """The folder with this dataset's files, below one of some folders."""
        return next((root / name for root in roots for name in self.folders if self.present(root / name)), None)

    def how(self) -> str:
        """How to get it, in a sentence."""
        return self.by_hand or f"Get it with: spacecl data fetch {self.name}"


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_SIGNS = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370"


def _idx_files(base: str, into: str, sums: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Downloads and checksums, packed and unpacked, of four IDX files."""
    downloads = tuple(Download(f"{base}/{file}.gz", md5, into) for file, (md5, _) in zip(_IDX, sums))
    return {"files": _IDX, "downloads": downloads, "md5": {file: md5 for file, (_, md5) in zip(_IDX, sums)}}


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "cifar10",
            "CIFAR-10",
            ("cifar-10-batches-py", "CIFAR10/cifar-10-batches-py", "cifar10"),
            (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
            (50_000, 10_000),
            (
                Download(
                    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", unpack=True
                ),
            ),
            {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
            },
        ),
        Dataset(
            "cifar100",
            "CIFAR-100",
            ("cifar-100-python", "CIFAR100/cifar-100-python", "cifar100"),
            ("train", "test", "meta"),
            (50_000, 10_000),
            (
                Download(
                    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", unpack=True
                ),
            ),
            {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        ),
        Dataset(
            "facescrub",
            "FaceScrub, 100 people",
            ("facescrub_100", "facescrub", "FaceScrub/faces", "FaceScrub"),
            (),
            (20_600, 2_289),
            by_hand="FaceScrub is not published as files: put either HAT's facescrub_train_100.pkl and facescrub_test_100.pkl "
            "(the archive facescrub_100.zip of its authors), or a folder of pictures for each person, into facescrub/ in "
            "your data folder",
        ),
        Dataset(
            "mnist",
            "MNIST",
            ("MNIST/raw", "MNIST", "mnist"),
            counts=(60_000, 10_000),
            **_idx_files(
                "https://ossci-datasets.s3.amazonaws.com/mnist",
                "MNIST/raw",
                (
                    ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
                    ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
                    ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
                    ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
                ),
            ),
        ),
        Dataset(
            "svhn",
            "SVHN, cropped digits",
            ("SVHN", "svhn", "."),
            ("train_32x32.mat", "test_32x32.mat"),
            (73_257, 26_032),
            (
                Download("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", "SVHN"),
                Download("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", "SVHN"),
            ),
            {
                "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
            },
        ),
        Dataset(
            "fashion-mnist",
            "Fashion-MNIST",
            ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "Fashion-MNIST"),
            counts=(60_000, 10_000),
            **_idx_files(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                "FashionMNIST/raw",
                (
                    ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
                    ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
                    ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
                    ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
                ),
            ),
        ),
        Dataset(
            "gtsrb",
            "GTSRB, traffic signs",
            ("GTSRB", "gtsrb", "gtsrb/GTSRB"),
            ("Final_Training/Images", "Final_Test/Images", "GT-final_test.csv|Final_Test/Images/GT-final_test.csv"),
            (39_209, 12_630),
            (
                Download(f"{_SIGNS}/GTSRB_Final_Training_Images.zip", "f33fd80ac59bff73c82d25ab499e03a3", unpack=True),
                Download(f"{_SIGNS}/GTSRB_Final_Test_Images.zip", "c7e4e6327067d32654124b0fe9e82185", unpack=True),
                Download(f"{_SIGNS}/GTSRB_Final_Test_GT.zip", "fe31e9c9270bbcd7b84b7f21a9d9d9e5", "GTSRB", unpack=True),
            ),
        ),
        Dataset(
            "notmnist",
            "notMNIST small",
            ("notMNIST_small", "notMNIST/notMNIST_small", "notmnist"),
            tuple("ABCDEFGHIJ"),
            (16_853, 1_873),
            (
                Download(
                    "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
                    "c9890a473a9769fda4bdf314aaf500dd",
                    unpack=True,
                ),
            ),
        ),
    )
}


def cache() -> Path:
    """The folder for downloads and decoded data: SPACECL_CACHE, or the usual place of the system."""
    given = os.environ.get("SPACECL_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return Path(base or Path.home() / ".cache").expanduser() / "spacecl"


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


def places(data: str | os.PathLike[str] | None) -> list[Path]:
    """All folders to look for data in, those that the user names first."""
    return [*named(data), cache() / "downloads", *SYSTEM]


def missing(names: Iterable[str], data: str | os.PathLike[str] | None) -> list[str]:
    """A sentence for each dataset that is not there and will not be fetched by itself."""
    folders, asked = places(data), named(data)
    found = []
    for name in names:
        dataset = DATASETS[name]
        if dataset.find(folders) is None and (asked or not dataset.downloads):
            looked = ", ".join(str(folder) for folder in asked) or str(folders[0])
            found.append(f"{dataset.title} is not in {looked} (as {' or '.join(dataset.folders)}). {dataset.how()}.")
    return found


def load(name: str, data: str | os.PathLike[str] | None = None) -> Decoded:
    """A dataset as memory-mapped arrays: found, or fetched if the user named no folder; decoded the first time only."""
    dataset, roots = DATASETS[name], places(data)
    folder = dataset.find(roots)
    if folder is None:
        problems = missing([name], data)
        if problems:
            raise DataError(problems[0])
        fetch(name, cache() / "downloads")
        folder = dataset.find(roots)
        if folder is None:
            raise DataError(f"{dataset.title} was fetched, but its files are not where they should be, in {roots[-2]}.")
    return decoded(name, list(_files(dataset, folder)), partial(read, name, folder))


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

    into.mkdir(parents=True, exist_ok=True)
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
                _unpack(Path(file), target)
        if final.exists():
            shutil.rmtree(final)
        final.parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / dataset.folders[0], final)
        shutil.rmtree(staging)
    return final


def _unpack(archive: Path, target: Path) -> None:
    """Unpack a zip or tar file; members that would land elsewhere are refused."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(target)
        return
    with tarfile.open(archive) as packed_tar:
        if not hasattr(tarfile, "data_filter"):  # Python before its security updates of 2023
            raise ConfigError(f"This Python cannot unpack {archive.name} safely. Update it, or unpack the file by hand.")
        packed_tar.extractall(target, filter="data")


@dataclass(frozen=True)
class Finding:
    """What a check of one dataset came to."""

    state: str  # "missing", "whole", "other" or "damaged"
    folder: Path | None
    told: str


def check(name: str, data: str | os.PathLike[str] | None = None) -> Finding:
    """Read a dataset's files whole, and compare them with what was published."""
    dataset = DATASETS[name]
    folder = dataset.find(places(data))
    if folder is None:
        return Finding("missing", None, dataset.how())
    try:
        found = read(name, folder)
    except (DataError, OSError) as error:
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
    return hashlib.md5(content(file), usedforsecurity=False).hexdigest()


def _packed(file: Path) -> Path | None:
    """The packed form of an IDX file, if it is there."""
    found = file.with_name(f"{file.name}.gz")
    return found if file.name.endswith("-ubyte") and found.is_file() else None


def _has_faces(folder: Path) -> bool:
    pickles = all((folder / f"facescrub_{part}_100.pkl").is_file() for part in ("train", "test"))
    return pickles or any(path.is_dir() for path in folder.iterdir())


def _files(dataset: Dataset, folder: Path) -> Iterable[Path]:
    """The files that a dataset is decoded from."""
    if dataset.name == "facescrub" and (folder / "facescrub_train_100.pkl").is_file():
        yield from (folder / f"facescrub_{part}_100.pkl" for part in ("train", "test"))
        return
    for entry in dataset.files or (".",):
        for one in entry.split("|"):
            path = _packed(folder / one) if not (folder / one).exists() else folder / one
            if path is not None and path.is_dir():
                yield from pictures(path)
            elif path is not None and path.is_file():
                yield path


# -- the cache -----------------------------------------------------------------------------------------------------


def decoded(name: str, files: Sequence[Path], decode: Callable[[], Decoded]) -> Decoded:
    """What `decode` makes of some files, from the cache if they are those of the last time."""
    facts = [(str(file.absolute()), stat.st_size, stat.st_mtime_ns) for file in files for stat in [file.stat()]]
    key = hashlib.sha256(json.dumps([VERSION, name, facts]).encode()).hexdigest()[:16]
    folder = cache() / "decoded" / f"{name}-{key}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{name}.lock"):
            found = _cached(folder)
            if found is None:
                _fill(folder, decode())
                found = _cached(folder)
    except PermissionError as error:
        raise ConfigError(
            f"The cache {folder.parent} cannot be used: {error}. Name another folder with SPACECL_CACHE."
        ) from error
    if found is None:
        raise DataError(f"{folder} cannot be read back right after it was written. Name another folder with SPACECL_CACHE.")
    return found


def _fill(folder: Path, found: Decoded) -> None:
    """Write an entry beside its place and put it there when it is whole and on the disk."""
    made = folder.with_name(f".making-{folder.name}")
    for left in (made, folder):  # by a process that was killed, or damaged since
        shutil.rmtree(left, ignore_errors=True)
    made.mkdir()
    try:
        arrays = {f"{part}-{what}.npy": array for part in ("train", "test") for what, array in zip(_KEPT, getattr(found, part))}
        for file, array in arrays.items():
            with (made / file).open("wb") as stream:
                np.save(stream, array)
                stream.flush()
                os.fsync(stream.fileno())
        sizes = {file: (made / file).stat().st_size for file in arrays}
        spread = statistics(found.train[0])
        about = {"classes": found.classes, "note": found.note, "spread": spread, "sizes": sizes}
        write_whole(made / "about.json", json.dumps(about).encode())
        os.replace(made, folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


_KEPT = ("pixels", "labels")


def _cached(folder: Path) -> Decoded | None:
    """An entry of the cache as memory-mapped arrays, or None if it is not there or not whole."""
    try:
        about = json.loads((folder / "about.json").read_text())
        if any((folder / file).stat().st_size != size for file, size in about["sizes"].items()):
            return None
        train, test = (
            (np.load(folder / f"{part}-pixels.npy", mmap_mode="r"), np.load(folder / f"{part}-labels.npy"))
            for part in ("train", "test")
        )
        mean, std = (tuple(values) for values in about["spread"])
        return Decoded(train, test, tuple(about["classes"]), about["note"], (mean, std))
    except (FileNotFoundError, ValueError, KeyError, TypeError, EOFError):
        return None
