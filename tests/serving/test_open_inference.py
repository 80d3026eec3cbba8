"""The details of the Open Inference Protocol: what is read, what is refused and why, and what is sent."""

import gzip
import json
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest

from spacecl.serving import open_inference as protocol
from spacecl.serving.open_inference import RequestError


def parse(document, tail=b"", length=None, dtype="<f4", max_rows=10):
    body = json.dumps(document).encode()
    header = str(len(body)) if tail and length is None else length
    return protocol.parse_request(body + tail, header, {"input": np.zeros((1, 2), dtype)}, ["logits", "label"], max_rows)


def make_document(**changes):
    return {"inputs": [{"name": "input", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4], **changes}]}


def test_rows_are_read_flat_or_nested_and_in_other_precisions():
    assert parse(make_document()).rows["input"].tolist() == [[1, 2], [3, 4]]
    assert parse(make_document(data=[[1, 2], [3, 4.5]])).rows["input"].tolist() == [[1, 2], [3, 4.5]]
    tail = np.array([[1, 2], [3, 4]], "<f8").tobytes()
    request = parse(make_document(datatype="FP64", data=None, parameters={"binary_data_size": 32}), tail)
    assert (request.rows["input"].dtype, request.rows["input"].tolist()) == (np.float32, [[1, 2], [3, 4]])
    integers = {"inputs": [{"name": "input", "datatype": "INT32", "shape": [1, 2], "data": [5, 6]}]}
    assert parse(integers, dtype="<i8").rows["input"].dtype == np.int64


@pytest.mark.parametrize("length", ["0" * 5000 + "5", "1" * 5000, "-1", "1_0", "\u0664"])
def test_a_header_that_is_not_a_length_is_refused(length):
    with pytest.raises(RequestError, match=r"Inference-Header-Content-Length is .*, but the body has"):
        parse(make_document(), length=length)


def test_integers_out_of_the_models_range_are_refused():
    head = {"inputs": [{"name": "input", "datatype": "INT64", "shape": [1, 2], "parameters": {"binary_data_size": 16}}]}
    assert parse(head, np.array([1, -1], "<i8").tobytes(), dtype="<i4").rows["input"].tolist() == [[1, -1]]
    with pytest.raises(RequestError, match="out of the range of INT32"):
        parse(head, np.array([1, 2**32 + 1], "<i8").tobytes(), dtype="<i4")


