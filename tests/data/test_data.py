"""Data files: readers of the publishers' formats, finding, fetching and checking, the cache."""

import gzip
import hashlib
import http.server
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import threading
import tracemalloc
import zipfile
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from faults.data_files import (
    EPS,
    FORGED_ARRAYS,
    HOSTILE_PICKLES,
    HOSTILE_ROWS,
    HOSTILE_SHAPES,
    ODD_FILES,
    forge_about,
    forge_file,
    idx_header,
    matlab_files,
    put_odd_file,
    run,
)
from faults.datasets import idx_bytes, write_cifar10, write_gtsrb, write_idx, write_pictures, write_svhn
from PIL import Image

from spacecl import ConfigError, DataError
from spacecl.data import matlab, pickles, sources
from spacecl.data import readers as formats
from spacecl.data.catalogue import Dataset, Download

REAL = os.environ.get("SPACECL_DATA")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPACECL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPACECL_DATA", raising=False)
    monkeypatch.setattr(sources, "SYSTEM", ())


# -- readers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read_packed_or_not(tmp_path, packed):
    images = write_idx(tmp_path, packed)
    found = formats.read_idx(tmp_path)
    assert np.array_equal(found.train[0][:, 0], images)
    assert found.train[1].tolist()[:12] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert len(found.test[1]) == 10


@pytest.mark.parametrize("cut", [2, 9, 500, -1])
def test_truncated_idx_files_are_named(tmp_path, cut):
    write_idx(tmp_path, packed=False)
    file = tmp_path / "t10k-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte"):
        formats.read_idx(tmp_path)


def test_a_truncated_gz_file_is_named(tmp_path):
    write_idx(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be unpacked"):
        formats.read_idx(tmp_path)


def test_cifar_batches_are_read_in_order(tmp_path):
    write_cifar10(tmp_path / "c")
    found = formats.read_cifar10(tmp_path / "c")
    batches = [pickle.loads((tmp_path / "c" / f"data_batch_{number}").read_bytes()) for number in range(1, 6)]
    assert np.array_equal(found.train[0].reshape(-1, 3072), np.concatenate([batch[b"data"] for batch in batches]))
    assert found.train[1].tolist() == [label for batch in batches for label in batch[b"labels"]]
    assert found.classes[3] == "cat"


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_arrays_of_every_pickle_protocol_are_read(tmp_path, protocol):
    file = tmp_path / "p"
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    file.write_bytes(pickle.dumps({"data": array, "fine_labels": [np.int64(1), 2, 3]}, protocol=protocol))
    found = pickles.read_pickle(file)
    assert np.array_equal(found["data"], array)
    assert list(found["fine_labels"]) == [1, 2, 3]


class Evil:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_something_is_refused_and_does_not_run_it(tmp_path, protocol):
    mark, file = tmp_path / "owned", tmp_path / "data_batch_1"
    for call, *arguments in ((os.system, f"touch {mark}"), (eval, f"open({str(mark)!r}, 'w')"), (getattr, "text", "upper")):
        file.write_bytes(pickle.dumps({b"data": Evil(call, *arguments)}, protocol=protocol))
        with pytest.raises(DataError, match="has no place in a file of images"):
            pickles.read_pickle(file)
    assert not mark.exists()


def test_a_pickle_cannot_forge_a_type_with_pointers_in_it_nor_change_a_function(tmp_path):
    """NumPy's own unpickling trusts what a pickle says of a type's fields, and would take bytes for addresses."""
    file = tmp_path / "data_batch_1"
    fields = b"(I3\nS'|'\nN(S'f'\ntp1\n(dp2\nS'f'\n(cnumpy\ndtype\n(S'O8'\nI0\nI1\ntRI0\ntsI8\nI1\nI0\ntb"
    kind = b"cnumpy\ndtype\n(S'V8'\nI0\nI1\ntR" + fields
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1\nt" + kind + b"I00\nS'AAAAAAAA'\ntb"
    )
    for data in (
        b"(dS'data'\n" + array + b"s.",
        b"(dS'data'\ncnumpy.core.multiarray\n_reconstruct\n(N(dS'__defaults__'\n(I1\ntstbs.",
        b"(dS'data'\ncnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O'\nI0\nI1\ntRS'AAAAAAAA'\ntRs.",
    ):
        file.write_bytes(data)
        with pytest.raises(DataError, match="data_batch_1 cannot be read"):
            pickles.read_pickle(file)
    for name in ("fromfile", "fromstring", "memmap", "load"):
        file.write_bytes(b"(dS'data'\ncnumpy\n" + name.encode() + b"\ns.")
        with pytest.raises(DataError, match=f"numpy.{name} has no place"):
            pickles.read_pickle(file)


