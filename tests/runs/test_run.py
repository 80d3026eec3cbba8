"""A run: its folder, its result, and what it refuses."""

import json
import os
import re
import shutil

import filelock
import pytest
import torch
from helpers import ROOT
from run_helpers import OWN, drop_times, make_settings, quiet, read_journal

from spacecl import ConfigError, DataError, Learner, TrainingError
from spacecl.cli.main import main
from spacecl.data.benchmarks.streams import load_stream
from spacecl.runs import run
from spacecl.runs.measure_run import measure_run
from spacecl.runs.resolve import resolve
from spacecl.runs.result import SCHEMA
from spacecl.runs.summary import make_table


@pytest.fixture(scope="module")
def finished(digits_run):
    """The folder of an undisturbed run of two tasks, and its result."""
    return digits_run, json.loads((digits_run / "result.json").read_text())


@pytest.fixture(scope="module")
def measured_result(finished, tmp_path_factory):
    """The same run's result after its networks have been measured."""
    copy = tmp_path_factory.mktemp("measured") / "copy"
    shutil.copytree(finished[0], copy)
    return measure_run(copy)


def test_a_run_leaves_the_documented_files_in_its_folder(finished):
    folder = finished[0]
    assert {path.name for path in folder.iterdir()} - {".lock"} == {
        *("config.json", "environment.json", "metrics.jsonl", "model", "result.json", "tasks.json"),
    }
    assert json.loads((folder / "config.json").read_text()) == make_settings().to_json()
    start = json.loads((folder / "environment.json").read_text())[0]
    assert start["packages"]["torch"] == torch.__version__
    assert start["machine"]["cores"] == os.cpu_count()
    rows = read_journal(folder)
    assert [row["after"] for row in rows if row["kind"] == "test"] == [1, 2]
    assert sum(row["kind"] == "epoch" for row in rows) == 2 * (3 + 2)


def test_the_result_agrees_with_the_learner_in_the_folder(finished):
    folder, result = finished
    chosen = make_settings()
    model = chosen.make_model(torch.zeros(1, 64), 10)
    learner = Learner.load(folder / "model", model)
    tasks = load_stream("permuted-digits", tasks=2)
    for number, (task, entry) in enumerate(zip(tasks, result["tasks"])):
        assert entry["accuracy"] == learner.evaluate(task.test, task.name) == result["accuracy_matrix"][1][number]
        small = learner.subnet(task.name)
        assert entry["parameters"] == sum(parameter.numel() for parameter in small.parameters())
        widths = list(entry["widths"].values())
        assert entry["multiply_adds"] == 64 * widths[0] + widths[0] * widths[1] + widths[1] * 10
        assert entry["digest"] == learner.verify()[task.name]
        assert (entry["train"], entry["valid"], entry["test"]) == (1294, 144, 359)
        assert entry["epochs"] == {"train": 3, "retrain": 2}
        assert set(entry["seconds"]) == {"train", "analyse", "retrain", "test"}
    assert result["accuracy_matrix"][0] == [result["tasks"][0]["accuracy_when_learned"], None]
    assert result["average_accuracy"] == pytest.approx(sum(result["accuracy_matrix"][1]) / 2)
    assert result["backward_transfer"] == 0
    assert result["size"] == learner.size
    assert result["network"] == {
        "widths": {"hidden1": 100, "hidden2": 100},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "multiply_adds": 64 * 100 + 100 * 100 + 100 * 10,
    }
    assert result["tasks"][0]["core_explained"] == {"hidden1": 0.0, "hidden2": 0.0}
    assert all(0 <= value < 1 for value in result["tasks"][1]["core_explained"].values())


def test_costs_can_be_measured_later_from_the_folder_alone_and_change_nothing_else(measured_result, finished):
    assert drop_times(measured_result) == drop_times(finished[1])
    assert all("measured" in cost for task in measured_result["tasks"] for cost in task["costs"].values())
    for task in measured_result["tasks"]:
        assert task["costs"]["network"]["multiply_adds"] == task["multiply_adds"]
        assert task["costs"]["dense"]["multiply_adds"] == measured_result["network"]["multiply_adds"]


def test_the_result_has_the_spectrum_of_the_analysis(finished):
    first, second = (task["spectrum"]["hidden1"] for task in finished[1]["tasks"])
    assert (first["core"], first["core"] + first["new"]) == (0, finished[1]["tasks"][0]["widths"]["hidden1"])
    assert second["reused"] + second["new"] == finished[1]["tasks"][1]["widths"]["hidden1"]
    assert second["core"] + second["new"] == finished[1]["tasks"][1]["used"]["hidden1"]
    assert second["new_without_projection"] >= second["new"]
    assert first["first_core"] == first["kept"] > second["first_core"] > 0
    assert second["explained"][0] == pytest.approx(finished[1]["tasks"][1]["core_explained"]["hidden1"], abs=1e-5)
    for spectrum in (first, second):
        assert spectrum["needed"]["0.5"] <= spectrum["new"] or spectrum["threshold"] < 0.5
        assert spectrum["new"] == spectrum["wanted"]
        assert 0 <= spectrum["cost"] < spectrum["cost_of_none"]
        assert list(spectrum["needed"].values()) == sorted(spectrum["needed"].values())
        assert len(spectrum["filters"]) == len(spectrum["explained"])
        assert spectrum["explained"] == sorted(spectrum["explained"])
        assert spectrum["explained"][-1] == pytest.approx(1, abs=2e-4)


