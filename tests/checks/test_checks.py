"""The checks of methods find what they look for: every one of them fails for a method that has the fault."""

import functools
import json
from pathlib import Path

import pytest

from spacecl import SpaceError
from spacecl.checks import accounting, learning, options, processes, suite, targets
from spacecl.checks.models import FAMILIES
from spacecl.checks.subject import CheckError, NotApplicableError, Subject
from spacecl.checks.suite import CHECKS, Check, run_checks
from spacecl.cli.main import main
from spacecl.learning.core import Core

FILE = Path(__file__).parent / "broken_methods.py"
CHAIN = FAMILIES["chain"]


@functools.cache
def subject(name):
    return Subject(f"{FILE}:{name}")


FAULTS = {
    "Forgetful": (learning.check_forgetting, "changed the networks of '0', but says that it does not forget"),
    "Pessimist": (learning.check_forgetting, "did not change the outputs of the first, but forgets is True"),
    "Unseeded": (functools.partial(learning.check_learning, family=CHAIN), "the same seed gave other bits"),
    "Tireless": (functools.partial(learning.check_resuming, family=CHAIN), "plan.. promises 2 epochs of a third task"),
    "Repetitive": (functools.partial(learning.check_resuming, family=CHAIN), "Two phases of one task are named 'train'"),
    "Untrained": (learning.check_commit, "Commit the tensors of the module that was trained"),
    "OneTrack": (functools.partial(targets.check_targets, kind="values"), r"the R² of a task of values is .*task\.loss"),
    "Boastful": (
        functools.partial(targets.check_targets, kind="labels"),
        "target_kinds has 'boxes'; there are classes, labels",
    ),
    "Thawing": (learning.check_inputs, "a layer that the user froze was trained"),
    "Careless": (options.check_options, "pace='much' was accepted"),
    "Silent": (options.check_help, "the class has no docstring"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_check_finds_the_fault_that_it_is_for(name, tmp_path):
    check, message = FAULTS[name]
    with pytest.raises(SpaceError, match=message):
        check(subject(name), folder=tmp_path)


def test_a_method_that_forgets_without_saying_so_fails_under_every_optimizer(tmp_path):
    for optimizer in ("sgd", "adamw"):
        with pytest.raises(SpaceError, match="changed the networks of '0'"):
            learning.check_protection(subject("Forgetful"), tmp_path, optimizer=optimizer)


def test_a_run_with_too_many_epochs_is_found(tmp_path):
    with pytest.raises(CheckError, match="took 8 epochs instead of 4"):
        processes.check_run(subject("Tireless"), tmp_path)


def test_only_the_kinds_that_a_method_claims_are_checked(tmp_path):
    with pytest.raises(NotApplicableError, match="target_kinds does not have labels"):
        targets.check_targets(subject("OneTrack"), tmp_path, kind="labels")


def test_a_wrong_size_is_found(tmp_path, monkeypatch):
    accounting.check_sizes(subject("Pessimist"), CHAIN, tmp_path)
    monkeypatch.setattr(Core, "size", lambda core, units=None: 0.5)
    with pytest.raises(CheckError, match=r"learner.size is 0.5; counted by hand it is 1.0"):
        accounting.check_sizes(subject("Pessimist"), CHAIN, tmp_path)


@pytest.mark.slow
def test_processes_that_end_with_different_memories_are_found(tmp_path):
    with pytest.raises(CheckError, match="different memories"):
        processes.check_two_processes(subject("Lonely"), tmp_path)


def test_a_plain_dataclass_is_not_asked_to_check_its_options(tmp_path):
    with pytest.raises(NotApplicableError, match=r"Declare it with @spacecl.options.options"):
        options.check_options(subject("Plain"), tmp_path)
    options.check_help(subject("Plain"), tmp_path)
    with pytest.raises(NotApplicableError, match="has no options"):
        options.check_options(subject("Forgetful"), tmp_path)


def test_a_mistake_in_a_method_is_reported_with_its_line_and_the_other_checks_go_on(monkeypatch):
    monkeypatch.setattr(suite, "CHECKS", (CHECKS[2], CHECKS[0], CHECKS[1]))
    failed, passed, skipped = run_checks(subject("Crashing"))
    line = 1 + FILE.read_text().splitlines().index("        return core.no_such_thing")
    assert failed.state == "fail"
    assert f"AttributeError: 'Core' object has no attribute 'no_such_thing' ({FILE}, line {line})" in failed.reason
    assert (passed.state, passed.reason, skipped.state) == ("pass", "", "skip")


def test_the_command_reports_every_check_and_fails_if_one_does(monkeypatch, capsys):
    monkeypatch.setattr(suite, "CHECKS", (CHECKS[1], Check("says the truth", learning.check_forgetting)))
    assert main(["check", f"{FILE}:Plain"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  Plain: A plain dataclass, whose options Python does not check"
    assert lines[3].startswith("skip  refuses wrong values of its options")
    assert lines[5].startswith("FAIL  says the truth")
    assert "says that it does not forget" in lines[6]
    assert lines[-1].startswith("0 passed, 1 failed, 1 skipped, in")
    assert main(["check", "finetune", "--json"]) == 0
    outcomes = json.loads(capsys.readouterr().out)["checks"]
    assert [outcome["state"] for outcome in outcomes] == ["skip", "pass"]
    for name, message in (("spce", "There is no method spce (did you mean space?)"), (f"{FILE}:X", "has no class X")):
        assert main(["check", name]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_passes_the_example_of_the_docs_in_every_check(capsys):
    assert main(["check", str(FILE.parents[2] / "examples" / "own_method.py:L2Anchor")]) == 0
    assert "0 failed" in capsys.readouterr().out
