"""A run: its folder, what it measures, and that it goes on after any interruption to the same bits."""

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from spacecl import ConfigError, DataError, FineTune, Learner, Recipe, StoreError, Task, TrainingError
from spacecl.data.benchmarks.streams import load_stream
from spacecl.runs import run
from spacecl.runs.metrics_log import Journal
from spacecl.runs.resolve import merge_settings, resolve

ROOT = Path(__file__).parents[2]
QUICK = {"tasks": 2, "train": {"epochs": 3, "retrain_epochs": 2}, "device": "cpu"}


def settings(**more):
    return resolve(merge_settings({"benchmark": "permuted-digits"}, QUICK, more))


def quiet(_):
    pass


def timeless(value):
    """A result without its times, and without what was measured on the machine."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in ("seconds", "measured")}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def lines(folder):
    return [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An undisturbed run of two tasks."""
    folder = tmp_path_factory.mktemp("run") / "one"
    return folder, run.run(settings(), folder, say=quiet)


@pytest.fixture(scope="module")
def measured_too(finished, tmp_path_factory):
    """The same run's result after its networks have been measured."""
    copy = tmp_path_factory.mktemp("measured") / "copy"
    shutil.copytree(finished[0], copy)
    return run.measure(copy)


def test_a_run_leaves_all_that_is_promised_in_its_folder(finished):
    folder, result = finished
    assert {path.name for path in folder.iterdir()} - {".lock"} == {
        *("config.json", "environment.json", "metrics.jsonl", "model", "result.json", "tasks.json"),
    }
    assert json.loads((folder / "result.json").read_text()) == result
    assert json.loads((folder / "config.json").read_text()) == settings().to_json()
    start = json.loads((folder / "environment.json").read_text())[0]
    assert start["packages"]["torch"] == torch.__version__
    assert start["machine"]["cores"] == os.cpu_count()
    rows = lines(folder)
    assert [row["after"] for row in rows if row["kind"] == "test"] == [1, 2]
    assert sum(row["kind"] == "epoch" for row in rows) == 2 * (3 + 2)


def test_the_result_says_what_the_learner_in_the_folder_does(finished):
    folder, result = finished
    chosen = settings()
    model = chosen.make_model((64,), 10)
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
    assert all(0 < value < 1 for value in result["tasks"][1]["core_explained"].values())


def test_costs_can_be_measured_later_from_the_folder_alone_and_change_nothing_else(measured_too, finished):
    assert timeless(measured_too) == timeless(finished[1])
    assert all("measured" in cost for task in measured_too["tasks"] for cost in task["costs"].values())
    for task in measured_too["tasks"]:
        assert task["costs"]["network"]["multiply_adds"] == task["multiply_adds"]
        assert task["costs"]["dense"]["multiply_adds"] == measured_too["network"]["multiply_adds"]


def test_the_record_says_what_the_analysis_saw(finished):
    first, second = (task["spectrum"]["hidden1"] for task in finished[1]["tasks"])
    assert (first["core"], first["core"] + first["new"]) == (0, finished[1]["tasks"][0]["widths"]["hidden1"])
    assert second["core"] + second["new"] == finished[1]["tasks"][1]["widths"]["hidden1"]
    assert second["new_without_projection"] > second["new"]
    assert first["first_core"] == first["kept"] > second["first_core"] > 0
    assert second["kept"] > second["first_core"]
    assert second["explained"][0] == pytest.approx(finished[1]["tasks"][1]["core_explained"]["hidden1"], abs=1e-5)
    for seen in (first, second):
        assert seen["threshold"] == 0.97
        assert seen["needed"]["0.97"] == seen["new"]
        assert list(seen["needed"].values()) == sorted(seen["needed"].values())
        assert len(seen["filters"]) == len(seen["explained"])
        assert seen["explained"] == sorted(seen["explained"])
        assert seen["explained"][-1] == pytest.approx(1, abs=2e-4)
    assert finished[1]["tasks"][1]["used"] == finished[1]["tasks"][1]["widths"]


