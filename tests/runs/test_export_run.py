"""The networks of a run as files, and the index that lists them."""

import hashlib
import json

import pytest

from spacecl.errors import TaskError
from spacecl.runs.export_run import export_run
from spacecl.runs.open_run import open_run


def test_the_index_has_an_entry_for_every_task(digits_run, tmp_path):
    lines = []
    entries = export_run(open_run(digits_run), None, tmp_path, format="safetensors", print_line=lines.append)
    assert json.loads((tmp_path / "index.json").read_text()) == {"tasks": entries}
    assert [entry["task"] for entry in entries] == ["digits-1", "digits-2"]
    for entry in entries:
        data = (tmp_path / entry["file"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])
    assert lines[-1] == f"{tmp_path / 'index.json'} lists them."


def test_an_unknown_task_is_an_error_before_anything_is_written(digits_run, tmp_path):
    with pytest.raises(TaskError, match="digits-3"):
        export_run(open_run(digits_run), ["digits-1", "digits-3"], tmp_path / "out", format="safetensors")
    assert not (tmp_path / "out").exists()