def test_arrays_keep_their_byte_order_and_layout(tmp_path):
    file = tmp_path / "p"
    arrays = [np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))]
    for protocol in (2, 5):
        file.write_bytes(pickle.dumps({"data": arrays}, protocol=protocol))
        assert all(np.array_equal(a, b) for a, b in zip(pickles.read_pickle(file)["data"], arrays))


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn"])
def test_files_with_flipped_bits_are_never_a_traceback(tmp_path, name):
    """Whatever a disk or a network did to a file, reading it either works or says which file is damaged."""
    folder = tmp_path / name
    {"mnist": write_idx, "cifar10": write_cifar10, "svhn": write_svhn}[name](folder)
    generator, failed = np.random.default_rng(0), 0
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for place in generator.integers(0, len(whole), 8):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
            try:
                formats.read(name, folder)
            except DataError:
                failed += 1
        file.write_bytes(whole)
    assert failed


def test_pixels_that_bytes_cannot_hold_and_labels_outside_the_classes_are_refused(tmp_path):
    from scipy.io import savemat

    for part in ("train", "test"):
        savemat(tmp_path / f"{part}_32x32.mat", {"X": np.full((32, 32, 3, 4), 0.5), "y": np.ones((4, 1))})
    with pytest.raises(DataError, match="not whole numbers from 0 to 255"):
        formats.read("svhn", tmp_path)
    write_cifar10(tmp_path / "c")
    batch = {b"data": np.zeros((20, 3072), np.uint8), b"labels": [77] * 20}
    (tmp_path / "c" / "data_batch_2").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match="training labels are not whole numbers from 0 to 9"):
        formats.read("cifar10", tmp_path / "c")
    (tmp_path / "c" / "data_batch_2").write_bytes(pickle.dumps({**batch, b"labels": [1] * 19}))
    with pytest.raises(DataError, match="100 training images and 99 labels"):
        formats.read("cifar10", tmp_path / "c")


def test_pictures_are_read_as_they_are_seen(tmp_path):
    (tmp_path / "a").mkdir()
    red = np.zeros((20, 20, 3), np.uint8)
    red[..., 0] = 200
    Image.fromarray(red).save(tmp_path / "a" / "0.PNG")
    deep = np.full((20, 20), 0x8000, np.uint16)
    Image.fromarray(deep).save(tmp_path / "a" / "1.png")
    glyph = np.zeros((20, 20, 4), np.uint8)
    glyph[5:15, 5:15, 3] = 255  # black where it is not transparent
    Image.fromarray(glyph).save(tmp_path / "a" / "2.png")
    half = np.zeros((20, 20, 3), np.uint8)
    half[:10] = 255
    turned = Image.fromarray(half)
    exif = turned.getexif()
    exif[0x0112] = 3
    turned.save(tmp_path / "a" / "3.jpg", exif=exif)
    for name in (".4.png", ".ipynb_checkpoints/5.png", "__MACOSX/6.png"):
        (tmp_path / "a" / name).parent.mkdir(exist_ok=True)
        Image.fromarray(red).save(tmp_path / "a" / name)
    files = formats.list_pictures(tmp_path / "a")
    assert [file.name for file in files] == ["0.PNG", "1.png", "2.png", "3.jpg"]
    found = formats.decode_pictures(files, (3, 20, 20))
    assert found[0].mean((1, 2)).tolist() == [200, 0, 0]
    assert found[1].min() == found[1].max() == 128
    assert (found[2][0, 0, 0], found[2][0, 10, 10]) == (255, 0)
    assert found[3][0, 2, 5] < 60 < 200 < found[3][0, 17, 5], "turned upside down, as the camera says"


def test_svhn_is_read_with_ten_for_nought(tmp_path):
    from scipy.io import savemat

    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    for part in ("train", "test"):
        savemat(tmp_path / f"{part}_32x32.mat", {"X": pixels, "y": np.array([[10], [1], [9], [10]], np.uint8)})
    found = formats.read_svhn(tmp_path)
    assert found.train[1].tolist() == [0, 1, 9, 0]
    assert np.array_equal(found.train[0][2], pixels[:, :, :, 2].transpose(2, 0, 1))
    (tmp_path / "test_32x32.mat").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"test_32x32\.mat cannot be read"):
        formats.read_svhn(tmp_path)


