"""A run of tasks that predict classes, labels and values: every file, table and command names the right metric."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT
from run_helpers import quiet

from spacecl import ConfigError
from spacecl.cli.main import main
from spacecl.runs.open_run import open_run
from spacecl.runs.resolve import resolve
from spacecl.runs.result import read_result
from spacecl.runs.run import run

EXAMPLE = ROOT / "examples" / "other_targets.py"
METRICS = {"digit": "accuracy", "properties": "mean average precision", "center": "R²"}
OPEN = ("--model", f"{EXAMPLE}:network")


@pytest.fixture(scope="module")
def mixed_run(tmp_path_factory):
    """The folder of a finished run of the example."""
    folder = tmp_path_factory.mktemp("mixed") / "run"
    arguments = ["run", str(EXAMPLE), *OPEN, "--epochs", "8", "--retrain-epochs", "4", "--out", str(folder)]
    assert main([*arguments, "--quiet", "--no-measure", "--device", "cpu"]) == 0
    return folder


def test_the_result_names_every_metric(mixed_run):
    result = read_result(mixed_run / "result.json")
    assert {task["name"]: task["metric"] for task in result["tasks"]} == METRICS
    assert [task["target_kind"] for task in result["tasks"]] == ["classes", "labels", "values"]
    assert [task["accuracy"] is None for task in result["tasks"]] == [False, True, True]
    assert all(task["score"] > 0.75 for task in result["tasks"]), "real data, learned"
    assert (result["metric"], result["average_accuracy"], result["accuracy_matrix"]) == ("score", None, None)
    assert result["average_score"] == pytest.approx(sum(task["score"] for task in result["tasks"]) / 3)
    assert result["forgetting"] == 0
    rates = [task["inferred"]["row"] for task in result["tasks"]]
    assert [rate["accuracy"] is None for rate in rates] == [False, True, True]
    assert result["inferred"]["row"]["accuracy"] == rates[0]["accuracy"]
    rows = [json.loads(line) for line in (mixed_run / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "test"][-1]
    assert (last["metric"], list(last["accuracy"])) == (METRICS, ["digit"])
    assert last["score"] == {task["name"]: task["score"] for task in result["tasks"]}


def test_commands_show_the_right_metric(mixed_run, capsys, tmp_path):
    assert main(["inspect", str(mixed_run), *OPEN]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("10 classes", "4 labels", "2 values", "R² 0.", "mean average precision 9"))
    assert main(["verify", str(mixed_run), *OPEN, "--accuracy", "--trust-code", "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["tasks"]
    assert {check["task"]: check["metric"] for check in checks} == METRICS
    assert all(check["score"] == pytest.approx(check["recorded"], abs=1e-6) for check in checks)
    assert main(["verify", str(mixed_run), *OPEN, "--accuracy", "--trust-code"]) == 0
    assert "score" in capsys.readouterr().out
    folder = tmp_path / "copy"
    shutil.copytree(mixed_run, folder)
    result = json.loads((folder / "result.json").read_text())
    result["tasks"][2]["score"] -= 0.1  # recorded too low
    (folder / "result.json").write_text(json.dumps(result))
    assert main(["verify", str(folder), *OPEN, "--accuracy", "--trust-code"]) == 1
    assert "center: its R² is 0." in capsys.readouterr().err


def test_the_report_names_the_metrics(mixed_run, capsys):
    pytest.importorskip("matplotlib")
    assert main(["report", str(mixed_run)]) == 0
    printed = capsys.readouterr().out
    assert "a mean over tasks with accuracy, mean average precision, R²" in printed
    page = (mixed_run / "report.html").read_text()
    assert "Score as tasks are learned" in page
    assert "center: R²" in page
    assert "Accuracy of the first task" in page
    files = {file.name for file in (mixed_run / "report").iterdir()}
    assert {"scores.csv", "mean-score.csv"} <= files
    assert "accuracy.csv" not in files, "means of several metrics are no accuracy"


def test_networks_of_every_kind_are_exported_and_tested(mixed_run, tmp_path, capsys):
    runtime = pytest.importorskip("onnxruntime")
    arguments = ["export", str(mixed_run), "--all", *OPEN, "--trust-code", "--out", str(tmp_path)]
    assert main([*arguments, "--int8", "--calibrate", "train"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{task}: {metric} " in printed for task, metric in METRICS.items())
    entries = json.loads((tmp_path / "index.json").read_text())["tasks"]
    assert [entry["output"]["name"] for entry in entries] == ["logits", "logits", "values"]
    assert entries[2]["score"]["after"] == pytest.approx(entries[2]["score"]["before"], abs=0.05)
    assert [entry["accuracy"] is None for entry in entries] == [False, True, True]
    assert main([*arguments[:2], "--task", "center", *OPEN, "--trust-code", "--out", str(tmp_path / "plain.onnx")]) == 0
    session = runtime.InferenceSession(str(tmp_path / "plain.onnx"))
    learner = open_run(mixed_run, OPEN[1]).learner()
    x = torch.rand(5, 64)
    values = session.run(["values"], {"input": x.numpy()})[0]
    assert np.allclose(values, learner.predict(x, "center").numpy(), atol=1e-5), "in the unit of the data"


def test_the_server_answers_for_every_kind(mixed_run):
    pytest.importorskip("starlette")
    from spacecl.serving.batcher import Batcher
    from spacecl.serving.service import Limits, Service

    learner = open_run(mixed_run, OPEN[1]).learner()
    service = Service(Batcher(learner), Limits())
    x = torch.rand(3, 64)
    try:
        outputs = {task: service.batcher.submit(task, x).result(30) for task in learner.tasks}
        declared = {task: {entry["name"]: entry["shape"] for entry in service.list_outputs(task)} for task in learner.tasks}
    finally:
        service.close()
    assert {task: set(values) for task, values in outputs.items()} == {task: set(names) for task, names in declared.items()}
    assert declared["properties"] == {"logits": [-1, 4], "probability": [-1, 4], "label": [-1, 4]}
    assert declared["center"] == {"values": [-1, 2]}
    assert torch.equal(outputs["properties"]["label"], (outputs["properties"]["probability"] > 0.5).long())
    assert torch.equal(outputs["center"]["values"], learner.predict(x, "center"))


OWN = """
import torch, spacecl
x = torch.randn(80, 6, generator=torch.Generator().manual_seed(0))
def closeness(outputs, y):
    return -float((outputs - y).abs().mean())