def test_every_key_of_the_result_is_documented(finished, measured_too):
    text = (ROOT / "docs" / "runs.md").read_text()
    assert f"schema {run.SCHEMA}" in text.lower()
    keys = set(re.findall(r"`([a-z_]+)`", text))
    result = finished[1]
    used = {*result, *result["network"], *(key for task in result["tasks"] for key in task)}
    costs = measured_too["tasks"][0]["costs"]
    used |= {*costs, *costs["dense"], *costs["dense"]["traffic"], *costs["dense"]["measured"]}
    used |= {*costs["dense"]["measured"]["latency"]["1"], *result["tasks"][0]["spectrum"]["hidden1"]}
    used |= {key for row in map(json.loads, (finished[0] / "metrics.jsonl").read_text().splitlines()) for key in row}
    used |= {key for start in json.loads((finished[0] / "environment.json").read_text()) for key in start}
    assert not used - keys


def test_the_same_seed_gives_the_same_result_and_another_one_another(finished, tmp_path):
    same = run.run(settings(), tmp_path / "same", say=quiet)
    other = run.run(settings(seed=1), tmp_path / "other", say=quiet)
    assert timeless(same) == timeless(finished[1])
    assert lines(tmp_path / "same") == lines(finished[0])
    assert [task["digest"] for task in other["tasks"]] != [task["digest"] for task in same["tasks"]]


def test_a_method_that_forgets_has_a_matrix_that_shows_it(tmp_path):
    result = run.run(settings(method="finetune", train={"epochs": 8}), tmp_path, say=quiet)
    then, now = result["accuracy_matrix"][0][0], result["accuracy_matrix"][1][0]
    assert now < then
    assert result["backward_transfer"] == pytest.approx(now - then)
    assert result["size"] == 1


def attempt(folder, chosen):
    """What a child process does."""
    torch.set_num_threads(1)
    run.run(chosen, folder, say=quiet)
    os._exit(0)


LONGER = {
    "sgd": {"train": {"epochs": 6, "retrain_epochs": 4, "optimizer": "sgd", "lr": 0.05}},
    "finetune": {"method": "finetune", "train": {"epochs": 8, "optimizer": "adam", "schedule": "cosine"}},
}


def joined(child):
    """A child that has ended, by itself or by our hand, and not by a failure of its own."""
    child.join()
    assert child.exitcode in (0, CRASHED, -signal.SIGKILL)
    return child.exitcode == 0


@pytest.mark.parametrize("name", LONGER)
def test_killed_at_random_moments_a_run_ends_with_the_same_bits(name, tmp_path):
    chosen = settings(**LONGER[name])
    undisturbed = run.run(chosen, tmp_path / "undisturbed", say=quiet)
    generator, folder = random.Random(name), tmp_path / "killed"
    file, kills, seen, context = folder / "metrics.jsonl", 0, 0, multiprocessing.get_context("fork")
    while not (folder / "result.json").exists():
        child = context.Process(target=attempt, args=(folder, chosen))
        child.start()
        wanted = seen + generator.randint(0, 4)  # rows, so that every attempt but a few gets further
        ends = time.monotonic() + 60
        while child.is_alive() and time.monotonic() < ends:
            if file.exists() and file.read_bytes().count(b"\n") > wanted:
                break
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.06))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        joined(child)
        seen = file.read_bytes().count(b"\n")
    assert kills >= 3
    assert timeless(json.loads((folder / "result.json").read_text())) == timeless(undisturbed)
    assert lines(folder) == lines(tmp_path / "undisturbed")
    assert len(json.loads((folder / "environment.json").read_text())) >= kills


CRASHED = 77
STEPS = ("replace", "fsync", "unlink", "rmdir", "mkdir")


def crash_at(step, folder, chosen):
    """A run that ends without another word just before the step-th thing that it does to the disk."""
    count = 0

    def counted(usual):
        def do(*arguments, **options):
            nonlocal count
            count += 1
            if count == step:
                os._exit(CRASHED)
            return usual(*arguments, **options)

        return do

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    attempt(folder, chosen)


SWEPT = {
    "the best epoch is not the last": {"train": {"epochs": 3, "lr": 0.1, "schedule": "constant"}},
    "a plateau ends training": {
        "train": {"epochs": 9, "lr": 0.05, "schedule": "plateau", "decay": 3.0, "patience": 1, "stop_lr": 0.02}
    },
}