def test_gtsrb_is_read_with_its_table_and_made_one_size(tmp_path):
    signs = [f"{number:05}" for number in range(43)]
    write_pictures(tmp_path / "Final_Training" / "Images", signs, 2, (40, 25), "RGB", ".ppm")
    write_pictures(tmp_path / "Final_Test", ["Images"], 3, (15, 60), "RGB", ".ppm")
    (tmp_path / "GT-final_test.csv").write_text("Filename;Width;ClassId\n2.ppm;9;41\n0.ppm;9;3\n")
    found = formats.read_gtsrb(tmp_path)
    assert found.train[0].shape == (86, 3, 32, 32)
    assert found.train[1].tolist() == [label for label in range(43) for _ in range(2)]
    assert found.test[1].tolist() == [41, 3]
    with Image.open(tmp_path / "Final_Test" / "Images" / "2.ppm") as picture:
        mean = np.asarray(picture).mean((0, 1))
    assert found.test[0][0].mean((1, 2)) == pytest.approx(mean, abs=4)


def test_notmnist_leaves_empty_files_out_and_says_so_but_names_damaged_ones(tmp_path):
    write_pictures(tmp_path, "ABCDEFGHIJ", 10)
    (tmp_path / "A" / "empty.png").write_bytes(b"")
    found = formats.read_notmnist(tmp_path)
    assert (len(found.train[1]), len(found.test[1]), found.note) == (90, 10, "1 empty files left out")
    again = formats.read_notmnist(tmp_path)
    assert np.array_equal(found.test[0], again.test[0])
    (tmp_path / "B" / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"broken.png"):
        formats.read_notmnist(tmp_path)


def test_facescrub_is_read_from_hats_pickles_or_from_folders_of_people(tmp_path):
    pickles, people = tmp_path / "p", tmp_path / "f"
    pickles.mkdir()
    for part, count in (("train", 200), ("test", 100)):
        values = {"features": np.full((count, 3, 32, 32), 7.0), "labels": np.arange(count) % 100}
        (pickles / f"facescrub_{part}_100.pkl").write_bytes(pickle.dumps(values))
    found = formats.read_facescrub(pickles)
    assert found.train[0].dtype == np.uint8
    assert (len(found.train[1]), len(found.test[1]), found.train[0].max()) == (200, 100, 7)
    write_pictures(people, [f"person {number:03}" for number in range(101)], 2, (50, 40), "RGB", ".jpg")
    write_pictures(people, ["aaa few"], 1, (50, 40), "RGB", ".jpg")
    found = formats.read_facescrub(people)
    assert len(found.classes) == 100
    assert "aaa few" not in found.classes
    assert len(found.train[1]) + len(found.test[1]) == 200


# -- files that someone has made to do harm ------------------------------------------------------------------------------


def test_no_picture_makes_pillow_start_another_program(tmp_path, monkeypatch):
    from PIL import EpsImagePlugin

    from spacecl.errors import SpaceError
    from spacecl.serving.service import _decoded

    mark = tmp_path / "mark"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gs").write_text(f"#!/bin/sh\necho started >> {mark}\n")
    (tmp_path / "bin" / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    file = tmp_path / "x.png"
    file.write_bytes(EPS)
    with suppress(OSError), Image.open(file) as picture:
        picture.load()
    assert mark.exists(), "Pillow by itself starts Ghostscript"
    mark.unlink()
    with pytest.raises(DataError, match=r"x\.png \(it is none of PNG, JPEG, PPM, BMP, WEBP\)"):
        formats.decode_pictures([file], (3, 8, 8))
    with pytest.raises(SpaceError, match="no picture that can be read"):
        _decoded(EPS, {(3, 8, 8)})
    assert not mark.exists()


@pytest.mark.parametrize("suffix", formats.PICTURES)
def test_every_ending_of_pictures_has_a_format_that_is_opened(tmp_path, suffix):
    write_pictures(tmp_path, ["a"], 1, mode="RGB", suffix=suffix)
    assert formats.decode_pictures([tmp_path / "a" / f"0{suffix}"], (3, 28, 28)).std() > 20


def test_a_small_file_with_a_huge_picture_is_refused(tmp_path):
    file = tmp_path / "x.png"
    Image.new("1", (8000, 8000)).save(file)
    assert file.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"x\.png \(it has more than 32,000,000 pixels\)"):
        formats.decode_pictures([file], (3, 8, 8))
    Image.new("1", (4000, 4000)).save(file)
    assert formats.decode_pictures([file], (3, 8, 8)).max() == 0


