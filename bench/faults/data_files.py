"""Damaged and hostile data files of every kind that is read: each is refused in a sentence, or read right.

What carries a checksum (gzip, zlib in MATLAB files, PNG, the cache) must never be read as something else; of the other formats
no more can be asked than images of the right shape with labels of classes that there are.
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
    """A small dataset, and either what a forger does to it or the seed of what a disk does to one of its files."""

    dataset: str
    hostile: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Kind:
    """A small dataset in files of one kind, and whether they carry checksums."""

    write: Callable[[Path], object]
    name: str = ""  # in the catalogue; without one it is a user's own folder of pictures
    checked: bool = False


def _own(suffix: str) -> Callable[[Path], None]:
    return lambda folder: datasets.write_pictures(folder / "task", ("oak", "elm"), 3, (12, 9), "RGB", suffix)


KINDS = {
    "IDX": Kind(functools.partial(datasets.write_idx, packed=False), "fashion-mnist"),
    "IDX, packed": Kind(datasets.write_idx, "mnist", True),
    "CIFAR-10 pickle": Kind(functools.partial(datasets.write_cifar10, count=4), "cifar10"),
    "CIFAR-100 pickle": Kind(datasets.write_cifar100, "cifar100"),
    "FaceScrub pickle": Kind(functools.partial(datasets.write_facescrub, count=4), "facescrub"),
    "MATLAB": Kind(functools.partial(datasets.write_svhn, compressed=False), "svhn"),
    "MATLAB, packed": Kind(datasets.write_svhn, "svhn", True),
    "GTSRB": Kind(datasets.write_gtsrb, "gtsrb"),
    "PNG": Kind(_own(".png"), checked=True),
    "JPEG": Kind(_own(".jpg")),
    "PPM": Kind(_own(".ppm")),
    "BMP": Kind(_own(".bmp")),
    "WEBP": Kind(_own(".webp")),
    "cache": Kind(datasets.write_idx, "mnist", True),
}

# -- what a forger does --------------------------------------------------------------------------------------------------


def doubling(start: bytes, end: bytes, depth: int = 60) -> bytes:
    """A pickle of a list or tuple that holds another twice, which holds another twice: few bytes, 2**depth values."""
    return start + end + b"q\0" + b"".join(b"0%bh%ch%c%bq%c" % (start, n - 1, n - 1, end, n) for n in range(1, depth))


HOSTILE_PICKLES = {
    "a place far away": b"\x80\x02}r\xf0\xff\xff\x0f(U\x04dataNu.",
    "a length beyond the file": b"\x80\x04}\x94(U\x04data\x8e\0\0\0\xff\0\0\0\0u.",
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
    return struct.pack(f">BBBB{len(shape)}i", 0, 0, 8, len(shape), *shape)


def repeated_labels() -> bytes:
    """A pickle of a megabyte with labels that NumPy would make a gigabyte of."""
    return pickle.dumps({"data": np.zeros((4, 3072), np.uint8), "labels": [np.zeros(1 << 20, np.uint8)] * 1000})


def matlab_files(header: bytes, megabytes: int = 200) -> list[bytes]:
    """MATLAB files whose sizes lie: beyond the file, wrapping, negative, packed a thousandfold."""

    def matrix(shape: tuple[int, ...], claimed: int, data: bytes) -> bytes:
        sizes = struct.pack(f"<II{len(shape)}i", 5, 4 * len(shape), *shape)
        body = struct.pack("<IIII", 6, 8, 9, 0) + sizes + struct.pack("<HHI", 1, 1, ord("X"))
        return struct.pack("<II", 14, claimed) + body + struct.pack("<II", 2, claimed) + data

    packer = zlib.compressobj(1)
    parts = [packer.compress(matrix((32, 32, 3, 9), 27648, b""))]
    parts += [packer.compress(bytes(1 << 20)) for _ in range(megabytes)]
    bomb = b"".join([*parts, packer.flush()])
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
    """The header of an .npy file."""
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


def put_odd_file(file: Path, what: str) -> None:
    """Put something in a file's place that is no regular file of a plausible size."""
    file.unlink()
    if what == "pipe":
        os.mkfifo(file)
    elif what == "folder":
        file.mkdir()
    elif what == "sparse":
        with file.open("wb") as stream:
            stream.truncate(5 << 30)
    else:
        file.symlink_to({"device": "/dev/zero", "nowhere": "none", "endless": "/proc/kmsg"}[what])


