"""One file for several tasks: every output is that of its task, and shared weights are there once."""

import json

import onnx
import pytest
import torch
from helpers import teach, teach_random
from models import FAMILIES, IMAGE, ConvNet

from spacecl import ConfigError, PackNet, TaskError
from spacecl.cli.main import main
from spacecl.export import together
from spacecl.export.export import open_session
from spacecl.runs.open_run import open_run

COMMON = ("chain", "mobilenet", "text")


@pytest.fixture(scope="module")
def wide():
    """Three tasks of a network whose weights are most of a file."""
    return teach_random(ConvNet(width=48), IMAGE, count=3)


def draw_rows(example, count):
    shape = (count, *example.shape[1:])
    return torch.randn(shape) if example.is_floating_point() else torch.randint(0, 20, shape)


@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f in COMMON else pytest.mark.slow) for f in FAMILIES])
def test_every_output_is_what_its_task_computes_for_any_number_of_rows(family, tmp_path):
    make, example, shared = FAMILIES[family]
    torch.manual_seed(0)
    learner = teach_random(make(), example, shared)
    info = learner.export_together(tmp_path / "all.onnx")
    assert info["bytes"] == (tmp_path / "all.onnx").stat().st_size
    for task in learner.tasks:
        session = open_session(tmp_path / "all.onnx", output=f"{task}/logits")
        for rows in (1, 7):
            x = draw_rows(example, rows)
            expected = learner.logits(x, task)
            assert (session(x) - expected).abs().max() <= 1e-4 * max(1.0, float(expected.abs().max()))


def test_shared_weights_are_in_the_file_once(wide, tmp_path):
    info = wide.export_together(tmp_path / "all.onnx")
    core, total = wide.core, 0
    union = core.committed_units
    for name, tensor in core.channels.gather(core.shared, union).items():
        total += tensor.nbytes
        part = tensor.contiguous().numpy().tobytes()
        assert (tmp_path / "all.onnx").read_bytes().count(part) == 1, name
    assert info["shared_bytes"] == total
    single = [wide.export(task, tmp_path / "one.onnx", fold=False)["bytes"] for task in wide.tasks]
    assert info["bytes"] < sum(single)
    same = teach_random(ConvNet(width=48), IMAGE, count=3, share=1.0)  # whose tasks have all weights in common
    single = [same.export(task, tmp_path / "one.onnx", fold=False)["bytes"] for task in same.tasks]
    assert same.export_together(tmp_path / "same.onnx")["bytes"] < 0.5 * sum(single)


def test_a_task_can_be_extracted_and_some_tasks_can_be_chosen(wide, tmp_path):
    names = wide.tasks[1:]
    info = wide.export_together(tmp_path / "two.onnx", names)
    assert [task["task"] for task in info["tasks"]] == list(names)
    assert [task["output"]["name"] for task in info["tasks"]] == [f"{name}/logits" for name in names]
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "two.onnx").metadata_props}
    assert [task["digest"] for task in json.loads(metadata["tasks"])] == [wide.records[name].digest for name in names]
    onnx.utils.extract_model(tmp_path / "two.onnx", tmp_path / "one.onnx", ["input"], [f"{names[0]}/logits"])
    x = torch.randn(3, *IMAGE.shape[1:])
    assert (open_session(tmp_path / "one.onnx")(x) - wide.logits(x, names[0])).abs().max() < 1e-4


@pytest.mark.filterwarnings("ignore:.*too few samples.*")
def test_weights_that_tasks_own_one_by_one_are_stored_for_each(tmp_path):
    learner = teach(method=PackNet())
    learner.export_together(tmp_path / "all.onnx")
    for task in learner.tasks:
        x = torch.randn(5, 6)
        session = open_session(tmp_path / "all.onnx", output=f"{task}/logits")
        assert (session(x) - learner.logits(x, task)).abs().max() < 1e-4


def test_a_file_with_a_wrong_output_is_not_written(wide, tmp_path, monkeypatch):
    search = torch.searchsorted
    monkeypatch.setattr(together.torch, "searchsorted", lambda *arguments: search(*arguments).flip(0))
    with pytest.raises(Exception, match="does not compute what PyTorch does: onnxruntime, for task 'task 0'"):
        wide.export_together(tmp_path / "all.onnx")
    assert not (tmp_path / "all.onnx").exists()


def test_what_cannot_be_written_together_is_refused(wide, tmp_path):
    with pytest.raises(ConfigError, match="not a name for an ONNX file"):
        wide.export_together(tmp_path / "all.pt2")
    with pytest.raises(TaskError, match="cats"):
        wide.export_together(tmp_path / "all.onnx", ["cats"])
    with pytest.raises(ConfigError, match="no task"):
        wide.export_together(tmp_path / "all.onnx", [])


def test_the_command_writes_one_file_for_a_run(digits_run, tmp_path, capsys):
    assert main(["export", str(digits_run), "--all", "--together", "--out", str(tmp_path)]) == 0
    assert "2 tasks" in capsys.readouterr().out
    x, learner = torch.randn(4, 64), open_run(digits_run).learner()
    session = open_session(tmp_path / "tasks.onnx", output="digits-2/logits")
    assert (session(x) - learner.logits(x, "digits-2")).abs().max() < 1e-4
    assert main(["export", str(digits_run), "--all", "--together", "--tune"]) == 1
    assert "leave out" in capsys.readouterr().err