@contextmanager
def little_memory(most=48 << 20):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_no_more_is_unpacked_than_the_header_of_an_idx_file_says(tmp_path):
    write_idx(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(idx_bytes(np.zeros((40, 28, 28), np.uint8)) + bytes(100 << 20), 1))
    with little_memory(), pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is longer than its array"):
        formats.read("mnist", tmp_path)


@pytest.mark.parametrize("shape", HOSTILE_SHAPES)
def test_an_idx_header_that_lies_is_refused(tmp_path, shape):
    write_idx(tmp_path, packed=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_header(shape))
    with little_memory(), pytest.raises(DataError, match=r"train"):
        formats.read("mnist", tmp_path)


@pytest.mark.parametrize("name", HOSTILE_PICKLES)
def test_a_pickle_cannot_ask_for_more_than_its_bytes_can_honestly_give(tmp_path, name):
    write_cifar10(tmp_path / "c")
    (tmp_path / "c" / "data_batch_2").write_bytes(HOSTILE_PICKLES[name])
    with little_memory(), pytest.raises(DataError, match="data_batch_2"):
        formats.read("cifar10", tmp_path / "c")


def test_labels_in_a_pickle_are_a_flat_row_of_whole_numbers(tmp_path):
    """NumPy would make one array of a thousand mentions of the same megabyte."""
    write_cifar10(tmp_path / "c")
    row = np.zeros(1 << 20, np.uint8)
    for labels in ([row] * 1000, [[1]] * 20, [1.0] * 20, ["1"] * 20, None, np.zeros((20, 1), int), [10**30] * 20):
        batch = {"data": np.zeros((20, 3072), np.uint8), "labels": labels}
        (tmp_path / "c" / "data_batch_2").write_bytes(pickle.dumps(batch))
        with little_memory(), pytest.raises(DataError, match=r"data_batch_2 holds labels that are not a row|cannot be read"):
            formats.read("cifar10", tmp_path / "c")


@pytest.mark.parametrize("what", ODD_FILES)
@pytest.mark.parametrize(
    ("name", "place"),
    [("mnist", "train-images-idx3-ubyte.gz"), ("cifar10", "test_batch"), ("svhn", "train_32x32.mat"), ("notmnist", "C/0.png")],
)
def test_what_is_no_regular_file_of_a_plausible_size_is_named_and_never_waited_for(tmp_path, name, place, what):
    folder = tmp_path / sources.DATASETS[name].folders[0]
    if name == "notmnist":
        write_pictures(folder, "ABCDEFGHIJ", 3)
    else:
        {"mnist": write_idx, "cifar10": write_cifar10, "svhn": write_svhn}[name](folder)
    file = folder / place
    put_odd_file(file, what)
    if (name, what) == ("notmnist", "endless"):  # size 0, so it counts as empty
        assert sources.load(name, tmp_path).note == "1 empty files left out"
        return
    with little_memory(), pytest.raises(DataError, match=Path(place).name if name == "notmnist" else None):
        formats.read(name, folder)
    with pytest.raises(DataError):
        sources.load(name, tmp_path)


def test_links_to_regular_files_are_followed(tmp_path):
    write_pictures(tmp_path / "elsewhere", "ABCDEFGHIJ", 2)
    (tmp_path / "n").mkdir()
    for letter in "ABCDEFGHIJ":
        (tmp_path / "n" / letter).mkdir()
        for number in range(2):
            (tmp_path / "n" / letter / f"{number}.png").symlink_to(tmp_path / "elsewhere" / letter / f"{number}.png")
    assert len(formats.read("notmnist", tmp_path / "n").train[1]) == 18


@pytest.mark.parametrize("row", HOSTILE_ROWS)
def test_the_table_of_signs_names_pictures_beside_it_and_classes_that_there_are(tmp_path, row):
    write_gtsrb(tmp_path)
    Image.new("RGB", (9, 9)).save(tmp_path / "x.ppm")
    (tmp_path / "GT-final_test.csv").write_text(f"Filename;ClassId\n2.ppm;41\n{row}\n")
    with pytest.raises(DataError, match=r"GT-final_test\.csv is not the table of test signs"):
        formats.read("gtsrb", tmp_path)


