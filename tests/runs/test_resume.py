"""A run that is interrupted, killed or damaged: it resumes and ends with the same bits, or says why it cannot."""

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

import numpy as np
import pytest
import torch
from run_helpers import OWN, drop_times, interrupt, make_settings, quiet, read_journal
from torch.utils.data import DataLoader, Dataset

from spacecl import ConfigError, FineTune, Learner, Recipe, StoreError, Task
from spacecl.cli.main import main
from spacecl.runs import run
from spacecl.runs.metrics_log import Journal
from spacecl.runs.resolve import resolve


@pytest.fixture(scope="module")
def finished(digits_run):
    """The folder of an undisturbed run of two tasks, and its result."""
    return digits_run, json.loads((digits_run / "result.json").read_text())


def attempt(folder, chosen):
    """What a child process does."""
    torch.set_num_threads(1)
    run.run(chosen, folder, print_line=quiet)
    os._exit(0)


LONGER = {
    "sgd": {"train": {"epochs": 6, "retrain_epochs": 4, "optimizer": "sgd", "lr": 0.05}},
    "finetune": {"method": "finetune", "model": "mlp-small", "train": {"epochs": 8, "optimizer": "adam", "schedule": "cosine"}},
}


def has_finished(child):
    """Wait for a child to end; it must have finished, or been killed by the test."""
    child.join()
    assert child.exitcode in (0, CRASHED, -signal.SIGKILL)
    return child.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", LONGER)
def test_killed_at_random_moments_a_run_ends_with_the_same_bits(name, tmp_path):
    chosen = make_settings(**LONGER[name])
    undisturbed = run.run(chosen, tmp_path / "undisturbed", print_line=quiet)
    generator, folder = random.Random(name), tmp_path / "killed"
    file, kills, rows, context = folder / "metrics.jsonl", 0, 0, multiprocessing.get_context("fork")
    while not (folder / "result.json").exists():
        child = context.Process(target=attempt, args=(folder, chosen))
        child.start()
        target = rows + generator.randint(0, 4)  # rows, so that every attempt but a few gets further
        ends = time.monotonic() + 60
        while child.is_alive() and time.monotonic() < ends:
            if file.exists() and file.read_bytes().count(b"\n") > target:
                break
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.06))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        has_finished(child)
        rows = file.read_bytes().count(b"\n")
    assert kills >= 3
    assert drop_times(json.loads((folder / "result.json").read_text())) == drop_times(undisturbed)
    assert read_journal(folder) == read_journal(tmp_path / "undisturbed")
    assert len(json.loads((folder / "environment.json").read_text())) >= kills


CRASHED = 77

STEPS = ("replace", "fsync", "unlink", "rmdir", "mkdir")


def crash_at(step, folder, chosen):
    """A run that ends at once just before its `step`-th operation on the disk."""
    count = 0

    def count_calls(usual):
        def do(*arguments, **options):
            nonlocal count
            count += 1
            if count == step:
                os._exit(CRASHED)
            return usual(*arguments, **options)

        return do

    for name in STEPS:
        setattr(os, name, count_calls(getattr(os, name)))
    attempt(folder, chosen)