@pytest.mark.parametrize("name", SWEPT)
def test_a_crash_before_any_write_to_the_disk_changes_nothing_of_the_result(name, tmp_path):
    for seed in range(10):  # which seeds have what the test is about depends on the machine's rounding
        chosen = settings(**SWEPT[name], seed=seed)
        undisturbed = run.run(chosen, tmp_path / f"undisturbed{seed}", say=quiet)
        rows = lines(tmp_path / f"undisturbed{seed}")
        ends = {(row["task"], row["phase"]): row["accuracy"] for row in rows if row["kind"] == "epoch"}
        worse = any(row["accuracy"] > ends[row["task"], row["phase"]] for row in rows if row["kind"] == "epoch")
        if worse if "best" in name else undisturbed["tasks"][0]["epochs"]["train"] < 9:
            break
    else:
        pytest.fail(f"no seed was found for which {name}")
    context, step, crashes = multiprocessing.get_context("fork"), 1, 0
    while True:  # one crash more in every round, ever later, each in the folder that the one before left behind
        child = context.Process(target=crash_at, args=(step, tmp_path / "crashed", chosen))
        child.start()
        if joined(child):
            break
        crashes, step = crashes + 1, 3 + step * 5 // 4
    assert crashes >= 5
    assert timeless(json.loads((tmp_path / "crashed" / "result.json").read_text())) == timeless(undisturbed)
    assert lines(tmp_path / "crashed") == rows
    left = [path.name for path in (tmp_path / "crashed").rglob("*") if path.name.endswith(run.disk.TEMPORARY)]
    assert not left
    assert not (tmp_path / "crashed" / "checkpoints").exists()


def test_files_that_a_killed_save_left_are_removed_when_the_run_goes_on(tmp_path, finished):
    """Killed after the manifest was replaced and before the files of the version before were removed, with no save to come."""
    folder = shutil.copytree(finished[0], tmp_path / "run")
    stray = folder / "model" / f"{'0' * 32}.safetensors"
    stray.write_bytes(b"of the version before")
    (folder / "result.json").unlink()
    run.run(settings(), folder, say=quiet)
    assert not stray.exists()


def test_a_crash_between_saving_a_task_and_testing_it_is_mended(tmp_path, finished):
    chosen, usual = settings(), run._measure

    def crash(learner, *rest):
        if len(learner.tasks) == 2:
            raise KeyboardInterrupt
        usual(learner, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_measure", crash)
        with pytest.raises(KeyboardInterrupt):
            run.run(chosen, tmp_path, say=quiet)
    (tmp_path / "metrics.jsonl").unlink()  # as if none of it had reached the disk
    assert timeless(run.run(chosen, tmp_path, say=quiet)) == timeless(finished[1])
    assert sorted(map(str, lines(tmp_path))) == sorted(map(str, lines(finished[0])))


def test_a_model_with_dropout_norms_and_augmentation_goes_on_to_the_same_bits(tmp_path):
    """What is random and what has running statistics is part of the state."""
    from torch import nn

    def model():
        torch.manual_seed(3)
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3)),
            *(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 2)),
        )

    x = torch.randn(120, 1, 6, 6)
    y = (x.mean((1, 2, 3)) > 0).long()
    recipe = Recipe(epochs=4, augment="flip-shift", weight_decay=0.01)

    class Noisy(Dataset):
        """Draws from every generator there is."""

        def __len__(self):
            return 120

        def __getitem__(self, row):
            return x[row] + 0.1 * torch.randn(1, 6, 6) + 0.1 * random.random() + 0.1 * np.random.rand(), y[row]

    def task():
        loader = DataLoader(Noisy(), 20, shuffle=True, generator=torch.Generator().manual_seed(4))
        return Task("t", loader, (x, y))

    class StopError(Exception):
        pass

    def stop_at(phase, epoch):
        def check(row):
            if (row["phase"], row["epoch"]) == (phase, epoch) and not any(key == (phase, epoch) for key in seen):
                seen.append((phase, epoch))
                raise StopError

        return check

    whole = Learner(model(), example_input=x[:1]).learn(task(), recipe)
    seen = []
    for phase, epoch in (("train", 1), ("train", 3), ("train", 4), ("retrain", 1), ("retrain", 2)):
        with pytest.raises(StopError):
            Learner(model(), example_input=x[:1]).learn(task(), recipe, checkpoint=tmp_path, on_epoch=stop_at(phase, epoch))
    last = Learner(model(), example_input=x[:1]).learn(task(), recipe, checkpoint=tmp_path)
    assert last.digest == whole.digest
    assert timeless(list(last.history)) == timeless(list(whole.history))