def test_damaged_data_files_are_refused_in_a_sentence_or_read_right():
    outcome = run(60, seed=1)
    assert outcome.failures == []
    assert outcome.tried == 60


# -- MATLAB files ---------------------------------------------------------------------------------------------------------


def same_arrays(file):
    from scipy.io import loadmat

    ours, theirs = matlab.read_arrays(file, ("X", "y")), loadmat(file)
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        assert array.shape == theirs[name].shape, name
        assert array.tobytes() == theirs[name].tobytes(), name
    return ours


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", ["u1", "i2", "u4", "i8", "f4", "f8"])
def test_arrays_of_matlab_files_are_read_as_scipy_reads_them(tmp_path, kind, compressed):
    from scipy.io import savemat

    generator = np.random.default_rng(0)
    values = {
        "before": np.arange(5),
        "a_name_that_is_longer_than_others": {"a": [1, "x"]},
        "X": generator.integers(0, 100, (4, 3, 2, 5)).astype(kind),
        "words": "text",
        "y": generator.integers(0, 10, (3, 1)).astype(kind),  # of one byte each it stands in its tag
    }
    savemat(tmp_path / "m.mat", values, do_compression=compressed)
    found = same_arrays(tmp_path / "m.mat")
    assert np.array_equal(found["X"], values["X"])
    assert np.array_equal(found["y"], values["y"])


def test_matlab_files_of_the_other_byte_order_are_read(tmp_path):
    def element(kind, data):
        return struct.pack(">II", kind, len(data)) + data + bytes(-len(data) % 8)

    def matrix(name, array):
        data = array.astype(array.dtype.newbyteorder(">")).tobytes("F")
        parts = element(6, struct.pack(">II", 9, 0)) + element(5, struct.pack(f">{array.ndim}i", *array.shape))
        return element(14, parts + element(1, name.encode()) + element({1: 2, 2: 4}[array.itemsize], data))

    x, y = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2), np.arange(300, 303, dtype=np.uint16).reshape(3, 1)
    for packed in (False, True):
        parts = [matrix("X", x), matrix("y", y)]
        if packed:
            parts = [struct.pack(">II", 15, len(data)) + data for data in map(zlib.compress, parts)]
        (tmp_path / "m.mat").write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\1\0MI" + b"".join(parts))
        found = same_arrays(tmp_path / "m.mat")
        assert np.array_equal(found["X"], x)
        assert np.array_equal(found["y"], y)


def test_the_real_svhn_is_read_as_scipy_reads_it():
    folder = sources.DATASETS["svhn"].find(sources.search_folders(REAL))
    if folder is None:
        pytest.skip("no svhn: set SPACECL_DATA to a folder that holds it")
    for part in ("train", "test"):
        same_arrays(folder / f"{part}_32x32.mat")


def test_a_matlab_file_that_lies_about_its_sizes_takes_no_memory(tmp_path):
    write_svhn(tmp_path)
    file = tmp_path / "train_32x32.mat"
    for data in matlab_files(file.read_bytes()[:128]):
        file.write_bytes(data)
        with little_memory(), pytest.raises(DataError, match=r"train_32x32\.mat cannot be read"):
            formats.read("svhn", tmp_path)


# -- finding, fetching, checking ------------------------------------------------------------------------------------------


def test_data_is_found_in_the_folders_that_the_user_names(tmp_path, monkeypatch):
    write_idx(tmp_path / "a" / "MNIST" / "raw")
    write_idx(tmp_path / "b" / "fashion-mnist", packed=False)
    both = os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")])
    assert len(sources.load("mnist", tmp_path / "a").train[1]) == 40
    monkeypatch.setenv("SPACECL_DATA", both)
    assert len(sources.load("fashion-mnist").train[1]) == 40
    assert sources.find_missing(["mnist", "fashion-mnist"], None) == []
    write_idx(tmp_path / "b" / "MNIST", count=80)
    assert len(sources.load("mnist").train[1]) == 40, "the first folder that has it"
    with pytest.raises(ConfigError, match="--data names no folder"):
        sources.load("mnist", "")
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        sources.load("mnist", tmp_path / "nowhere")


def test_missing_data_is_an_error_that_says_how_to_get_it_and_nothing_is_made_up(tmp_path):
    with pytest.raises(DataError, match=r"MNIST is not in .* \(as MNIST/raw or .*Get it with: spacecl data fetch mnist"):
        sources.load("mnist", tmp_path)
    with pytest.raises(DataError, match="FaceScrub is not published as files: put either"):
        sources.load("facescrub")


