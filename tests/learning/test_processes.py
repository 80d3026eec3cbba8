"""Two real processes (gloo): the same widths, identical weights, moments of all that both have seen; lower precision."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import with_tests_on_path
from models import IMAGE, ConvNet

from spacecl import Learner


def learn(folder: Path, processes: int, precision: str = "32-true") -> list[dict]:
    """What each process ended with."""
    script = Path(__file__).with_name("learn_together.py")
    # Some virtual machines advertise AMX and then refuse its instructions, which lower precision would use.
    environment = {**with_tests_on_path(), "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    command = [sys.executable, str(script), str(processes), precision, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{processes}-{precision}-rank{rank}.json").read_text()) for rank in range(processes)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def alone(folder):
    return learn(folder, 1)[0]


@pytest.fixture(scope="module")
def together(folder):
    return learn(folder, 2)


def test_both_ranks_end_with_the_same_widths_and_identical_weights(together):
    first, second = together
    assert first["processes"] == second["processes"] == 2
    assert first["widths"] == second["widths"]
    assert first["digests"] == second["digests"]
    assert first["accuracy"] == second["accuracy"]
    assert first["unchanged"]
    assert second["unchanged"]


def test_moments_are_those_of_all_that_both_processes_have_seen(alone, together):
    assert together[0]["samples"] == alone["samples"]
    for found in together:
        for value, expected in zip(found["moments"], alone["moments"]):
            torch.testing.assert_close(torch.tensor(value), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert together[0]["moments"] == together[1]["moments"]


def test_what_two_processes_saved_one_can_load(folder, together):
    learner = Learner.load(folder / "model-2-32-true", ConvNet())
    assert learner.verify() == together[0]["digests"]
    assert learner.logits(torch.zeros(2, *IMAGE.shape[1:]), "0").shape == (2, 3)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_other_precision_forgets_nothing_either(folder, alone, precision):
    (found,) = learn(folder, 1, precision)
    assert found["unchanged"]
    assert found["unchanged_elsewhere"], "a learner in full precision answers otherwise"
    assert found["digests"] != alone["digests"], "the precision made no difference: was it used?"