def test_binary_values_beyond_the_models_precision_become_infinite_without_a_warning():
    head = {"inputs": [{"name": "input", "datatype": "FP64", "shape": [1, 2], "parameters": {"binary_data_size": 16}}]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse(head, np.array([1, 1e300], "<f8").tobytes()).rows["input"].tolist() == [[1, np.inf]]


def test_data_after_the_end_of_a_compressed_body_is_refused():
    with pytest.raises(RequestError, match="21 bytes follow the compressed body"):
        protocol.decompress(gzip.compress(b"{}") + gzip.compress(b" "), "gzip", 1000)


def test_binary_data_that_no_input_declares_is_refused():
    with pytest.raises(RequestError, match='An input needs "data", or'):
        parse(make_document(), tail=b"1234")


def test_the_default_form_applies_to_outputs_without_one_and_none_is_sent_twice():
    outputs = [{"name": "label"}, {"name": "label"}]
    request = parse({**make_document(), "parameters": {"binary_data_output": True}, "outputs": outputs})
    assert request.binary == {"label"}
    assert request.outputs == ("label",)


def test_decompression_never_uses_much_more_memory_than_the_limit():
    body = zlib.compress(bytes(20 * 2**20))
    tracemalloc.start()
    with pytest.raises(RequestError, match="when decompressed"):
        protocol.decompress(body, "deflate", 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_outputs_are_all_or_the_requested_ones_as_json_or_binary():
    assert parse(make_document()).outputs == ("logits", "label")
    assert parse({**make_document(), "parameters": {"binary_data_output": True}}).binary == {"logits", "label"}
    outputs = [{"name": "label", "parameters": {"binary_data": True}}]
    request = parse({**make_document(), "outputs": outputs})
    assert (request.outputs, request.binary) == (("label",), {"label"})
    body, headers = protocol.build_response("m", request, {"label": np.array([7, 8])})
    end = int(headers[protocol.HEADER])
    assert json.loads(body[:end])["outputs"][0] == {
        "name": "label",
        "datatype": "INT64",
        "shape": [2],
        "parameters": {"binary_data_size": 16},
    }
    assert np.frombuffer(body[end:], "<i8").tolist() == [7, 8]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (make_document(data=[1, 2, 3]), "must have 4 numbers"),
        (make_document(data=[1, 2, 3, True]), "must have 4 numbers"),
        (make_document(data=[[1, 2], [3]]), "must have 4 numbers"),
        (make_document(data="1234"), "must have 4 numbers"),
        (make_document(shape=[2.0, 2]), "this model reads"),
        (make_document(shape=[11, 2]), "11 rows are too many"),
        (make_document(datatype="INT64"), "reads FP16, FP32, FP64"),
        (make_document(parameters={"binary_data_size": 16}), "0 follow the JSON"),
        (make_document(parameters=[]) | {"parameters": [1]}, '"parameters" must be an object; got'),
        (make_document(parameters=[1]), '"parameters" must be an object; got'),
        (make_document(shape=[10**400, 2]), "rows are too many"),
        ({**make_document(), "outputs": [{"name": "scores"}]}, "The outputs are: logits, label"),
    ],
)
def test_requests_that_do_not_fit_are_refused_with_what_would(document, reason):
    with pytest.raises(RequestError, match=reason):
        parse(document)


def parse_two(*entries, tail=b""):
    body = json.dumps({"inputs": entries}).encode()
    expected = {"ids": np.zeros((1, 3), "<i8"), "mask": np.zeros((1, 3), "?")}
    return protocol.parse_request(body + tail, str(len(body)) if tail else None, expected, ["logits"], 10).rows


def test_several_inputs_are_read_by_name_in_any_order_and_with_binary_data_one_after_another():
    ids = {"name": "ids", "datatype": "INT32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
    mask = {"name": "mask", "datatype": "BOOL", "shape": [2, 3], "data": [True, False, True] * 2}
    expected = {"ids": [[1, 2, 3], [4, 5, 6]], "mask": [[True, False, True]] * 2}
    assert {name: rows.tolist() for name, rows in parse_two(mask, ids).items()} == expected
    arrays = np.array(expected["mask"]), np.array(expected["ids"], "<i4")
    binary = [
        {**{key: entry[key] for key in ("name", "datatype", "shape")}, "parameters": {"binary_data_size": array.nbytes}}
        for entry, array in zip((mask, ids), arrays)
    ]
    rows = parse_two(*binary, tail=b"".join(array.tobytes() for array in arrays))
    assert {name: values.tolist() for name, values in rows.items()} == expected
    rows = parse_two(ids, binary[0], tail=arrays[0].tobytes())
    assert {name: values.tolist() for name, values in rows.items()} == expected
    for entries, tail, message in (
        ([ids], b"", "must be a list with 2 entries, named 'ids', 'mask'"),
        ([ids, ids], b"", "the inputs are ids, mask, each once"),
        ([ids, {**mask, "shape": [1, 3], "data": [True] * 3}], b"", "different numbers of rows"),
        ([ids, {**mask, "data": [1] * 6}], b"", '"data" must have 6 numbers'),
        (binary, arrays[0].tobytes(), "bytes"),
        (binary, b"".join(array.tobytes() for array in arrays) + b"x", "and 25 follow the JSON"),
    ):
        with pytest.raises(RequestError, match=message):
            parse_two(*entries, tail=tail)