def test_every_key_of_the_result_is_documented(finished, measured_result):
    text = (ROOT / "docs" / "runs.md").read_text()
    assert f"schema {SCHEMA}" in text.lower()
    keys = set(re.findall(r"`([a-z_]+)`", text))
    result = finished[1]
    used = {*result, *result["network"], *(key for task in result["tasks"] for key in task)}
    costs = measured_result["tasks"][0]["costs"]
    used |= {*costs, *costs["dense"], *costs["dense"]["traffic"], *costs["dense"]["measured"]}
    used |= {*costs["dense"]["measured"]["latency"]["1"], *result["tasks"][0]["spectrum"]["hidden1"]}
    used |= {key for row in map(json.loads, (finished[0] / "metrics.jsonl").read_text().splitlines()) for key in row}
    used |= {key for start in json.loads((finished[0] / "environment.json").read_text()) for key in start}
    assert used - keys == set()


def test_the_same_seed_gives_the_same_result_and_another_one_another(finished, tmp_path):
    same = run.run(make_settings(), tmp_path / "same", print_line=quiet)
    assert json.loads((tmp_path / "same" / "result.json").read_text()) == same
    other = run.run(make_settings(seed=1), tmp_path / "other", print_line=quiet)
    assert drop_times(same) == drop_times(finished[1])
    assert read_journal(tmp_path / "same") == read_journal(finished[0])
    assert [task["digest"] for task in other["tasks"]] != [task["digest"] for task in same["tasks"]]


def test_a_method_that_forgets_has_a_matrix_that_shows_it(tmp_path):
    result = run.run(make_settings(method="finetune", train={"epochs": 8}), tmp_path, print_line=quiet)
    then, now = result["accuracy_matrix"][0][0], result["accuracy_matrix"][1][0]
    assert now < then
    assert result["backward_transfer"] == pytest.approx(now - then)
    assert result["size"] == 1


def test_a_finished_run_is_not_repeated(finished):
    printed = []
    before = (finished[0] / "result.json").stat().st_mtime_ns
    assert run.run(make_settings(), finished[0], print_line=printed.append) == finished[1]
    assert "finished already" in printed[0]
    assert (finished[0] / "result.json").stat().st_mtime_ns == before


def test_a_folder_with_another_run_or_other_things_is_refused(finished, tmp_path):
    with pytest.raises(ConfigError, match=r"holds a run with other settings:\n  - train.lr was 0.002 and is 0.1"):
        run.run(make_settings(train={"lr": 0.1}), finished[0], print_line=quiet)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty and does not hold a run \(thesis\.tex\)"):
        run.run(make_settings(), tmp_path, print_line=quiet)


def test_a_run_that_could_not_start_does_not_block_the_next(tmp_path):
    for wrong, message in (
        ({"options": {"task_variance": {"digits-9": 0.5}}}, "names digits-9, but the tasks are digits-1, digits-2"),
        ({"model": "cnn"}, "needs images of at least 12 x 12"),
        ({"model": "cnn-valid"}, "needs images of at least 24 x 24"),
        ({"shared": ["nothing"]}, "match no layer"),
        ({"train": {"optimizer": "sgd", "lr": 1e9}}, "diverged"),
    ):
        with pytest.raises((ConfigError, TrainingError), match=message):
            run.run(make_settings(**wrong), tmp_path, print_line=quiet)
    assert run.run(make_settings(), tmp_path, print_line=quiet)["average_accuracy"] > 0.5
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        run.run(make_settings(), tmp_path / "file", print_line=quiet)


def test_a_network_that_has_grown_is_counted_as_it_is(tmp_path):
    options = {"variance": 1.0, "projection": False, "on_full": "grow", "growth": 2.0}
    chosen = make_settings(tasks=3, options=options, train={"epochs": 1, "retrain_epochs": 0})
    result = run.run(chosen, tmp_path, print_line=quiet)
    assert [task["grown"] for task in result["tasks"]] == [False, False, True]
    assert result["tasks"][2]["full"]
    assert result["network"]["widths"] == {"hidden1": 200, "hidden2": 200}
    assert result["network"]["parameters"] == 64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
    assert result["tasks"][2]["parameters"] <= result["network"]["parameters"]


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path, capsys):
    file = tmp_path / "mine.py"
    body = "import torch, spacecl\ndef tasks():\n    x, y = torch.randn(90, 4), torch.arange(90) % 3\n"
    file.write_text(f"{body}    return [spacecl.Task('[/a]b', (x, y), test=(x, y))]\n")
    chosen = resolve(OWN | {"benchmark": str(file)})
    result = run.run(chosen, tmp_path / "r", progress=True, print_line=quiet)
    from rich.console import Console

    Console().print(make_table(result))
    captured = capsys.readouterr()
    assert "[/a]b" in captured.out
    assert "[/a]b: train" in captured.err


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    with filelock.FileLock(tmp_path / ".lock"), pytest.raises(ConfigError, match="Another process is working"):
        run.run(make_settings(), tmp_path, print_line=quiet)