def test_a_checkpoint_of_other_work_is_refused_and_says_what_differs(tmp_path):
    x = torch.randn(80, 4)
    task = Task("t", (x, (x[:, 0] > 0).long()))

    def learner(**more):
        torch.manual_seed(0)
        return Learner(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), example_input=x[:1], **more)

    learner().learn(task, Recipe(epochs=1), checkpoint=tmp_path)
    with pytest.raises(StoreError, match="holds a checkpoint of other work: recipe was"):
        learner().learn(task, Recipe(epochs=2), checkpoint=tmp_path)
    with pytest.raises(StoreError, match="seed was 0 and is 1"):
        learner(seed=1).learn(task, Recipe(epochs=1), checkpoint=tmp_path)
    with pytest.raises(StoreError, match="method was"):
        learner(method=FineTune()).learn(task, Recipe(epochs=1), checkpoint=tmp_path)


def test_a_line_that_a_crash_cut_is_dropped_and_rows_are_written_once(tmp_path):
    file, rows = (
        tmp_path / "metrics.jsonl",
        [{"kind": "test", "after": n, "accuracy": {"a": 0.5}, "size": 0.5, "seconds": 1.0} for n in (1, 2)],
    )
    file.write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[1])[:20])
    journal = Journal(file)
    assert journal.rows == [rows[0]]
    for row in (*rows, rows[1]):
        journal.add(row)
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    file.write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[1]))  # whole but for its end: it may be cut all the same
    assert Journal(file).rows == [rows[0]]


def test_a_finished_run_is_told_and_not_run_again(finished):
    told = []
    before = (finished[0] / "result.json").stat().st_mtime_ns
    assert run.run(settings(), finished[0], say=told.append) == finished[1]
    assert "finished already" in told[0]
    assert (finished[0] / "result.json").stat().st_mtime_ns == before


def test_a_folder_with_another_run_or_other_things_is_left_alone(finished, tmp_path):
    with pytest.raises(ConfigError, match=r"holds a run with other settings:\n  - train.lr was 0.002 and is 0.1"):
        run.run(settings(train={"lr": 0.1}), finished[0], say=quiet)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty and holds no run \(thesis\.tex\)"):
        run.run(settings(), tmp_path, say=quiet)


def test_a_run_is_not_gone_on_with_on_other_data(tmp_path):
    file = tmp_path / "mine.py"
    body = "import torch, spacecl\ndef tasks():\n    x, y = torch.ones(90, 4).cumsum(0) * {}, torch.arange(90) % 3\n"
    body += "    return [spacecl.Task('a', (x, y), test=(x, y))]\n"
    file.write_text(body.format(0.01))
    chosen = resolve({"benchmark": str(file), "method": "finetune", "train": {"epochs": 1}, "device": "cpu"})
    with pytest.raises(KeyboardInterrupt):
        run.run(chosen, tmp_path / "r", say=_interrupt)
    file.write_text(body.format(0.02))
    with pytest.raises(ConfigError, match=r"(?s)data are not those that the run in .* began with.*a.data.test was"):
        run.run(chosen, tmp_path / "r", say=quiet)


