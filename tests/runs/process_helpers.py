"""Commands in processes of their own that tests watch, kill and resume."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SPACECL = [sys.executable, "-m", "spacecl"]
RUN = ["run", "permuted-digits", "--tasks", "2", "--limit", "60", "--epochs", "40", "--retrain-epochs", "20"]
QUIET = ["--device", "cpu", "--quiet", "--no-measure"]


def start(command, out, *more, **variables) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **variables}
    arguments = [*command, *RUN, *QUIET, "--out", str(out), *more]
    return subprocess.Popen(
        arguments, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    )


def finish(process: subprocess.Popen, code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=900)
    assert process.returncode == code, f"{out}\n{err}"
    return out, err


def read(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def digests(folder: Path) -> list[str]:
    return [task["digest"] for task in read(folder)["tasks"]]


def list_epochs(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    return [row for row in map(json.loads, lines) if row["kind"] == "epoch"]


def wait_for_epochs(folder: Path, count: int) -> None:
    for _ in range(12000):
        if len(list_epochs(folder)) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{len(list_epochs(folder))} epochs after ten minutes")


def kill_rank(process: subprocess.Popen, rank: int) -> None:
    """Kill one of the processes that a command has started."""
    for child in list_children(process):
        environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in environment:
            os.kill(int(child), signal.SIGKILL)
            return
    raise AssertionError(f"no process has rank {rank}")


def list_children(process: subprocess.Popen) -> list[str]:
    file = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return file.read_text().split() if file.exists() else []


def kill_all(process: subprocess.Popen) -> None:
    """Kill the process that a user has started; those that it has started notice, and end."""
    children = list_children(process)
    process.kill()
    process.communicate()
    for _ in range(100):
        if not any(Path(f"/proc/{child}").exists() for child in children):
            return
        time.sleep(0.1)
    raise AssertionError("the processes did not notice that the one that had started them was killed")


CLUSTER = """
import sys
from spacecl.runs.cluster import import_ray
import_ray()
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "wait": False})
cluster.add_node(num_cpus=1, wait=False)
cluster.wait_for_nodes(timeout=600)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@contextlib.contextmanager
def ray_cluster():
    """The address of a cluster of two nodes on this machine."""
    if importlib.util.find_spec("ray") is None:  # not imported here: see `import_ray`
        pytest.skip("Ray is not installed")
    environment = {**os.environ, "RAY_TMPDIR": "/tmp", "RAY_USAGE_STATS_ENABLED": "0"}
    environment["RAY_worker_niceness"] = "0"  # as nice as the tests: else a busy machine gives Ray's processes no time
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    for _ in range(3):  # Ray gives its own processes 30 seconds to start, which a busy machine may not have
        cluster = subprocess.Popen([sys.executable, "-c", CLUSTER], env=environment, **pipes)
        address = cluster.stdout.readline().decode().strip()
        try:
            if address:
                yield address
                return
        finally:
            cluster.communicate(timeout=600)
    pytest.skip("Ray cannot start a cluster on this machine now, three times in a row")