def test_bad_test_data_is_found_before_anything_is_trained(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(
        "import torch, spacecl\n"
        "def tasks():\n"
        "    x, y = torch.randn(90, 4), torch.arange(90) % 3\n"
        "    good = spacecl.Task('good', (x, y), test=(x, y))\n"
        "    return [good, spacecl.Task('bad', (x, y), test=(x, y + 5), classes=3)]\n"
    )
    chosen = resolve({"benchmark": str(file), "train": {"epochs": 1}, "device": "cpu"})
    with pytest.raises(DataError, match="Task 'bad', test: the label 7 is outside its 3 classes"):
        run.run(chosen, tmp_path / "out", print_line=quiet)
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_training_that_diverges_leaves_no_result(tmp_path):
    with pytest.raises(TrainingError, match="diverged"):
        run.run(make_settings(train={"optimizer": "sgd", "lr": 1e9, "epochs": 2}), tmp_path, print_line=quiet)
    assert not (tmp_path / "result.json").exists()


def test_progress_shows_task_phase_epoch_loss_accuracy_and_the_time_left_for_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "150")
    run.run(make_settings(), tmp_path, progress=True, print_line=quiet)
    shown = capsys.readouterr().err
    assert re.search(r"digits-2: retrain.*epoch 2/2 +loss [\d.]+ +accuracy [\d.]+% +run: \d+ s left", shown)


def test_the_time_left_counts_every_phase_to_come_at_its_own_pace():
    from spacecl.progress import Overview

    overview = Overview({"a: train": 100, "a: retrain": 50, "b: train": 100, "b: retrain": 50})
    assert overview.estimate_seconds("a: train", 100) is None
    overview.pace = {"train": 2.0}
    assert overview.estimate_seconds("a: train", 60) == 2 * (60 + 50 + 100 + 50)
    overview.pace["retrain"] = 0.5
    overview.plan.pop("a: train")
    assert overview.estimate_seconds("a: retrain", 10) == 0.5 * (10 + 50) + 2 * 100


def test_the_number_of_processes_that_read_is_no_other_setting(finished, tmp_path):
    folder, result = finished
    shutil.copytree(folder, tmp_path / "copy")
    again = run.run(make_settings(train={"num_workers": 2}, device="cpu"), tmp_path / "copy", print_line=quiet)
    assert again["tasks"][0]["digest"] == result["tasks"][0]["digest"]


SEVERAL_INPUTS = """
import torch, spacecl, models

def examples(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 20, (rows, 5), generator=generator)
    pixels = torch.randn(rows, 6, generator=generator)
    mask = (ids > 3).long()
    return [
        {"pixels": pixels[i], "ids": ids[i].tolist(), "mask": mask[i], "kind": int(pixels[i, 0] > 0), "name": f"row {i}"}
        for i in range(rows)
    ]

def tasks():
    keys = (("pixels", "ids", "mask"), "kind")
    return [spacecl.Task(f"task {n}", examples(90, n), test=examples(30, 10 + n), keys=keys) for n in range(2)]

def network():
    return models.Captioned()
"""


def test_tasks_with_several_inputs_and_dictionaries_run_resume_and_export(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(SEVERAL_INPUTS)
    command = ["run", str(file), "--model", f"{file}:network", "--epochs", "3", "--retrain-epochs", "1", "--quiet"]
    out = ["--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main([*command, *out, "--set", "options.variance=0.8"]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [task["test"] for task in result["tasks"]] == [30, 30]
    assert all(0 <= task["accuracy"] <= 1 and task["multiply_adds"] > 0 for task in result["tasks"])
    assert result["inferred"] is not None
    assert main(["export", str(tmp_path / "run"), "--all", "--trust-code", "--int8", "--calibrate", "train"]) == 0
    index = json.loads((tmp_path / "run" / "export" / "index.json").read_text())
    assert [entry["name"] for entry in index["tasks"][0]["inputs"]] == ["ids", "mask", "pixels"]
    assert 0 <= index["tasks"][0]["accuracy"]["after"] <= 1
    assert main(["verify", str(tmp_path / "run"), "--trust-code"]) == 0
    assert main(["run", str(file), "--model", "mlp", *command[4:], "--out", str(tmp_path / "other")]) == 1
    assert "The network mlp has one input, but the tasks have several" in capsys.readouterr().err
