"""Damaged and hostile data files of every format: each must be refused with a message, or read correctly.

Formats with a checksum (gzip, zlib in MATLAB files, PNG, the cache) must never be read as something else. The others must give
images of the right shape, with labels of existing classes.
"""

from __future__ import annotations

import functools
import gzip
import io
import itertools
import json
import os
import pickle
import random
import shutil
import struct
import tempfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spacecl.documents import digest_json

from . import datasets
from .guard import run_guarded
from .outcome import Outcome, damage


@dataclass(frozen=True)
class Case:
    """A small dataset with a forged file, or with a file that is damaged at random."""

    dataset: str
    forgery: str = ""  # its name; without one, the file is damaged
    seed: int = 0


@dataclass(frozen=True)
class Kind:
    """A small dataset in one file format, and whether the format has checksums."""

    write: Callable[[Path], object]
    name: str = ""  # in the catalogue; without one, it is a user's own folder of pictures
    has_checksums: bool = False


def _write_own_pictures(suffix: str) -> Callable[[Path], None]:
    return lambda folder: datasets.write_pictures(folder / "task", ("oak", "elm"), 3, (12, 9), "RGB", suffix)


KINDS = {
    "IDX": Kind(functools.partial(datasets.write_idx, compressed=False), "fashion-mnist"),
    "IDX, compressed": Kind(datasets.write_idx, "mnist", True),
    "CIFAR-10 pickle": Kind(functools.partial(datasets.write_cifar10, count=4), "cifar10"),
    "CIFAR-100 pickle": Kind(datasets.write_cifar100, "cifar100"),
    "FaceScrub pickle": Kind(functools.partial(datasets.write_facescrub, count=4), "facescrub"),
    "MATLAB": Kind(functools.partial(datasets.write_svhn, compressed=False), "svhn"),
    "MATLAB, compressed": Kind(datasets.write_svhn, "svhn", True),
    "GTSRB": Kind(datasets.write_gtsrb, "gtsrb"),
    "PNG": Kind(_write_own_pictures(".png"), has_checksums=True),
    "JPEG": Kind(_write_own_pictures(".jpg")),
    "PPM": Kind(_write_own_pictures(".ppm")),
    "BMP": Kind(_write_own_pictures(".bmp")),
    "WEBP": Kind(_write_own_pictures(".webp")),
    "cache": Kind(datasets.write_idx, "mnist", True),
}

# -- forged files -----------------------------------------------------------------------------------------------------


def doubling(start: bytes, end: bytes, depth: int = 60) -> bytes:
    """Return a pickle of a list or tuple that holds another twice, and so on: few bytes, 2**depth values."""
    return start + end + b"q\0" + b"".join(b"0%bh%ch%c%bq%c" % (start, n - 1, n - 1, end, n) for n in range(1, depth))


HOSTILE_PICKLES = {
    "a memo index out of range": b"\x80\x02}r\xf0\xff\xff\x0f(U\x04dataNu.",
    "a length beyond the end of the file": b"\x80\x04}\x94(U\x04data\x8e\0\0\0\xff\0\0\0\0u.",
    "lists that double": b"\x80\x02}(U\x04data" + doubling(b"](", b"e") + b"u.",
    "a key that doubles": b"\x80\x02}(" + doubling(b"(", b"t") + b"Nu.",
    "deep lists": b"\x80\x02}(U\x04data" + b"]" * 100_000 + b"a" * 99_999 + b"u.",
    "a list in itself": b"\x80\x02}(U\x04data]q\0h\0au.",
    "a long number": b"\x80\x02}(U\x04dataL" + b"9" * 100_000 + b"L\nu.",
    "many lists": b"\x80\x02(" + b"]" * 3_000_000 + b"l.",
    "a command": b"cos\nsystem\n(S'exit 1'\ntR.",
}
HOSTILE_SHAPES = [(-(2**31), -(2**31), 4), (40, -28, -28), (65536,) * 4, (2**31 - 1, 28, 28), (2**31 - 1, 2**31 - 1, 0)]
HOSTILE_ROWS = [
    *("../../../x.ppm;3", "/etc/x.ppm;3", "2.ppm;3", "passwd;3", ";3", "1.ppm;43", "1.ppm;-1", "1.ppm;x", "1.ppm"),
    *("a" * 200_000 + ".ppm;3", "1.ppm;" + "9" * 10_000, "\0.ppm;3", "..;3"),
]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