def test_data_is_decoded_once_and_memory_mapped_and_anew_when_its_files_change(tmp_path, monkeypatch):
    write_idx(tmp_path / "MNIST")
    reads = []
    monkeypatch.setitem(formats.READERS, "mnist", lambda folder: reads.append(folder) or formats.read_idx(folder))
    first, second = sources.load("mnist", tmp_path), sources.load("mnist", tmp_path)
    assert len(reads) == 1
    assert isinstance(second.train[0], np.memmap)
    assert np.array_equal(first.train[0], formats.read_idx(tmp_path / "MNIST").train[0])
    assert second.spread[0][0] == pytest.approx(first.train[0].mean())
    assert second.spread[1][0] == pytest.approx(first.train[0].std())
    write_idx(tmp_path / "MNIST", count=80)
    assert len(sources.load("mnist", tmp_path).train[1]) == 80
    assert len(reads) == 2


def test_a_cache_that_cannot_be_written_is_named_with_what_to_do(tmp_path, monkeypatch):
    write_idx(tmp_path / "MNIST")
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", "/dev/full"):
        monkeypatch.setenv("SPACECL_CACHE", str(place))
        with pytest.raises(ConfigError, match=rf"The cache {place}/decoded cannot be used: .*SPACECL_CACHE"):
            sources.load("mnist", tmp_path)


def test_decoding_that_fails_leaves_nothing_half_made_in_the_cache(tmp_path):
    write_idx(tmp_path / "MNIST")
    file = tmp_path / "MNIST" / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    with pytest.raises(DataError):
        sources.load("mnist", tmp_path)
    file.write_bytes(whole)
    assert len(sources.load("mnist", tmp_path).train[1]) == 40
    assert not [path for path in (tmp_path / "cache" / "decoded").iterdir() if path.name.startswith(".making")]


@pytest.fixture
def server(tmp_path):
    """A real web server for a folder."""
    folder = tmp_path / "web"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_):
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{found.server_address[1]}"
    found.shutdown()


def test_data_is_fetched_with_checksums_unpacked_and_used(tmp_path, server, monkeypatch):
    web, address = server
    write_idx(tmp_path / "made")
    downloads = []
    for file in sorted((tmp_path / "made").iterdir()):
        (web / file.name).write_bytes(file.read_bytes())
        downloads.append(Download(f"{address}/{file.name}", hashlib.md5(file.read_bytes()).hexdigest(), "MNIST/raw"))
    write_cifar10(tmp_path / "made" / "cifar-10-batches-py")
    with tarfile.open(web / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    md5 = hashlib.md5((web / "cifar-10-python.tar.gz").read_bytes()).hexdigest()
    table = dict(sources.DATASETS)
    table["mnist"] = Dataset("mnist", "MNIST", ("MNIST/raw",), table["mnist"].files, (40, 10), tuple(downloads))
    archive_file = Download(f"{address}/cifar-10-python.tar.gz", md5, unpack=True)
    table["cifar10"] = Dataset("cifar10", "CIFAR-10", ("cifar-10-batches-py",), ("test_batch",), (100, 20), (archive_file,))
    monkeypatch.setattr(sources, "DATASETS", table)
    assert len(sources.load("mnist").train[1]) == 40, "fetched by itself when no folder is named"
    assert len(sources.load("cifar10").train[1]) == 100
    assert sorted(path.name for path in (tmp_path / "cache" / "downloads").iterdir()) == [
        ".lock",
        "MNIST",
        "cifar-10-batches-py",
    ]
    (web / "cifar-10-python.tar.gz").write_bytes(b"something else")
    with pytest.raises(DataError, match="is not the file that was published"):
        sources.fetch("cifar10", tmp_path / "elsewhere")
    (web / "cifar-10-python.tar.gz").unlink()
    with pytest.raises(DataError, match=r"cannot be downloaded: .*404.*md5"):
        sources.fetch("cifar10", tmp_path / "elsewhere")


def test_a_fetch_that_was_killed_leaves_nothing_that_looks_like_data(tmp_path, server, monkeypatch):
    web, address = server
    write_pictures(tmp_path / "made" / "notMNIST_small", "ABCDEFGHIJ", 3)
    with tarfile.open(web / "notMNIST_small.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "made" / "notMNIST_small", "notMNIST_small")
    md5 = hashlib.md5((web / "notMNIST_small.tar.gz").read_bytes()).hexdigest()
    known = sources.DATASETS["notmnist"]
    part = Download(f"{address}/notMNIST_small.tar.gz", md5, unpack=True)
    monkeypatch.setitem(sources.DATASETS, "notmnist", Dataset("notmnist", "n", known.folders, known.files, (27, 3), (part,)))
    into, usual = tmp_path / "d", tarfile.TarFile.extract

    def killed(self, *_, **__):
        for member in list(self)[:20]:
            usual(self, member, into / ".fetching-notmnist", filter="data")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", killed)
        with pytest.raises(KeyboardInterrupt):
            sources.fetch("notmnist", into)
    assert sources.DATASETS["notmnist"].find([into]) is None
    sources.fetch("notmnist", into)
    assert len(sources.load("notmnist", into).train[1]) == 27
    (into / "notMNIST_small" / "A" / "0.png").write_bytes(b"ruined")
    assert sources.check("notmnist", into).state == "damaged"
    sources.fetch("notmnist", into)
    assert sources.check("notmnist", into).state == "other"


def test_archives_that_would_write_elsewhere_are_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("../outside")
        archive.addfile(member)
    for name in ("../outside", "/outside", "a/../../outside", "C:\\outside", "..\\outside"):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr(name, "text")
        for file in ("x.tar.gz", "x.zip"):
            with pytest.raises(DataError, match="would write outside of its folder"):
                sources._unpack(tmp_path / file, tmp_path / "target")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "target").exists()


def test_archives_that_unpack_to_more_than_was_ever_published_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LARGEST_ARCHIVE", 1 << 20)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}", bytes(1 << 19))
    (tmp_path / "zeros").write_bytes(bytes(3 << 19))
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "zeros", "zeros")
    (tmp_path / "y.zip").write_bytes(b"PK")
    for name, problem in (
        ("x.zip", "has more than 1,048,576 bytes"),
        ("x.tar.gz", "has more than"),
        ("y.zip", "cannot be unp"),
    ):
        with pytest.raises(DataError, match=problem):
            sources._unpack(tmp_path / name, tmp_path / "target")
    assert not (tmp_path / "target").exists()