def _packed_zeros(megabytes: int) -> bytes:
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as packed:
        packed.write(idx_header((40, 28, 28)))
        for _ in range(megabytes):
            packed.write(bytes(1 << 20))
    return stream.getvalue()


def _picture_of(width: int, height: int, form: str) -> bytes:
    """The bytes of a huge picture of one colour."""
    if form == "PPM":
        return b"P6 %d %d 255\n" % (width, height)
    from PIL import Image

    stream = io.BytesIO()
    Image.new("1" if form == "PNG" else "L", (width, height)).save(stream, form)
    return stream.getvalue()


def _hostile(dataset: str) -> list[str]:
    """The names of what a forger does to a dataset."""
    made = {
        "IDX": [f"shape {number}" for number in range(len(HOSTILE_SHAPES))],
        "IDX, packed": ["zeros"],
        "CIFAR-10 pickle": [*HOSTILE_PICKLES, "repeated labels"],
        "MATLAB": [f"matrix {number}" for number in range(5)],
        "GTSRB": [f"row {number}" for number in range(len(HOSTILE_ROWS))],
        "PNG": ["EPS", "huge"],
        "JPEG": ["EPS", "huge"],
        "PPM": ["EPS", "huge"],
        "cache": [*FORGED_ARRAYS, "odd facts"],
    }
    return [*made.get(dataset, []), *(f"odd file: {what}" for what in ODD_FILES)]


def forge_about(file: Path, odd: dict[str, Any]) -> None:
    """Change what an entry of the cache says of itself, its checksum made right."""
    about = json.loads(file.read_text())["about"] | odd
    file.write_text(json.dumps({"sha256": digest_json(about), "about": about}))


def forge_file(file: Path, data: bytes) -> None:
    """Write another array into an entry of the cache, with the right size and checksum."""
    about = file.with_name("about.json")
    files = json.loads(about.read_text())["about"]["files"]
    forge_about(about, {"files": files | {file.name: {"bytes": len(data), "crc32": zlib.crc32(data)}}})


def _forge(case: Case, files: list[Path], draw: random.Random) -> None:
    """Do to a dataset's files what a case says."""
    file = draw.choice(files)
    what, _, number = case.hostile.partition(" ")
    if case.hostile.startswith("odd file"):
        put_odd_file(file, case.hostile.rpartition(" ")[2])
        return
    if case.dataset == "cache":
        if case.hostile == "odd facts":
            odd = draw.choice([{"classes": ["0"]}, {"spread": [[1.0], [float("nan")]]}, {"note": 3}, {"files": []}])
            forge_about(file.with_name("about.json"), odd)
            return
        file = file.with_name("train-pixels.npy")
        data = FORGED_ARRAYS[case.hostile](file.read_bytes())
        if case.hostile != "flipped":  # a forger can count, too
            forge_file(file, data)
    elif what == "shape":
        file, data = file.with_name("train-images-idx3-ubyte"), idx_header(HOSTILE_SHAPES[int(number)])
    elif what == "matrix":
        data = matlab_files(file.read_bytes()[:128])[int(number)]
    elif what == "row":
        file = next(file for file in files if file.suffix == ".csv")
        data = f"Filename;ClassId\n2.ppm;41\n{HOSTILE_ROWS[int(number)]}\n".encode()
    elif what == "huge":
        data = _picture_of(12_000, 12_000, case.dataset)
    else:
        data = {
            "zeros": functools.partial(_packed_zeros, 500),
            "repeated labels": repeated_labels,
            "EPS": lambda: EPS,
            **{name: functools.partial(bytes, data) for name, data in HOSTILE_PICKLES.items()},
        }[case.hostile]()
    file.unlink()
    file.write_bytes(data)


# -- cases ---------------------------------------------------------------------------------------------------------------


@functools.cache
def _base() -> tempfile.TemporaryDirectory[str]:
    """A folder with every dataset whole; made by the process that makes the cases, and removed when it ends."""
    place = tempfile.TemporaryDirectory(prefix="data-files-")
    for kind, made in KINDS.items():
        made.write(_folder(Path(place.name) / kind, made))
    return place


def _folder(root: Path, kind: Kind) -> Path:
    from spacecl.data.catalogue import DATASETS

    return root / DATASETS[kind.name].folders[0] if kind.name else root / "own"