SWEPT = {
    "the best epoch is not the last": {"train": {"epochs": 3, "lr": 0.1, "schedule": "constant"}},
    "a plateau ends training": {
        "train": {"epochs": 9, "lr": 0.05, "schedule": "plateau", "decay": 3.0, "patience": 1, "stop_lr": 0.02}
    },
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*finds no free channel.*")
@pytest.mark.parametrize("name", SWEPT)
def test_a_crash_before_any_write_to_the_disk_does_not_change_the_result(name, tmp_path):
    for seed in range(10):  # which seeds have what the test is about depends on the machine's rounding
        chosen = make_settings(**SWEPT[name], seed=seed)
        undisturbed = run.run(chosen, tmp_path / f"undisturbed{seed}", print_line=quiet)
        rows = read_journal(tmp_path / f"undisturbed{seed}")
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
        if has_finished(child):
            break
        crashes, step = crashes + 1, 3 + step * 5 // 4
    assert crashes >= 5
    assert drop_times(json.loads((tmp_path / "crashed" / "result.json").read_text())) == drop_times(undisturbed)
    assert read_journal(tmp_path / "crashed") == rows
    left = [path.name for path in (tmp_path / "crashed").rglob("*") if path.name.endswith(run.disk.TEMPORARY)]
    assert not left
    assert not (tmp_path / "crashed" / "checkpoints").exists()


def test_crashes_while_the_disk_is_written_do_not_change_the_result(tmp_path, finished):
    """A few moments of those that the test above, which takes long, tries one by one."""
    context = multiprocessing.get_context("fork")
    for step in (20, 45):
        child = context.Process(target=crash_at, args=(step, tmp_path / "crashed", make_settings()))
        child.start()
        assert not has_finished(child)
    run.run(make_settings(), tmp_path / "crashed", print_line=quiet)
    assert drop_times(json.loads((tmp_path / "crashed" / "result.json").read_text())) == drop_times(finished[1])
    assert read_journal(tmp_path / "crashed") == read_journal(finished[0])
    assert len(json.loads((tmp_path / "crashed" / "environment.json").read_text())) == 3


def test_files_that_a_killed_save_left_are_removed_when_the_run_is_resumed(tmp_path, finished):
    """Killed after the manifest was replaced and before the files of the version before were removed, with no save to come."""
    folder = shutil.copytree(finished[0], tmp_path / "run")
    stray = folder / "model" / f"{'0' * 32}.safetensors"
    stray.write_bytes(b"of the version before")
    (folder / "result.json").unlink()
    run.run(make_settings(), folder, print_line=quiet)
    assert not stray.exists()


def test_a_crash_between_saving_a_task_and_testing_it_is_repaired(tmp_path, finished):
    chosen, usual = make_settings(), run._test_if_new

    def crash(learner, *rest):
        if len(learner.tasks) == 2:
            raise KeyboardInterrupt
        usual(learner, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_test_if_new", crash)
        with pytest.raises(KeyboardInterrupt):
            run.run(chosen, tmp_path, print_line=quiet)
    (tmp_path / "metrics.jsonl").unlink()  # as if none of it had reached the disk
    assert drop_times(run.run(chosen, tmp_path, print_line=quiet)) == drop_times(finished[1])
    assert sorted(map(str, read_journal(tmp_path))) == sorted(map(str, read_journal(finished[0])))


@pytest.mark.parametrize("keep", ["best", "average"])
def test_a_model_with_dropout_norms_and_augmentation_resumes_to_the_same_bits(keep, tmp_path):
    """Random generators and running statistics are part of the state."""
    from torch import nn

    def model():
        torch.manual_seed(3)
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3)),
            *(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 2)),
        )

    x = torch.randn(120, 1, 6, 6)
    y = (x.mean((1, 2, 3)) > 0).long()
    recipe = Recipe(epochs=8, augment="flip-shift", weight_decay=0.01, keep=keep, clip=0.5)

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
            if (row["phase"], row["epoch"]) == (phase, epoch) and not any(key == (phase, epoch) for key in stops):
                stops.append((phase, epoch))
                raise StopError

        return check

    undisturbed = Learner(model(), example_input=x[:1]).learn(task(), recipe)
    stops = []
    for phase, epoch in (("train", 1), ("train", 7), ("train", 8), ("retrain", 1), ("retrain", 4)):
        with pytest.raises(StopError):
            Learner(model(), example_input=x[:1]).learn(task(), recipe, checkpoint=tmp_path, on_epoch=stop_at(phase, epoch))
    last = Learner(model(), example_input=x[:1]).learn(task(), recipe, checkpoint=tmp_path)
    assert last.digest == undisturbed.digest
    assert drop_times(list(last.history)) == drop_times(list(undisturbed.history))


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


def test_a_line_that_a_crash_cut_off_is_dropped_and_rows_are_written_once(tmp_path):
    file, rows = (
        tmp_path / "metrics.jsonl",
        [{"kind": "test", "after": n, "score": {"a": 0.5}, "size": 0.5, "seconds": 1.0} for n in (1, 2)],
    )
    file.write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[1])[:20])
    journal = Journal(file)
    assert journal.rows == [rows[0]]
    for row in (*rows, rows[1]):
        journal.add(row)
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    file.write_text(json.dumps(rows[0]) + "\n" + json.dumps(rows[1]))  # complete but for its end: it may still be cut off
    assert Journal(file).rows == [rows[0]]


def test_a_run_is_not_resumed_with_other_data(tmp_path):
    file = tmp_path / "mine.py"
    body = "import torch, spacecl\ndef tasks():\n    x, y = torch.ones(90, 4).cumsum(0) * {}, torch.arange(90) % 3\n"
    body += "    return [spacecl.Task('a', (x, y), test=(x, y))]\n"
    file.write_text(body.format(0.01))
    chosen = resolve(OWN | {"benchmark": str(file)})
    with pytest.raises(KeyboardInterrupt):
        run.run(chosen, tmp_path / "r", print_line=interrupt)
    file.write_text(body.format(0.02))
    with pytest.raises(ConfigError, match=r"(?s)data differ from those that the run in .* started with.*a.data.test was"):
        run.run(chosen, tmp_path / "r", print_line=quiet)


def test_tensorboards_log_has_every_epoch_once_even_after_resuming(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    chosen = make_settings()
    with pytest.raises(KeyboardInterrupt):
        run.run(chosen, tmp_path, tensorboard=True, print_line=interrupt)
    result = run.run(chosen, tmp_path, tensorboard=True, print_line=quiet)
    log = EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()
    assert [event.step for event in log.Scalars("digits-1/train loss")] == [1, 2, 3]
    assert [event.step for event in log.Scalars("digits-2/retrain accuracy")] == [1, 2]
    assert [event.value for event in log.Scalars("test/mean")][-1] == pytest.approx(result["average_accuracy"])


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


def test_the_command_is_interrupted_and_resumed(tmp_path, monkeypatch, capsys):
    arguments = ["permuted-digits", "--tasks", "2", "--out", "r", "--epochs", "15", "--retrain-epochs", "1", "--device", "cpu"]
    first = command(*arguments, cwd=tmp_path)
    rows = tmp_path / "r" / "metrics.jsonl"
    while not rows.exists() and first.poll() is None:
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=120)
    assert first.returncode == 130, errors
    assert "To resume, repeat the command" in errors
    assert "Traceback" not in errors
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--resume", "--out", "r", "--quiet", "--no-measure"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"2/2 +digits-2 +test +[\d.]+%", out)
    assert "All results are in r/result.json" in out
    assert len(json.loads((tmp_path / "r" / "environment.json").read_text())) == 2
