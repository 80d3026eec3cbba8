"""Runs that train in bfloat16: what they promise, and what is refused before training."""

import json
import os

import pytest
import torch
from helpers import run_spacecl
from lightning_fabric import Fabric
from lightning_fabric.strategies import FSDPStrategy
from models import VECTOR, chain, tasks
from process_helpers import SPACECL, digests, finish, kill_rank, start, wait_for_epochs
from run_helpers import make_settings, quiet

from spacecl import ConfigError, Learner, Recipe, StoreError, Task
from spacecl.runs.open_run import open_run
from spacecl.runs.resolve import resolve, to_command
from spacecl.runs.run import run

RUN = ["run", "permuted-digits", "--tasks", "2", "--epochs", "4", "--retrain-epochs", "2", "--device", "cpu", "--no-measure"]
LOW = ["--set", "precision=bf16-mixed"]
# Some virtual machines advertise AMX and then refuse its instructions, which lower precision would use.
SAFE = {"OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")}


def complete_run(out, *more):
    """The result of a run in a process of its own, and what it printed as errors and warnings."""
    done = run_spacecl(*RUN, *more, "--out", out, **SAFE)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "result.json").read_text()), done.stderr


@pytest.fixture(scope="module")
def low(tmp_path_factory):
    """The folder of a run in bfloat16."""
    folder = tmp_path_factory.mktemp("precision") / "low"
    _, err = complete_run(folder, *LOW)
    assert "Mixed Precision" not in err, "Fabric announces what the user has just said"
    return folder


def test_a_run_in_bfloat16_learns_with_other_bits_and_commits_networks_in_full_precision(low, tmp_path):
    result, (full, _) = json.loads((low / "result.json").read_text()), complete_run(tmp_path)
    assert result["config"]["precision"] == "bf16-mixed"
    assert digests(low) != [task["digest"] for task in full["tasks"]], "was it used?"
    assert abs(result["average_accuracy"] - full["average_accuracy"]) < 0.1
    learner = open_run(low).learner()
    learner.verify()
    assert {tensor.dtype for tensor in learner.core.shared.values()} == {torch.float32}


def test_precision_is_part_of_what_a_run_is(low, tmp_path):
    complete_run(tmp_path, *LOW)
    assert digests(tmp_path) == digests(low)
    done = run_spacecl(*RUN, "--out", low, **SAFE)
    assert done.returncode == 1
    assert "precision was 'bf16-mixed' and is '32-true'" in done.stderr
    settings = {"benchmark": "permuted-digits", "precision": "bf16-mixed", "device": "cpu"}
    assert to_command(resolve(settings))[-2:] == ["--set", 'precision="bf16-mixed"']


@pytest.mark.slow
def test_two_processes_in_bfloat16_are_killed_and_resumed_to_the_same_bits(tmp_path):
    finish(start(SPACECL, tmp_path / "whole", "--devices", "2", *LOW, **SAFE))
    process = start(SPACECL, tmp_path / "killed", "--devices", "2", *LOW, **SAFE)
    wait_for_epochs(tmp_path / "killed", 3)
    kill_rank(process, 1)
    finish(process, code=1)
    finish(start(SPACECL, tmp_path / "killed", "--devices", "2", *LOW, **SAFE))
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")


def test_a_checkpoint_is_not_resumed_in_another_precision(tmp_path):
    def stop(epoch):
        if epoch["epoch"] == 2:  # when the first is saved
            raise KeyboardInterrupt

    def teach(precision, **options):
        fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
        learner = Learner(chain(), example_input=VECTOR, fabric=fabric, progress=False)
        learner.learn(Task("a", tasks(VECTOR, 1)[0]), Recipe(epochs=2, retrain_epochs=1), checkpoint=tmp_path, **options)

    with pytest.raises(KeyboardInterrupt):
        teach("32-true", on_epoch=stop)
    with pytest.raises(StoreError, match="precision was 32-true and is 64-true"):
        teach("64-true")
    teach("32-true")


def test_unknown_precision_and_networks_that_cannot_have_it_are_refused_before_training(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="precision='16-mixed' must be one of 32-true, bf16-mixed"):
        make_settings(precision="16-mixed")
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\ndef network():\n    return torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Linear(8, 10)).double()"
    )
    settings = make_settings(precision="bf16-mixed", model=f"{file}:network")
    with pytest.raises(ConfigError, match=r"for networks in single precision, but 0\.weight is in double precision"):
        run(settings, tmp_path / "run", progress=False, print_line=quiet)
    assert not (tmp_path / "run" / "config.json").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    with pytest.raises(ConfigError, match="precision='bf16-mixed' needs a GPU that computes in bfloat16"):
        resolve({"benchmark": "permuted-digits", "precision": "bf16-mixed"})


def test_a_strategy_that_divides_a_network_is_refused():
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric._strategy = FSDPStrategy()  # which Fabric itself allows on GPUs only
    with pytest.raises(ConfigError, match=r'is FSDPStrategy, but every process .* whole network .* strategy="ddp"'):
        Learner(chain(), example_input=VECTOR, fabric=fabric)