ODD_FACTS = ({"classes": ["0"]}, {"spread": [[1.0], [float("nan")]]}, {"note": 3}, {"files": []})


@pytest.mark.parametrize("damage", [*FORGED_ARRAYS, "about", "pipe", "sparse"])
@pytest.mark.parametrize("file", ["train-pixels.npy", "train-labels.npy"])
def test_a_forged_entry_of_the_cache_is_made_anew(tmp_path, damage, file):
    images = write_idx(tmp_path / "MNIST")
    sources.load("mnist", tmp_path)
    entry = next(path for path in (tmp_path / "cache" / "decoded").iterdir() if path.is_dir())
    if damage in FORGED_ARRAYS:
        data = FORGED_ARRAYS[damage]((entry / file).read_bytes())
        (entry / file).write_bytes(data)
        if damage != "flipped":  # a forger can count, too
            forge_file(entry / file, data)
    elif damage != "about":
        put_odd_file(entry / file, damage)
    for odd in ODD_FACTS if damage == "about" else ({},):
        if odd:
            forge_about(entry / "about.json", odd)
        with little_memory():
            found = sources.load("mnist", tmp_path)
        assert np.array_equal(found.train[0][:, 0], images)
        assert found.train[1].tolist()[:4] == [0, 1, 2, 3]
        assert found.spread[1][0] > 50
        assert len(found.classes) == 10


def test_facts_of_a_cached_entry_that_have_changed_are_not_believed(tmp_path):
    """Another mean would change what is learned, and nobody would see it."""
    write_idx(tmp_path / "MNIST")
    expected = sources.load("mnist", tmp_path).spread
    entry = next(path for path in (tmp_path / "cache" / "decoded").iterdir() if path.is_dir())
    document = json.loads((entry / "about.json").read_text())
    document["about"]["spread"][0][0] += 1.0
    (entry / "about.json").write_text(json.dumps(document))
    assert sources.load("mnist", tmp_path).spread == expected