def idx_header(shape: tuple[int, ...]) -> bytes:
    """Return the header of an IDX file that claims a shape."""
    return struct.pack(f">BBBB{len(shape)}i", 0, 0, 8, len(shape), *shape)


def repeated_labels() -> bytes:
    """Return a pickle of a megabyte with labels of which NumPy would make a gigabyte."""
    return pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "labels": [np.zeros(1 << 20, np.uint8)] * 1000})


def matlab_files(header: bytes, megabytes: int = 200) -> list[bytes]:
    """Return MATLAB files with false sizes: beyond the end of the file, overflowing, negative, compressed a thousandfold."""

    def matrix(shape: tuple[int, ...], claimed: int, data: bytes) -> bytes:
        sizes = struct.pack(f"<II{len(shape)}i", 5, 4 * len(shape), *shape)
        body = struct.pack("<IIII", 6, 8, 9, 0) + sizes + struct.pack("<HHI", 1, 1, ord("X"))
        return struct.pack("<II", 14, claimed) + body + struct.pack("<II", 2, claimed) + data

    compressor = zlib.compressobj(1)
    parts = [compressor.compress(matrix((32, 32, 3, 9), 27648, b""))]
    parts += [compressor.compress(bytes(1 << 20)) for _ in range(megabytes)]
    bomb = b"".join([*parts, compressor.flush()])
    return [
        header + element
        for element in (
            matrix((32, 32, 3, 2**31 - 1), 2**32 - 1, b""),
            matrix((65536, 65536, 65536, 65536), 0, b""),
            matrix((-32, -32, 3, 9), 27648, bytes(27648)),
            struct.pack("<II", 15, len(bomb)) + bomb,
            struct.pack("<II", 15, 2**32 - 1) + bomb[:1000],
        )
    ]


