"""MATLAB files: read as SciPy reads them, and refused if their sizes are false."""

import struct
import zlib

import numpy as np
import pytest
from data_helpers import REAL, limited_memory
from faults.data_files import matlab_files
from faults.datasets import write_svhn

from spacecl import DataError
from spacecl.data import matlab, readers, sources


def read_as_scipy_does(file):
    """Read the arrays X and y, and compare them with SciPy's."""
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
        "y": generator.integers(0, 10, (3, 1)).astype(kind),  # at one byte each, it is stored in its tag
    }
    savemat(tmp_path / "m.mat", values, do_compression=compressed)
    arrays = read_as_scipy_does(tmp_path / "m.mat")
    assert np.array_equal(arrays["X"], values["X"])
    assert np.array_equal(arrays["y"], values["y"])


def test_matlab_files_with_big_endian_numbers_are_read(tmp_path):
    def element(kind, data):
        return struct.pack(">II", kind, len(data)) + data + bytes(-len(data) % 8)

    def matrix(name, array):
        data = array.astype(array.dtype.newbyteorder(">")).tobytes("F")
        parts = element(6, struct.pack(">II", 9, 0)) + element(5, struct.pack(f">{array.ndim}i", *array.shape))
        return element(14, parts + element(1, name.encode()) + element({1: 2, 2: 4}[array.itemsize], data))

    x, y = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2), np.arange(300, 303, dtype=np.uint16).reshape(3, 1)
    for compressed in (False, True):
        parts = [matrix("X", x), matrix("y", y)]
        if compressed:
            parts = [struct.pack(">II", 15, len(data)) + data for data in map(zlib.compress, parts)]
        (tmp_path / "m.mat").write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\1\0MI" + b"".join(parts))
        arrays = read_as_scipy_does(tmp_path / "m.mat")
        assert np.array_equal(arrays["X"], x)
        assert np.array_equal(arrays["y"], y)


def test_the_real_svhn_is_read_as_scipy_reads_it():
    folder = sources.DATASETS["svhn"].find(sources.search_folders(REAL))
    if folder is None:
        pytest.skip("no svhn: set SPACECL_DATA to a folder that holds it")
    for part in ("train", "test"):
        read_as_scipy_does(folder / f"{part}_32x32.mat")


def test_a_matlab_file_with_false_sizes_uses_no_memory(tmp_path):
    write_svhn(tmp_path)
    file = tmp_path / "train_32x32.mat"
    for data in matlab_files(file.read_bytes()[:128]):
        file.write_bytes(data)
        with limited_memory(), pytest.raises(DataError, match=r"train_32x32\.mat cannot be read"):
            readers.read_dataset("svhn", tmp_path)