def tasks():
    y = 20 + 5 * x[:, 0]
    return [spacecl.Task("y", (x[:60], y[:60]), test=(x[60:], y[60:]), metric=closeness)]
"""
SETTINGS = {"method": "finetune", "model": "mlp-small", "train": {"epochs": 2}, "device": "cpu"}


def write_tasks(tmp_path, text=OWN):
    file = tmp_path / "own.py"
    file.write_text(text)
    return file


def test_a_run_resumes_verifies_and_tunes_by_a_metric_of_one_s_own(tmp_path, capsys):
    file = write_tasks(tmp_path)
    result = run(resolve({"benchmark": str(file), **SETTINGS}), tmp_path / "run", print_line=quiet)
    assert (result["metric"], result["tasks"][0]["metric"]) == ("closeness", "closeness")
    assert result["average_score"] < 0
    assert main(["verify", str(tmp_path / "run"), "--accuracy", "--trust-code"]) == 0
    assert main(["inspect", str(tmp_path / "run")]) == 0
    assert "closeness -" in capsys.readouterr().out
    arguments = ["tune", str(file), "--method", "finetune", "--model", "mlp-small", "--over", "train.lr=0.0000001,0.05"]
    assert main([*arguments, "--epochs", "20", "--device", "cpu", "--out", str(tmp_path / "tune"), "--quiet"]) == 0
    tuned = json.loads((tmp_path / "tune" / "tune.json").read_text())
    assert tuned["metric"] == "closeness"
    assert tuned["best"] == {"train.lr": 0.05}, "the score closest to zero is the best"


def test_what_does_not_fit_a_later_task_is_said_before_the_first_is_learned(tmp_path):
    second = "    return [spacecl.Task('a', (x, (x[:, 0] > 0).long()), test=(x, (x[:, 0] > 0).long())), *values()]\n"
    text = OWN.replace("def tasks():", "def values():") + "def tasks():\n" + second
    settings = {**SETTINGS, "train": {"epochs": 1, "class_weights": [1.0, 2.0]}}
    config = resolve({"benchmark": str(write_tasks(tmp_path, text)), **settings})
    with pytest.raises(ConfigError, match=r"Task 'y': class_weights=.*values have no weights"):
        run(config, tmp_path / "run", print_line=pytest.fail)


def test_results_of_schema_2_have_scores(digits_run, tmp_path):
    result = json.loads((digits_run / "result.json").read_text())
    new = {"metric", "average_score", "score_matrix"}
    old = {key: value for key, value in result.items() if key not in new} | {"schema": 2}
    added = {"target_kind", "metric", "score", "score_when_learned", "validation_score"}
    old["tasks"] = [{key: value for key, value in task.items() if key not in added} for task in result["tasks"]]
    for task in old["tasks"]:
        for part in ("predicted", "reached"):
            task["target"][part] = {k: v for k, v in task["target"][part].items() if "score" not in k}
    file = Path(tmp_path / "result.json")
    file.write_text(json.dumps(old))
    upgraded, now = read_result(file), read_result(digits_run / "result.json")
    assert upgraded == now


def test_a_learner_and_a_journal_of_earlier_versions_are_read(digits_run, tmp_path):
    """Records and epochs that have accuracy alone."""
    from pydantic import TypeAdapter

    from spacecl.learning.record import TaskRecord
    from spacecl.runs.metrics_log import read_rows

    learner = open_run(digits_run).learner()
    record = learner.records[learner.tasks[0]]
    old = {k: v for k, v in record.to_json().items() if k not in ("score", "metric", "target_kind", "flat")}
    old["history"] = [{k: v for k, v in row.items() if k != "score"} for row in old["history"]]
    for part in ("predicted", "reached"):
        old["target"][part] = {k: v for k, v in old["target"][part].items() if "score" not in k}
    assert TypeAdapter(TaskRecord).validate_json(json.dumps(old), strict=True).to_json() == json.loads(
        json.dumps(record.to_json())
    ) | {"full": record.full, "history": tuple(record.history), "class_names": record.class_names}
    lines = [json.loads(line) for line in (digits_run / "metrics.jsonl").read_text().splitlines()]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({k: v for k, v in row.items() if k not in ("score", "metric")}) + "\n" for row in lines))
    for row, now in zip(read_rows(file)[0], lines):
        assert row["score"] == now["score"] == now["accuracy"]
