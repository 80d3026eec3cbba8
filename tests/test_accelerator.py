"""The life of a learner on an accelerator that refuses to mix devices, in a process of its own."""

import os
import subprocess
import sys

import pytest
from helpers import ROOT


@pytest.mark.slow
def test_learners_live_on_an_accelerator():
    environment = {**os.environ, "SPACECL_SHAM": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/accelerator"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
