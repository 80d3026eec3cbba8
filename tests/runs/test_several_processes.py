"""One run in several processes: what they learn, how they end, and how the run is resumed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
from process_helpers import SPACECL, digests, finish, kill_all, kill_rank, list_epochs, read, start, wait_for_epochs

from spacecl.runs.open_run import open_run
from spacecl.runs.processes import is_lost_connection
from spacecl.runs.resources import choose_threads
from spacecl.runs.run_folder import find_threads

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run in two processes that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("processes") / "whole"
    out, err = finish(start(SPACECL, folder, "--devices", "2"))
    assert "All results are in" in out
    assert out.count("2/2") == 1
    assert err == ""
    return folder


def test_a_run_in_two_processes_learns_and_says_how_many_there_were(whole):
    assert read(whole)["average_accuracy"] > 0.5
    assert {row["processes"] for row in list_epochs(whole)} == {2}
    assert json.loads((whole / "environment.json").read_text())[-1]["processes"] == 2
    learner = open_run(whole).learner()
    learner.verify()
    assert {row["processes"] for record in learner.records.values() for row in record.history} == {2}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_all_and_the_same_command_resumes_to_the_same_bits(whole, tmp_path, rank):
    process = start(SPACECL, tmp_path, "--devices", "2")
    wait_for_epochs(tmp_path, 3)
    kill_rank(process, rank)
    before = time.monotonic()
    _, err = finish(process, code=1)
    assert time.monotonic() - before < 60
    assert err.splitlines() == [
        f"spacecl: Process {rank} of 2 was killed by signal 9. The others were ended. All finished epochs are saved; "
        "the same command resumes."
    ]
    finish(start(SPACECL, tmp_path, "--devices", "2"))
    assert digests(tmp_path) == digests(whole)


@pytest.mark.slow
def test_another_number_of_processes_resumes_from_the_same_epoch(whole, tmp_path):
    process = start(SPACECL, tmp_path, "--devices", "2")
    wait_for_epochs(tmp_path, 3)
    kill_all(process)
    for name in ("3", "1"):
        process = start(SPACECL, tmp_path, "--devices", name)
        wait_for_epochs(tmp_path, len(list_epochs(tmp_path)) + 2)
        kill_all(process)
    finish(start(SPACECL, tmp_path, "--devices", "2"))
    epochs = list_epochs(tmp_path)
    assert [(row["task"], row["phase"], row["epoch"]) for row in epochs] == [
        (row["task"], row["phase"], row["epoch"]) for row in list_epochs(whole)
    ]
    assert {row.get("processes", 1) for row in epochs} == {1, 2, 3}
    open_run(tmp_path).learner().verify()


@pytest.mark.slow
def test_an_interrupt_ends_all_processes(tmp_path):
    process = start(SPACECL, tmp_path, "--devices", "2")
    wait_for_epochs(tmp_path, 2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = finish(process, code=130)
    assert re.sub(r"\s+", " ", err).count("Interrupted. All finished epochs are saved in") <= 1
    assert "Traceback" not in err


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_nodes(outs, *more) -> list[subprocess.Popen]:
    """A run on several machines, all of which are this one, with one process on each."""
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{find_port()}", "--local-addr=127.0.0.1"]
    command = [*TORCHRUN, f"--nnodes={len(outs)}", "--nproc-per-node=1", *rendezvous, *more, "-m", "spacecl"]
    return [start(command, out) for out in outs]


@pytest.mark.slow
def test_torchrun_starts_a_run_on_two_machines_with_the_same_bits(whole, tmp_path):
    first, second = (finish(process) for process in start_nodes([tmp_path, tmp_path]))
    assert digests(tmp_path) == digests(whole)
    assert (first[0] + second[0]).count("All results are in") == 1


@pytest.mark.slow
def test_torchrun_restarts_a_run_that_a_process_has_left(whole, tmp_path):
    command = [*TORCHRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=1", "-m", "spacecl"]
    process = start(command, tmp_path)
    wait_for_epochs(tmp_path, 3)
    kill_rank(process, 1)
    finish(process)
    assert digests(tmp_path) == digests(whole)


@pytest.mark.slow
def test_machines_that_do_not_share_the_folder_are_told_so(tmp_path):
    processes = start_nodes([tmp_path / "a", tmp_path / "b"])
    texts = "".join(process.communicate(timeout=180)[1] for process in processes)
    assert all(process.returncode for process in processes)
    assert "do not see the files of process 0" in texts
    assert "on a file system that all machines share" in texts


@pytest.mark.parametrize("devices", ["0", "two"])
def test_a_wrong_number_of_devices_is_refused(tmp_path, devices):
    _, err = finish(start(SPACECL, tmp_path, "--devices", devices), code=1)
    assert err == f"spacecl: --devices {devices} must be a number of processes, 1 or more, or auto.\n"


def test_the_number_of_threads_follows_the_work_of_a_step_and_a_resumed_run_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert [choose_threads(work) for work in (1e6, 1e9, 1e12)] == [1, 5, 8]
    (tmp_path / "metrics.jsonl").touch()
    assert find_threads(tmp_path, 1) is None
    starts = [{}, {"machine": {"threads": 3}}, {"machine": {"threads": 2}, "processes": 4}]
    (tmp_path / "environment.json").write_text(json.dumps(starts))
    assert (find_threads(tmp_path, 1), find_threads(tmp_path, 4), find_threads(tmp_path, 2)) == (3, 2, None)


def test_an_error_of_the_network_is_a_lost_connection_whatever_its_words():
    assert is_lost_connection(torch.distributed.DistNetworkError("Connection reset by peer"))
    assert is_lost_connection(RuntimeError("[gloo] connection closed"))
    assert not is_lost_connection(RuntimeError("Connection reset by peer"))
    assert not is_lost_connection(ValueError("gloo"))
