"""Writing: old version or new one, through power cuts, failing disks and many processes; and the journal, which only grows."""

import errno
import json
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from faults import power, writers

import spacecl
from spacecl import StoreError, disk, store
from spacecl.cli.main import main
from spacecl.runs.metrics_log import Journal, read_rows

FORK = multiprocessing.get_context("fork")


def save(folder, number, size=500):
    store.save(folder, {"number": number}, {"a": {"x": torch.full((size,), float(number))}, "b": {"y": torch.tensor([number])}})


def read_number(folder):
    """The version in a folder; all files must be of that one."""
    body, files = store.load(folder, dict)
    assert bool((files["a"]["x"] == body["number"]).all())
    assert int(files["b"]["y"]) == body["number"]
    return body["number"]


def list_leftovers(folder):
    return [path.name for path in folder.rglob("*") if path.name.endswith(disk.TEMPORARY)]


# -- power cuts -------------------------------------------------------------------------------------------------------


def test_a_power_cut_leaves_the_old_version_or_the_new_one():
    outcome = power.run(25, seed=0)
    assert not outcome.failures
    kinds = {kind for kind, _ in outcome.counts}
    assert kinds == {
        "learner",
        "checkpoints",
        "journal",
        "journal with a cut line",
        "result",
        "folder of a run",
        "cache",
        "complete run",
    }


MISSING = {
    "no file is synced": lambda operation: operation.kind == "sync",
    "no folder is synced": lambda operation: operation.kind == "sync folder",
    "new folders are not synced in their parents": lambda operation: (operation.kind, operation.inode) == ("sync folder", 0),
}


@pytest.mark.parametrize("missing", MISSING)
def test_the_simulation_of_power_cuts_finds_a_missing_sync(missing):
    first = replace(power._make_checkpoint_scenario(), steps=power._make_checkpoint_scenario().steps[:1])
    for scenario in (next(power._make_journal_scenarios()), first):
        problems = []
        for case in power.make_cases(scenario, 0, MISSING[missing]):
            try:
                power.check(case)
            except AssertionError as error:
                problems.append(error)
                break
        assert problems, scenario.name


WRITING = (
    r"write_text\(|write_bytes\(|shutil\.(?!get_terminal_size)",
    r"os\.(replace|rename|unlink|remove|mkdir|makedirs|rmdir)\(|\.(unlink|mkdir|touch|rmdir)\(",
    r"open\([^)]*[\"'](w|a|x|r\+|wb|ab|xb|r\+b)[\"']",
)


def test_the_package_writes_files_only_through_this_module():
    exempt = {"metrics_log.py": 1, "executors.py": 1}  # TensorBoard's log, and what a run's process prints
    for file in Path(spacecl.__file__).parent.rglob("*.py"):
        lines = [line for line in file.read_text().splitlines() if any(re.search(text, line) for text in WRITING)]
        assert file.name == "disk.py" or len(lines) == exempt.get(file.name, 0), (file.name, lines)


# -- disks that fail --------------------------------------------------------------------------------------------------


class Failing(disk.System):
    """A disk that reports an error at one operation."""

    def __init__(self, code, at):
        self.code, self.left = code, at

    def fail(self):
        self.left -= 1
        if self.left == -1:
            raise OSError(self.code, os.strerror(self.code))

    def open(self, *given):
        self.fail()
        return super().open(*given)

    def write(self, *given):
        self.fail()
        return super().write(*given)

    def sync(self, *given):
        self.fail()
        super().sync(*given)

    def rename(self, *given):
        self.fail()
        super().rename(*given)

    def sync_folder(self, *given):
        self.fail()
        super().sync_folder(*given)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, r"No space left on device \(ENOSPC\).*Free some space"),
        (errno.EDQUOT, r"quota exceeded \(EDQUOT\).*Free some space"),
        (errno.EIO, r"\(EIO\).*The disk may be failing"),
        (errno.EROFS, r"\(EROFS\).*a disk that can be written to"),
        (errno.EACCES, r"\(EACCES\).*Change the permissions"),
    ],
)
def test_a_failing_disk_is_reported_with_file_folder_and_remedy_and_loses_nothing(tmp_path, monkeypatch, code, remedy):
    save(tmp_path, 1)
    for at in range(50):
        before = read_number(tmp_path)
        monkeypatch.setattr(disk, "system", Failing(code, at))
        try:
            save(tmp_path, at + 2)
            break
        except StoreError as error:
            message = str(error)
        finally:
            monkeypatch.undo()
        assert str(tmp_path) in message
        assert re.search(remedy, message)
        assert read_number(tmp_path) in (before, at + 2)
        assert not list_leftovers(tmp_path)
    assert read_number(tmp_path) == at + 2
    assert 12 < at < 49


