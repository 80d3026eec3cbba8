"""One conformance suite for all methods, found by themselves: the checks of `spacecl check`, and what is spacecl's alone."""

import functools
import os
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT
from models import FAMILIES

import spacecl
from spacecl.checks import models
from spacecl.checks.learning import check_commit, check_networks
from spacecl.checks.models import Family
from spacecl.checks.processes import learn_together
from spacecl.checks.subject import NotApplicableError, Subject
from spacecl.checks.suite import CHECKS, TWO_PROCESSES
from spacecl.methods import METHODS

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")

make_subject = functools.cache(Subject)  # each teaches its learners once
every_method = pytest.mark.parametrize("method", [name.lower() for name in METHODS])
and_the_example = pytest.mark.parametrize(
    "method", [*(name.lower() for name in METHODS), pytest.param(f"{ROOT}/examples/own_method.py:L2Anchor", id="L2Anchor")]
)


def test_every_method_is_exported():
    assert all(getattr(spacecl, name) is method for name, method in METHODS.items())


@and_the_example
@pytest.mark.parametrize("check", [check for check in CHECKS if check is not TWO_PROCESSES], ids=lambda check: check.title)
def test_a_method_passes_every_check(check, method, tmp_path):
    try:
        check.run(subject=make_subject(method), folder=tmp_path)
    except NotApplicableError as reason:
        pytest.skip(str(reason))


@every_method
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in models.FAMILIES])
def test_a_method_attaches_to_every_family_of_models(method, family, tmp_path):
    check_networks(make_subject(method), Family(*FAMILIES[family]), tmp_path)


@every_method
def test_what_is_committed_is_what_was_trained_exactly(method, tmp_path):
    if method == "hat":  # gates are nearly, then wholly, open or shut
        check_commit(make_subject(method), tmp_path, compressibility=0.01)
    else:
        check_commit(make_subject(method), tmp_path, tolerance=0.0)


@pytest.mark.parametrize(
    ("method", "size"), [("stl", 3.0), ("lwf", 1.0), ("joint", 1.0), ("finetune", None), ("ewc", None), ("ucb", None)]
)
@pytest.mark.parametrize("backbone", models.FAMILIES)
def test_methods_that_do_not_prune_have_the_size_of_what_they_store(method, size, backbone):
    """The full network, or one for every task; where tasks have norms of their own, those count for each."""
    learner = make_subject(method).teach(models.FAMILIES[backbone])
    counts = {name: p.numel() for name, p in learner.full().named_parameters() if not name.startswith(f"{learner.head}.")}
    norms = sum(counts[name] for name in learner.core.channels.private if name in counts) / sum(counts.values())
    assert learner.size == pytest.approx(1 + 2 * norms if size is None else size)


def test_what_methods_keep_beside_their_networks_is_reported():
    kept = {name: make_subject(name.lower()).teach(models.FAMILIES["chain"]).storage for name in METHODS}
    weights = kept["SPACE"]["weights"]
    assert kept["EWC"]["memory"] == 2 * weights, "an importance and an anchor for each weight"
    assert kept["UCB"]["memory"] == weights, "a deviation for each weight"
    assert kept["PackNet"]["masks"] > weights / 4, "a byte for each weight, and units"
    assert kept["WSN"]["masks"] < weights / 4, "a bit for each weight and task, and units"
    assert 0.8 * weights < kept["WSN"]["memory"] < weights, "a score for each weight that is no bias"
    assert kept["STL"]["own"] > 3 * weights
    assert all(kept[name]["memory"] == 0 for name in ("SPACE", "FineTune", "LwF", "HAT", "PackNet"))


def test_methods_learn_in_two_processes_as_one(tmp_path):
    """All methods in two processes: both end with the same bits, and those that never forget have not."""
    endings = learn_together([name.lower() for name in METHODS], tmp_path)
    assert len({ending["seen"] for ending in endings["ewc"]}) == 2, "each process looks at examples of its own"
    for name, (first, second) in endings.items():
        assert (first["digests"], first["memory"]) == (second["digests"], second["memory"])
        assert first["unchanged"] is not make_subject(name).kind.forgets


def test_a_new_method_is_one_file_and_the_command_line_finds_it(tmp_path):
    """In a copy of the package, so that nothing is left behind."""
    shutil.copytree(ROOT / "src" / "spacecl", tmp_path / "spacecl")
    (tmp_path / "spacecl" / "methods" / "freezefirst.py").write_text(
        "from ..learning.method import Learned, Method\n"
        "from ..options import PositiveInt, option, options\n\n\n"
        "@options\n"
        "class FreezeFirst(Method):\n"
        '    "Learn features with the first task only."\n\n'
        '    patience: PositiveInt = option(default=3, help="a number that nobody reads")\n\n'
        "    def learn(self, core, task):\n"
        "        module = core.blueprint.build(core.initial_tensors(task.classes))\n"
        "        frozen = core.frozen_positions('subnet')\n"
        "        history = task.trainer.fit(module, task.train, task.valid, freeze=frozen)\n"
        "        return Learned(core.commit(core.blueprint.extract_tensors(module), core.channels.all_units()), history)\n"
    )
    arguments = ["run", "permuted-digits", "--method", "freezefirst", "--tasks", "2", "--limit", "20", "--out", "out"]
    training = ["--epochs", "1", "--retrain-epochs", "0", "--quiet", "--no-measure", "--device", "cpu"]
    commands = {
        "All results are in": [*arguments, *training],
        "FreezeFirst": ["report", "out"],
        "nobody reads": ["run", "--help"],
    }
    for expected, command in commands.items():
        done = subprocess.run(
            [sys.executable, "-m", "spacecl", *command],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout, done.stdout
