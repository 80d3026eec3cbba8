"""One run in processes on the nodes of a Ray cluster: its bits, its end when a process is lost, and what is asked of Ray."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_helpers import SPACECL, digests, finish, list_epochs, ray_cluster, read, start, wait_for_epochs

from spacecl import ConfigError, DataError, TrainingError
from spacecl.runs.cluster import explain_failure, share_processors

NETWORK = """
import os
from pathlib import Path
from torch import nn

def network():
    Path(__file__).with_name("rank" + os.environ["RANK"]).write_text(str(os.getpid()))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
"""


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("pyarrow", reason="Ray Train is not installed")
    with ray_cluster() as address:
        yield {"RAY_ADDRESS": address}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """The arguments for a network that writes the number of every process that builds it to a file."""
    file = tmp_path_factory.mktemp("network") / "net.py"
    file.write_text(NETWORK)
    return ["--model", f"{file}:network"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, network):
    """The folder of a run in two processes of this machine, without Ray."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(start(SPACECL, folder, "--devices", "2", *network))
    return folder


@pytest.mark.slow
def test_two_nodes_of_a_cluster_train_a_run_to_the_bits_of_two_processes(cluster, network, whole, tmp_path):
    out, err = finish(start(SPACECL, tmp_path, "--devices", "2", "--engine", "ray", *network, **cluster))  # a processor each
    assert digests(tmp_path) == digests(whole)
    assert {row["processes"] for row in list_epochs(tmp_path)} == {2}
    assert [out.count(f" {number}/2 ") for number in (1, 2)] == [1, 1]
    assert "All results are in" in out
    assert "Traceback" not in err
    assert not (tmp_path / ".ray").exists()


@pytest.mark.slow
def test_a_run_on_a_cluster_that_is_interrupted_and_loses_a_process_resumes_to_the_same_bits(cluster, network, whole, tmp_path):
    command = (SPACECL, tmp_path, "--devices", "2", "--engine", "ray", *network)
    process = start(*command, **cluster)
    wait_for_epochs(tmp_path, 2)
    process.send_signal(signal.SIGINT)
    _, err = finish(process, code=130)
    assert "Interrupted. All finished epochs are saved in" in err
    assert "Traceback" not in err
    process, done = start(*command, **cluster), len(list_epochs(tmp_path))
    wait_for_epochs(tmp_path, done + 2)
    os.kill(int(Path(network[1].rpartition(":")[0]).with_name("rank1").read_text()), signal.SIGKILL)
    _, err = finish(process, code=1)
    assert err.splitlines() == [
        "spacecl: Process 1 of 2 died on its node. The others were ended. All finished epochs are saved; "
        "the same command resumes."
    ]
    finish(start(*command, **cluster))
    assert digests(tmp_path) == digests(whole)
    assert read(tmp_path)["average_accuracy"] == read(whole)["average_accuracy"]


@pytest.mark.slow
def test_a_cluster_that_is_too_small_is_refused(cluster, network, tmp_path):
    _, err = finish(start(SPACECL, tmp_path, "--devices", "3", "--engine", "ray", *network, **cluster), code=1)
    assert "spacecl: --devices 3 is more than the 2 processes for which the Ray cluster has processors" in err


def test_processors_are_shared_so_that_all_processes_fit():
    assert share_processors([4, 4], [1, 3], 4) == 1, "two of the second node, with two processors each, and one more GPU"
    assert share_processors([4, 4], [1, 3], 3) == 2
    with pytest.raises(ConfigError, match=r"--devices 9 is more than the 8 processes"):
        share_processors([4, 4], None, 9)


def test_the_cause_of_a_failure_is_reported_not_its_consequences():
    class DiedError(Exception):
        """As Ray's own errors are."""

    DiedError.__module__ = "ray.train"
    lost, data = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed"), DataError("No.")
    whole = RuntimeError("Training failed")
    assert str(explain_failure({0: lost, 1: DiedError()}, 2, whole)).startswith("Process 1 of 2 died on its node. The others")
    assert explain_failure({0: lost, 1: data}, 2, whole) is data
    assert str(explain_failure({0: lost}, 2, whole)).startswith("Process 0 of 2 has lost the connection")
    assert explain_failure({0: lost, 1: ValueError("a defect")}, 2, whole) is whole
    started = explain_failure({}, 2, whole)
    assert isinstance(started, TrainingError)
    assert str(started) == "Ray could not start 2 processes: Training failed"


GUARDED = """
import subprocess, sys
from spacecl.runs.cluster import import_ray
print(import_ray().there)
print(subprocess.run([sys.executable, "-c", "import ray; print(ray.there)"], capture_output=True, text=True).stdout.strip())
"""


@pytest.mark.parametrize(("library", "there"), [("raise KeyError('libamd_smi.so')", "False"), ("pass", "True")])
def test_ray_is_imported_without_amdsmi_where_its_library_is_missing(tmp_path, library, there):
    (tmp_path / "amdsmi.py").write_text(f"print('There is no library.')\n{library}")
    (tmp_path / "ray.py").write_text("there = True\ntry:\n    import amdsmi\nexcept ImportError:\n    there = False\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", GUARDED], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    )
    assert [line for line in done.stdout.splitlines() if "library" not in line] == [there, there], done.stderr