def npy_header(**more: object) -> bytes:
    """Return the header of an .npy file."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (40, 1, 28, 28), **more})
    return stream.getvalue()


FORGED_ARRAYS: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "huge": lambda data: npy_header(shape=(2**40, 1, 28, 28)) + data[128:],
    "other": lambda data: npy_header(descr="<f8", shape=(5, 1, 28, 28)) + data[128:],
    "object": lambda data: npy_header(descr="|O", shape=(40,)) + pickle.dumps([1] * 40),
}
ODD_FILES = ("pipe", "device", "folder", "nowhere", "endless", "sparse")


def put_odd_file(file: Path, kind: str) -> None:
    """Replace a file by something that is not a regular file of a plausible size."""
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "sparse":
        with file.open("wb") as stream:
            stream.truncate(5 << 30)
    else:
        file.symlink_to({"device": "/dev/zero", "nowhere": "none", "endless": "/proc/kmsg"}[kind])


def _compress_zeros(megabytes: int) -> bytes:
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as compressed:
        compressed.write(idx_header((40, 28, 28)))
        for _ in range(megabytes):
            compressed.write(bytes(1 << 20))
    return stream.getvalue()


def _make_picture(width: int, height: int, form: str) -> bytes:
    """Return a picture file of one colour: few bytes, many pixels."""
    if form == "PPM":
        return b"P6 %d %d 255\n" % (width, height)
    from PIL import Image

    stream = io.BytesIO()
    Image.new("1" if form == "PNG" else "L", (width, height)).save(stream, form)
    return stream.getvalue()


def _list_forgeries(dataset: str) -> list[str]:
    """List the names of the forgeries of a dataset."""
    forgeries = {
        "IDX": [f"shape {number}" for number in range(len(HOSTILE_SHAPES))],
        "IDX, compressed": ["zeros"],
        "CIFAR-10 pickle": [*HOSTILE_PICKLES, "repeated labels"],
        "MATLAB": [f"matrix {number}" for number in range(5)],
        "GTSRB": [f"row {number}" for number in range(len(HOSTILE_ROWS))],
        "PNG": ["EPS", "huge"],
        "JPEG": ["EPS", "huge"],
        "PPM": ["EPS", "huge"],
        "cache": [*FORGED_ARRAYS, "odd facts"],
    }
    return [*forgeries.get(dataset, []), *(f"odd file: {kind}" for kind in ODD_FILES)]


def forge_about(file: Path, changes: dict[str, Any]) -> None:
    """Change the about.json of a cache entry, with the right checksum."""
    about = json.loads(file.read_text())["about"] | changes
    file.write_text(json.dumps({"sha256": digest_json(about), "about": about}))


def forge_file(file: Path, data: bytes) -> None:
    """Write another array into a cache entry, with the right size and checksum."""
    about = file.with_name("about.json")
    files = json.loads(about.read_text())["about"]["files"]
    forge_about(about, {"files": files | {file.name: {"bytes": len(data), "crc32": zlib.crc32(data)}}})


def _forge(case: Case, files: list[Path], draw: random.Random) -> None:
    """Forge one of a dataset's files."""
    file = draw.choice(files)
    kind, _, number = case.forgery.partition(" ")
    if case.forgery.startswith("odd file"):
        put_odd_file(file, case.forgery.rpartition(" ")[2])
        return
    if case.dataset == "cache":
        if case.forgery == "odd facts":
            changes = draw.choice([{"classes": ["0"]}, {"spread": [[1.0], [float("nan")]]}, {"note": 3}, {"files": []}])
            forge_about(file.with_name("about.json"), changes)
            return
        file = file.with_name("train-pixels.npy")
        data = FORGED_ARRAYS[case.forgery](file.read_bytes())
        if case.forgery != "flipped":  # a forger can compute checksums, too
            forge_file(file, data)
    elif kind == "shape":
        file, data = file.with_name("train-images-idx3-ubyte"), idx_header(HOSTILE_SHAPES[int(number)])
    elif kind == "matrix":
        data = matlab_files(file.read_bytes()[:128])[int(number)]
    elif kind == "row":
        file = next(file for file in files if file.suffix == ".csv")
        data = f"Filename;ClassId\n2.ppm;41\n{HOSTILE_ROWS[int(number)]}\n".encode()
    elif kind == "huge":
        data = _make_picture(12_000, 12_000, case.dataset)
    else:
        data = {
            "zeros": functools.partial(_compress_zeros, 500),
            "repeated labels": repeated_labels,
            "EPS": lambda: EPS,
            **{name: functools.partial(bytes, data) for name, data in HOSTILE_PICKLES.items()},
        }[case.forgery]()
    file.unlink()
    file.write_bytes(data)


# -- cases ---------------------------------------------------------------------------------------------------------------


@functools.cache
def _base() -> tempfile.TemporaryDirectory[str]:
    """Make a folder with all undamaged datasets, in the process that makes the cases. It is removed when that process ends."""
    base = tempfile.TemporaryDirectory(prefix="data-files-")
    for name, kind in KINDS.items():
        kind.write(_data_folder(Path(base.name) / name, kind))
    return base


def _data_folder(root: Path, kind: Kind) -> Path:
    from spacecl.data.catalogue import DATASETS

    return root / DATASETS[kind.name].folders[0] if kind.name else root / "own"