def cases(count: int, seed: int) -> list[Case]:
    """So many cases: what forgers do first, then damage, the kinds in turn; the same for the same seed."""
    _base()
    draw = random.Random(seed)
    forged = [Case(dataset, hostile, draw.getrandbits(32)) for dataset in KINDS for hostile in _hostile(dataset)]
    if count < 2 * len(forged):
        forged = draw.sample(forged, count // 2)
    turns = itertools.islice(itertools.cycle(KINDS), count - len(forged))
    return forged + [Case(dataset, seed=draw.getrandbits(32)) for dataset in turns]


def kind(case: Case) -> str:
    return f"{case.dataset}, forged" if case.hostile else case.dataset


def do(case: Case) -> str:
    """Damage a copy of a dataset and read it; what is read must be right."""
    base = Path(_base().name)
    made = KINDS[case.dataset]
    draw = random.Random(case.seed)
    with tempfile.TemporaryDirectory(dir=base) as place:
        root = Path(place) / "data"
        shutil.copytree(base / case.dataset, root, copy_function=os.link)  # type: ignore[arg-type]
        os.environ["SPACECL_CACHE"] = f"{place}/cache"
        mark = _watch_for_programs(Path(place))
        damaged = root
        if case.dataset == "cache":
            _load(root, made)
            damaged = Path(place) / "cache" / "decoded"
        files = sorted(file for file in damaged.rglob("*") if file.is_file() and not file.name.startswith("."))
        if case.hostile:
            _forge(case, files, draw)
        else:
            file = draw.choice(files)
            data = damage(file.read_bytes(), draw)[1]
            file.unlink()  # a link to the whole one
            file.write_bytes(data)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found = _load(root, made)
        finally:
            assert not mark.exists(), "another program was started"
    if any("empty files left out" in str(warning.message) for warning in said):
        return "read without an empty file, and said"
    if _same(found, _whole(case.dataset)):
        return "read right"
    assert not made.checked, "it was read as something else, though it carries checksums"
    for pixels, labels, facts in found:
        assert pixels.dtype == np.uint8, pixels.dtype
        assert pixels.shape[1:] == _whole(case.dataset)[0][0].shape[1:], pixels.shape
        assert len(pixels) == len(labels) > 0, (len(pixels), len(labels))
        assert 0 <= labels.min() <= labels.max() < len(facts[0]), (labels.min(), labels.max())
    return "read as it is"


def _watch_for_programs(place: Path) -> Path:
    """A Ghostscript that leaves a mark when it is started."""
    from PIL import EpsImagePlugin

    (place / "gs").write_text(f"#!/bin/sh\necho started >> {place}/mark\n")
    (place / "gs").chmod(0o755)
    os.environ["PATH"] = f"{place}{os.pathsep}{os.environ['PATH'].split(os.pathsep, 1)[-1]}"
    EpsImagePlugin.gs_binary = None
    return place / "mark"


Facts = tuple[tuple[str, ...], Any]  # names of classes, and mean and deviation of the training images
Found = list[tuple[np.ndarray, np.ndarray, Facts]]  # pixels, labels and facts


def _load(root: Path, made: Kind) -> Found:
    """Read a dataset as `spacecl run` does."""
    from spacecl.data.benchmarks.streams import load_stream
    from spacecl.data.sources import load

    if made.name:
        found = load(made.name, root)
        return [(*part, (found.classes, found.spread)) for part in (found.train, found.test)]
    (task,) = load_stream(str(root / "own"), image_size=8)
    facts = tuple(task.classes), (task.train.mean, task.train.std)  # type: ignore[arg-type,union-attr]
    return [(part.pixels, part.labels, facts) for part in (task.train, task.test)]  # type: ignore[union-attr]


@functools.cache
def _whole(dataset: str) -> Found:
    base = Path(_base().name)
    with tempfile.TemporaryDirectory(dir=base) as place:
        os.environ["SPACECL_CACHE"] = f"{place}/cache"
        found = _load(base / dataset, KINDS[dataset])
        return [(np.array(pixels), np.array(labels), facts) for pixels, labels, facts in found]


def _same(one: Found, other: Found) -> bool:
    return all(np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) and a[2] == b[2] for a, b in zip(one, other))


def run(count: int, seed: int) -> Outcome:
    return run_guarded("data files", cases(count, seed), do, kind=kind)