def test_files_of_a_failed_save_are_removed_when_the_disk_is_full(tmp_path, monkeypatch):
    save(tmp_path, 1)
    files = set(os.listdir(tmp_path))
    monkeypatch.setattr(disk, "system", Failing(errno.ENOSPC, 5))  # in the second file of the save
    with pytest.raises(StoreError, match="No space left"):
        save(tmp_path, 2)
    assert set(os.listdir(tmp_path)) == files


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("a file system of its own can be mounted by root only")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_real_full_disk_keeps_the_old_version_and_the_journal(small_disk):
    folder, file = small_disk / "model", small_disk / "metrics.jsonl"
    save(folder, 1, 20_000)
    journal = Journal(file)
    journal.add(ROWS[0])
    (small_disk / "filler").write_bytes(bytes((1 << 20) - (100 << 10)))
    with pytest.raises(StoreError, match=rf"{folder}.*No space left on device \(ENOSPC\).*Free some space"):
        save(folder, 2, 100_000)
    assert read_number(folder) == 1
    assert not list_leftovers(small_disk)
    fill(small_disk / "rest")
    long = {**ROWS[0], "epoch": 2, "task": "long" * 5000}
    with pytest.raises(StoreError, match=r"metrics.jsonl cannot be written: No space left"):
        journal.add(long)
    assert read_rows(file) == (journal.rows, file.stat().st_size), "nothing is cut, and nothing is claimed to be written"
    (small_disk / "rest").unlink()
    journal.add(ROWS[1])
    assert Journal(file).rows[-1] == ROWS[1]


def fill(file):
    with file.open("wb", buffering=0) as stream:
        try:
            while stream.write(bytes(4096)):
                pass
        except OSError:
            pass


def run_in_child(do, *arguments):
    process = FORK.Process(target=do, args=arguments)
    process.start()
    process.join(120)
    return process.exitcode