def make_cases(count: int, seed: int) -> list[Case]:
    """Make `count` cases, the same for the same seed: forgeries first, then damage to each format in turn."""
    _base()
    draw = random.Random(seed)
    forged = [Case(dataset, forgery, draw.getrandbits(32)) for dataset in KINDS for forgery in _list_forgeries(dataset)]
    if count < 2 * len(forged):
        forged = draw.sample(forged, count // 2)
    turns = itertools.islice(itertools.cycle(KINDS), count - len(forged))
    return forged + [Case(dataset, seed=draw.getrandbits(32)) for dataset in turns]


def name_kind(case: Case) -> str:
    return f"{case.dataset}, forged" if case.forgery else case.dataset


def run_case(case: Case) -> str:
    """Damage a copy of a dataset and read it. What is read must be right."""
    base = Path(_base().name)
    kind = KINDS[case.dataset]
    draw = random.Random(case.seed)
    with tempfile.TemporaryDirectory(dir=base) as place:
        root = Path(place) / "data"
        shutil.copytree(base / case.dataset, root, copy_function=os.link)  # type: ignore[arg-type]
        os.environ["SPACECL_CACHE"] = f"{place}/cache"
        mark = _watch_for_programs(Path(place))
        damaged = root
        if case.dataset == "cache":
            _load(root, kind)
            damaged = Path(place) / "cache" / "decoded"
        files = sorted(file for file in damaged.rglob("*") if file.is_file() and not file.name.startswith("."))
        if case.forgery:
            _forge(case, files, draw)
        else:
            file = draw.choice(files)
            data = damage(file.read_bytes(), draw)[1]
            file.unlink()  # a hard link to the undamaged file
            file.write_bytes(data)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                parts = _load(root, kind)
        finally:
            assert not mark.exists(), "another program was started"
    if any("empty files left out" in str(warning.message) for warning in caught):
        return "read without an empty file, with a warning"
    expected = _load_undamaged(case.dataset)
    if _is_same(parts, expected):
        return "read correctly"
    assert not kind.has_checksums, "it was read as something else, though it has checksums"
    for pixels, labels, facts in parts:
        assert pixels.dtype == np.uint8, pixels.dtype
        assert pixels.shape[1:] == expected[0][0].shape[1:], pixels.shape
        assert len(pixels) == len(labels) > 0, (len(pixels), len(labels))
        assert 0 <= labels.min() <= labels.max() < len(facts[0]), (labels.min(), labels.max())
    return "read with valid images and labels"


def _watch_for_programs(place: Path) -> Path:
    """Install a Ghostscript that writes a file when it is started, and return that file."""
    from PIL import EpsImagePlugin

    (place / "gs").write_text(f"#!/bin/sh\necho started >> {place}/mark\n")
    (place / "gs").chmod(0o755)
    os.environ["PATH"] = f"{place}{os.pathsep}{os.environ['PATH'].split(os.pathsep, 1)[-1]}"
    EpsImagePlugin.gs_binary = None
    return place / "mark"


Facts = tuple[tuple[str, ...], Any]  # class names, and mean and deviation of the training images
Parts = list[tuple[np.ndarray, np.ndarray, Facts]]  # pixels, labels and facts


def _load(root: Path, kind: Kind) -> Parts:
    """Read a dataset as `spacecl run` does."""
    from spacecl.data.benchmarks.streams import load_stream
    from spacecl.data.sources import load

    if kind.name:
        dataset = load(kind.name, root)
        return [(*split, (dataset.classes, dataset.statistics)) for split in (dataset.train, dataset.test)]
    (task,) = load_stream(str(root / "own"), image_size=8)
    facts = tuple(task.classes), (task.train.mean, task.train.std)  # type: ignore[arg-type,union-attr]
    return [(part.pixels, part.labels, facts) for part in (task.train, task.test)]  # type: ignore[union-attr]


@functools.cache
def _load_undamaged(dataset: str) -> Parts:
    base = Path(_base().name)
    with tempfile.TemporaryDirectory(dir=base) as place:
        os.environ["SPACECL_CACHE"] = f"{place}/cache"
        parts = _load(base / dataset, KINDS[dataset])
        return [(np.array(pixels), np.array(labels), facts) for pixels, labels, facts in parts]


def _is_same(one: Parts, other: Parts) -> bool:
    return all(np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) and a[2] == b[2] for a, b in zip(one, other))


def run(count: int, seed: int) -> Outcome:
    """Run `count` cases."""
    return run_guarded("data files", make_cases(count, seed), run_case, kind=name_kind)