@pytest.mark.parametrize("damage", ["cut", "empty", "about", "gone"])
def test_a_damaged_entry_of_the_cache_is_made_anew(tmp_path, damage):
    images = write_idx(tmp_path / "MNIST")
    sources.load("mnist", tmp_path)
    entry = next(path for path in (tmp_path / "cache" / "decoded").iterdir() if path.is_dir())
    file = entry / "train-pixels.npy"
    if damage in ("cut", "empty"):
        file.write_bytes(file.read_bytes()[:-100] if damage == "cut" else b"")
    elif damage == "about":
        (entry / "about.json").write_text("")
    else:
        (entry / "about.json").unlink()
    assert np.array_equal(sources.load("mnist", tmp_path).train[0][:, 0], images)


def test_zip_archives_are_unpacked_where_they_belong(tmp_path, server, monkeypatch):
    web, address = server
    with zipfile.ZipFile(web / "GT.zip", "w") as archive:
        archive.writestr("GT-final_test.csv", "Filename;ClassId\n")
    md5 = hashlib.md5((web / "GT.zip").read_bytes()).hexdigest()
    part = Download(f"{address}/GT.zip", md5, "GTSRB", unpack=True)
    monkeypatch.setitem(sources.DATASETS, "gtsrb", Dataset("gtsrb", "GTSRB", ("GTSRB",), (), (1, 1), (part,)))
    sources.fetch("gtsrb", tmp_path / "d", progress=True)
    assert (tmp_path / "d" / "GTSRB" / "GT-final_test.csv").is_file()


def test_check_tells_missing_whole_other_and_damaged_data_apart(tmp_path):
    assert sources.check("mnist", tmp_path).state == "missing"
    write_idx(tmp_path / "MNIST")
    found = sources.check("mnist", tmp_path)
    assert found.state == "other"
    assert "40 + 10 images, 10 classes; 60,000 + 10,000 were published" in found.told
    assert "not the published bytes: train-images-idx3-ubyte" in found.told
    file = tmp_path / "MNIST" / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(idx_bytes(np.full(10, 77, np.uint8))))
    assert sources.check("mnist", tmp_path).state == "damaged"
    file.write_bytes(b"")
    assert sources.check("mnist", tmp_path).state == "damaged"


def spacecl(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "spacecl", "data", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **environment},
        timeout=120,
    )


def test_the_data_command_lists_checks_and_has_exit_codes(tmp_path):
    write_idx(tmp_path / "MNIST")
    environment = {"SPACECL_DATA": str(tmp_path)}
    listed = spacecl("list", **environment)
    assert listed.returncode == 0
    assert "there" in next(line for line in listed.stdout.splitlines() if " mnist " in line)
    missing = next(line for line in listed.stdout.splitlines() if " cifar10 " in line)
    assert "missing" in missing
    assert "spacecl data fetch cifar10" in missing
    assert spacecl("check", "p-mnist", **environment).returncode == 0
    assert spacecl("check", "split-cifar10", **environment).returncode == 1
    (tmp_path / "MNIST" / "train-labels-idx1-ubyte.gz").write_bytes(b"x")
    broken = spacecl("check", **environment)
    assert broken.returncode == 1
    assert "damaged" in broken.stdout
    wrong = spacecl("list", "mnits", **environment)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "No such dataset: mnits" in wrong.stderr
    assert spacecl("list", "permuted-digits", **environment).stdout.count("missing") == 0, "it needs no data"
    hand = spacecl("fetch", "facescrub", **environment)
    assert hand.returncode == 1
    assert "put either" in hand.stderr


# -- the real ones -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(sources.DATASETS))
def test_the_real_dataset_is_read_whole(name, monkeypatch):
    monkeypatch.setattr(sources, "SYSTEM", (Path("/usr/share/datasets"),))
    if sources.DATASETS[name].find(sources.search_folders(REAL)) is None:
        pytest.skip(f"no {name}: set SPACECL_DATA to a folder that holds it")
    found = sources.check(name, REAL)
    assert found.state in ("whole", "other"), found.told
    loaded = sources.load(name, REAL)
    assert loaded.train[0].dtype == np.uint8
    assert set(np.unique(loaded.train[1])) == set(range(len(loaded.classes)))
    assert set(np.unique(loaded.test[1])) == set(range(len(loaded.classes)))


def test_pillow_and_pooch_are_asked_for_by_the_name_of_their_extra(tmp_path, monkeypatch):
    write_pictures(tmp_path, "ABCDEFGHIJ", 1)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match=r"pip install \"spacecl\[data\]\""):
        formats.read_notmnist(tmp_path)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ConfigError, match=r"pip install \"spacecl\[data\]\""):
        sources.fetch("mnist", tmp_path)
