"""Pickles: every protocol is read, and nothing in them is executed."""

import os
import pickle

import numpy as np
import pytest

from spacecl import DataError
from spacecl.data import pickles


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_arrays_of_every_pickle_protocol_are_read(tmp_path, protocol):
    file = tmp_path / "p"
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    file.write_bytes(pickle.dumps({"data": array, "fine_labels": [np.int64(1), 2, 3]}, protocol=protocol))
    values = pickles.read_pickle(file)
    assert np.array_equal(values["data"], array)
    assert list(values["fine_labels"]) == [1, 2, 3]


class Malicious:
    """Pickled as a call of a function."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_calls_a_function_is_refused_and_the_function_is_not_called(tmp_path, protocol):
    mark, file = tmp_path / "owned", tmp_path / "data_batch_1"
    for call, *arguments in ((os.system, f"touch {mark}"), (eval, f"open({str(mark)!r}, 'w')"), (getattr, "text", "upper")):
        file.write_bytes(pickle.dumps({b"data": Malicious(call, *arguments)}, protocol=protocol))
        with pytest.raises(DataError, match="is not allowed in a file of images"):
            pickles.read_pickle(file)
    assert not mark.exists()


def test_a_pickle_cannot_forge_a_type_with_pointers_in_it_nor_change_a_function(tmp_path):
    """NumPy's own unpickling trusts the fields of a type in a pickle, and would use bytes as addresses."""
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
        with pytest.raises(DataError, match=f"numpy.{name} is not allowed"):
            pickles.read_pickle(file)


def test_arrays_keep_their_byte_order_and_layout(tmp_path):
    file = tmp_path / "p"
    arrays = [np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))]
    for protocol in (2, 5):
        file.write_bytes(pickle.dumps({"data": arrays}, protocol=protocol))
        assert all(np.array_equal(a, b) for a, b in zip(pickles.read_pickle(file)["data"], arrays))