def run_limited(size, do, *arguments):
    """Run a function in this process, which then cannot write larger files."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    do(*arguments)


def test_a_line_that_does_not_fit_leaves_the_file_as_it_was(tmp_path):
    file = tmp_path / "metrics.jsonl"
    Journal(file).add(ROWS[0])
    content = file.read_bytes()

    def add():
        journal = Journal(file)
        with pytest.raises(StoreError, match=r"metrics.jsonl cannot be written: File too large \(EFBIG\).*ulimit -f"):
            journal.add(ROWS[1])
        assert journal.rows == ROWS[:1]
        assert not journal.has_test(1)

    assert run_in_child(run_limited, len(content) + 10, add) == 0
    assert file.read_bytes() == content


def test_a_full_disk_ends_a_run_without_a_traceback(tmp_path):
    run = [
        "run",
        "permuted-digits",
        "--tasks",
        "1",
        "--epochs",
        "1",
        "--limit",
        "200",
        "--quiet",
        "--no-measure",
        "--device",
        "cpu",
    ]

    def go():
        sys.stderr = (tmp_path / "stderr").open("w")
        code = main([*run, "--out", str(tmp_path / "run")])
        sys.stderr.close()
        os._exit(code)

    assert run_in_child(run_limited, 10_000, go) == 1
    text = (tmp_path / "stderr").read_text()
    assert "Traceback" not in text
    assert re.search(
        rf"^spacecl: {tmp_path}/run/checkpoints/.* cannot be written: File too large \(EFBIG\)\. The folder is", text
    )
    assert run_in_child(main_or_exit, [*run, "--out", str(tmp_path / "run")]) == 0, "with space again, it is resumed"


def main_or_exit(arguments):
    torch.set_num_threads(1)
    sys.exit(main(arguments))


# -- several processes ------------------------------------------------------------------------------------------------


def test_processes_that_save_to_one_folder_take_turns_and_readers_see_complete_versions():
    outcome = writers.run(3, seed=0)
    assert not outcome.failures
    assert outcome.notes["reads"] > 0


def hold_lock(folder, locked, done):
    with store.lock_folder(folder, 0, StoreError("busy")):
        locked.set()
        done.wait(60)


def test_a_second_writer_waits_and_is_then_refused(tmp_path, monkeypatch):
    save(tmp_path, 1)
    locked, done = FORK.Event(), FORK.Event()
    process = FORK.Process(target=hold_lock, args=(tmp_path, locked, done))
    process.start()
    assert locked.wait(60)
    with monkeypatch.context() as patch:
        patch.setattr(store, "WAIT", 0.1)
        with pytest.raises(StoreError, match=rf"Another process has been saving to {tmp_path}"):
            save(tmp_path, 2)
    assert read_number(tmp_path) == 1, "reading needs no lock"
    thread = threading.Thread(target=save, args=(tmp_path, 3))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive(), "it waits"
    done.set()
    thread.join(60)
    process.join()
    assert read_number(tmp_path) == 3


def test_threads_that_save_to_one_folder_take_turns(tmp_path):
    threads = [threading.Thread(target=save, args=(tmp_path, number)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert read_number(tmp_path) in range(6)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert not list_leftovers(tmp_path)


def test_threads_that_write_one_file_without_a_lock_do_not_disturb_each_other(tmp_path):
    file, problems = tmp_path / "result.json", []

    def write(number):
        try:
            for _ in range(20):
                disk.write_file(file, bytes([number]) * 5000)
        except StoreError as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems
    assert len(set(file.read_bytes())) == 1
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_reader_that_is_overtaken_by_a_save_reads_the_new_version(tmp_path, monkeypatch):
    save(tmp_path, 1)
    read, versions = store._read_tensors, iter((2, 3))

    def slow(*given):
        for number in versions:
            save(tmp_path, number)
            break
        return read(*given)

    monkeypatch.setattr(store, "_read_tensors", slow)
    assert read_number(tmp_path) == 3
    assert store.read_version(tmp_path, dict)[2] == {}


def test_loading_writes_nothing(tmp_path):
    save(tmp_path, 1)
    (tmp_path / store.LOCK).unlink()
    before = sorted(os.listdir(tmp_path))
    tmp_path.chmod(0o555)
    assert read_number(tmp_path) == 1
    assert sorted(os.listdir(tmp_path)) == before
    tmp_path.chmod(0o755)


def test_temporary_files_of_others_are_removed_only_with_the_lock(tmp_path):
    theirs = tmp_path / f".spacecl.json.0123456789abcdef{disk.TEMPORARY}"
    theirs.write_bytes(b"of a process that may still run")
    disk.write_file(tmp_path / "spacecl.json", b"{}")
    assert theirs.exists()
    save(tmp_path, 1)
    assert not theirs.exists()


# -- the journal ------------------------------------------------------------------------------------------------------

EPOCH = {
    "kind": "epoch",
    "task": "a",
    "phase": "train",
    "loss": 0.5,
    "score": 0.75,
    "accuracy": 0.75,
    "valid_loss": 0.5,
    "lr": 0.1,
    "seconds": 1.0,
}
TEST = {"kind": "test", "after": 1, "score": {"a": 0.75}, "accuracy": {"a": 0.75}, "size": 0.5, "seconds": 1.0}
ROWS = [{**EPOCH, "epoch": 1}, TEST]
LINES = [json.dumps(row).encode() + b"\n" for row in ROWS]


@pytest.mark.parametrize("cut", [LINES[1][:20], LINES[1][:-1], bytes(len(LINES[1])), bytes(50) + LINES[1][50:]])
def test_a_cut_last_line_is_dropped(tmp_path, cut):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(LINES[0] + cut)
    assert read_rows(file) == (ROWS[:1], len(LINES[0]))
    assert file.read_bytes() == LINES[0] + cut, "reading changes nothing"
    Journal(file).add(ROWS[1])
    assert file.read_bytes() == b"".join(LINES)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\xff" + LINES[0][1:], "cannot be read as JSON"),
        (LINES[0][:30] + b"\n", "cannot be read as JSON"),
        (b"\0" + LINES[0], "cannot be read as JSON"),
        (b"[" * 100_000 + b"\n", "cannot be read as JSON"),
        (b"[]\n", "should be an object|valid dictionary"),
        (b"\n", "cannot be read as JSON"),
        (b'{"kind": "other"}\n', "'epoch', 'test'"),
        (LINES[0].replace(b'"loss": 0.5, ', b""), "loss is missing"),
        (LINES[0].replace(b"0.75", b'"x"'), "accuracy is .*valid number"),
        (LINES[1].replace(b'{"a": 0.75}', b"{}"), "score is .* at least 1 item"),
    ],
)
def test_any_other_damage_to_a_journal_is_reported_by_line_and_nothing_is_overwritten(tmp_path, line, why):
    file = tmp_path / "metrics.jsonl"
    for lines, number in ((line + b"".join(LINES), 1), (LINES[0] + line + LINES[1][:20], 2)):
        file.write_bytes(lines)
        for read in (read_rows, Journal):
            with pytest.raises(StoreError, match=rf"metrics.jsonl, line {number}, is damaged.*({why}).* Restore"):
                read(file)
        assert file.read_bytes() == lines


def test_rows_of_newer_versions_may_say_more(tmp_path):
    file, rows = tmp_path / "metrics.jsonl", [{**row, "memory": [1, 2]} for row in ROWS]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert Journal(file).rows == rows


def test_commands_report_a_damaged_journal_and_leave_it_alone(digits_run, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(digits_run, run)
    (run / "result.json").unlink()
    file = run / "metrics.jsonl"
    file.write_bytes(b"#" + file.read_bytes()[1:])
    before = file.read_bytes()
    for command in (["verify", str(run)], ["run", "--resume", "--out", str(run), "--quiet", "--no-measure"]):
        assert main(command) == 1
        assert f"{file}, line 1, is damaged" in capsys.readouterr().err
        assert file.read_bytes() == before
    file.write_bytes((digits_run / "metrics.jsonl").read_bytes().replace(b'{"digits-1": ', b'{"digits-7": '))
    assert main(["run", "--resume", "--out", str(run), "--quiet", "--no-measure"]) == 1
    assert "the test after task 1 is of digits-7, but the first tasks are digits-1" in capsys.readouterr().err
