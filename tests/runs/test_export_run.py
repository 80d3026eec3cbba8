"""The networks of a run as files, and the index that lists them."""

import hashlib

import pytest

from spacecl.documents import read_document
from spacecl.errors import StoreError, TaskError
from spacecl.runs.export_run import ExportIndex, export_run
from spacecl.runs.open_run import open_run


def test_the_index_has_an_entry_of_the_documented_type_for_every_task(digits_run, tmp_path):
    lines = []
    entries = export_run(open_run(digits_run), None, tmp_path, format="safetensors", print_line=lines.append)
    index = read_document(tmp_path / "index.json", ExportIndex)
    assert index["tasks"] == entries
    assert [entry["task"] for entry in entries] == ["digits-1", "digits-2"]
    for entry in entries:
        data = (tmp_path / entry["file"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])
    assert lines[-1] == f"{tmp_path / 'index.json'} lists them."
    (tmp_path / "index.json").write_text('{"tasks": [{"task": "digits-1"}]}')
    with pytest.raises(StoreError, match=r"tasks\.0\.digest is missing"):
        read_document(tmp_path / "index.json", ExportIndex)


def test_an_unknown_task_is_an_error_before_anything_is_written(digits_run, tmp_path):
    with pytest.raises(TaskError, match="digits-3"):
        export_run(open_run(digits_run), ["digits-1", "digits-3"], tmp_path / "out", format="safetensors")
    assert not (tmp_path / "out").exists()