def test_a_run_that_could_not_begin_does_not_stand_in_the_way_of_the_next(tmp_path):
    for wrong, told in (
        ({"options": {"task_variance": {"digits-9": 0.5}}}, "names digits-9, but the tasks are digits-1, digits-2"),
        ({"model": "cnn"}, "reads images of at least 12 x 12"),
        ({"shared": ["nothing"]}, "match no layer"),
        ({"train": {"optimizer": "sgd", "lr": 1e9}}, "diverged"),
    ):
        with pytest.raises((ConfigError, TrainingError), match=told):
            run.run(settings(**wrong), tmp_path, say=quiet)
    assert run.run(settings(), tmp_path, say=quiet)["average_accuracy"] > 0.5
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        run.run(settings(), tmp_path / "file", say=quiet)


def test_a_network_that_has_grown_is_counted_as_it_is(tmp_path):
    options = {"variance": 1.0, "projection": False, "on_full": "grow", "growth": 2.0}
    chosen = settings(tasks=3, options=options, train={"epochs": 1, "retrain_epochs": 0})
    result = run.run(chosen, tmp_path, say=quiet)
    assert [task["grown"] for task in result["tasks"]] == [False, False, True]
    assert result["tasks"][2]["full"]
    assert result["network"]["widths"] == {"hidden1": 200, "hidden2": 200}
    assert result["network"]["parameters"] == 64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
    assert result["tasks"][2]["parameters"] <= result["network"]["parameters"]


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path, capsys):
    file = tmp_path / "mine.py"
    body = "import torch, spacecl\ndef tasks():\n    x, y = torch.randn(90, 4), torch.arange(90) % 3\n"
    file.write_text(f"{body}    return [spacecl.Task('[/a]b', (x, y), test=(x, y))]\n")
    chosen = resolve({"benchmark": str(file), "method": "finetune", "train": {"epochs": 1}, "device": "cpu"})
    result = run.run(chosen, tmp_path / "r", progress=True, say=quiet)
    from rich.console import Console

    Console().print(run.table(result))
    shown = capsys.readouterr()
    assert "[/a]b" in shown.out
    assert "[/a]b: train" in shown.err


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    with filelock.FileLock(tmp_path / ".lock"), pytest.raises(ConfigError, match="Another process is at work"):
        run.run(settings(), tmp_path, say=quiet)


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
        run.run(chosen, tmp_path / "out", say=quiet)
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_training_that_diverges_leaves_a_run_that_can_be_looked_at(tmp_path):
    with pytest.raises(TrainingError, match="diverged"):
        run.run(settings(train={"optimizer": "sgd", "lr": 1e9, "epochs": 2}), tmp_path, say=quiet)
    assert not (tmp_path / "result.json").exists()


def test_tensorboards_log_has_every_epoch_once_even_after_going_on(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    chosen = settings()
    with pytest.raises(KeyboardInterrupt):
        run.run(chosen, tmp_path, tensorboard=True, say=_interrupt)
    result = run.run(chosen, tmp_path, tensorboard=True, say=quiet)
    log = EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()
    assert [event.step for event in log.Scalars("digits-1/train loss")] == [1, 2, 3]
    assert [event.step for event in log.Scalars("digits-2/retrain accuracy")] == [1, 2]
    assert [event.value for event in log.Scalars("test/mean")][-1] == pytest.approx(result["average_accuracy"])


def _interrupt(_):
    raise KeyboardInterrupt


def command(*arguments, cwd, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "spacecl", "run", *arguments],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "150", **environment},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )


def test_the_command_is_interrupted_and_goes_on_with_resume(tmp_path):
    arguments = ["permuted-digits", "--tasks", "2", "--out", "r", "--set", "train.epochs=40", "--device", "cpu"]
    first = command(*arguments, cwd=tmp_path)
    rows = tmp_path / "r" / "metrics.jsonl"
    while not rows.exists() and first.poll() is None:
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=120)
    assert first.returncode == 130, said
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    then = command("--resume", "--out", "r", cwd=tmp_path)
    out, said = then.communicate(timeout=300)
    assert then.returncode == 0, said
    assert re.search(r"2/2 +digits-2 +test +[\d.]+%", out)
    assert "r/result.json has all of it" in out
    assert len(json.loads((tmp_path / "r" / "environment.json").read_text())) == 2


def test_progress_shows_task_phase_epoch_loss_accuracy_and_the_time_left_for_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "150")
    run.run(settings(), tmp_path, progress=True, say=quiet)
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
