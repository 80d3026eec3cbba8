"""One conformance suite for all methods, found by themselves."""

import copy
import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, with_tests_on_path
from models import FAMILIES, tasks

import spacecl
from spacecl import ConfigError, Learner, Recipe, Task
from spacecl.methods import METHODS
from spacecl.runs import run
from spacecl.runs.costs import multiply_adds
from spacecl.runs.resolve import resolve
from spacecl.structure.memory_format import to_memory_format

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")

QUICK = Recipe(epochs=2, retrain_epochs=1)
BACKBONES = ["chain", "convnet", "resnet"]
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
every_backbone = pytest.mark.parametrize("backbone", BACKBONES)


def begun(method, backbone, **options):
    make, example, _ = FAMILIES[backbone]
    torch.manual_seed(0)
    return Learner(make(), method(**options), example_input=example), tasks(example, 3)


@functools.cache
def _taught(method, backbone, count):
    learner, stream = begun(method, backbone) if count == 1 else (copy.copy(_taught(method, backbone, count - 1)), None)
    stream = stream or tasks(FAMILIES[backbone][1], 3)
    learner.learn(Task(str(count - 1), stream[count - 1]), QUICK)
    return learner


def taught(method, backbone, count=3):
    """A learner of a method with some tasks, trained once for all tests, which may learn more or change it; and inputs."""
    return copy.copy(_taught(method, backbone, count)), tasks(FAMILIES[backbone][1], 3)[0][0]


def test_every_method_is_exported():
    assert all(getattr(spacecl, name) is method for name, method in METHODS.items())


@every_method
@every_backbone
def test_a_method_learns_predicts_saves_and_repeats_itself(method, backbone, tmp_path):
    learner, x = taught(method, backbone)
    answers = [learner.predict(x, task) for task in learner.tasks]
    assert all(answer.shape == (90,) and int(answer.max()) < 3 for answer in answers)
    assert learner.verify() == {name: record.digest for name, record in learner.records.items()}, "predicting changed something"
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, FAMILIES[backbone][0]())
    assert all(torch.equal(loaded.logits(x, task), learner.logits(x, task)) for task in learner.tasks)
    assert (loaded.size, loaded.storage, loaded.method) == (learner.size, learner.storage, learner.method)
    again, stream = begun(method, backbone)
    for number, data in enumerate(stream):
        again.learn(Task(str(number), data), QUICK)
    assert again.verify() == learner.verify(), "the same seed gave other bits"
    assert again.storage == learner.storage


@every_method
@every_backbone
def test_a_method_goes_on_in_the_middle_to_the_same_bits(method, backbone, tmp_path):
    """After a crash in every epoch of the third task, in a learner that was loaded from disk each time."""
    undisturbed, _ = taught(method, backbone)
    learner, _ = taught(method, backbone, count=2)
    stream = tasks(FAMILIES[backbone][1], 3)
    learner.save(tmp_path / "saved")
    epochs = sum(learner.method.plan(QUICK, 2).values())
    assert epochs >= 2
    for crash in range(1, epochs + 1):
        learner = Learner.load(tmp_path / "saved", FAMILIES[backbone][0]())
        if method.needs_data:
            for number, data in enumerate(stream[:2]):
                learner.remember(Task(str(number), data))
        seen = []

        def stop(row, seen=seen, crash=crash):
            seen.append(row)
            if len(seen) == crash:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            learner.learn(Task("2", stream[2]), QUICK, checkpoint=tmp_path / "kept", on_epoch=stop)
        assert learner.tasks == ("0", "1"), "an interrupted step changed something"
    record = learner.learn(Task("2", stream[2]), QUICK, checkpoint=tmp_path / "kept")
    assert learner.verify() == undisturbed.verify()
    assert len(record.history) == epochs


@every_method
@pytest.mark.parametrize("family", FAMILIES)
def test_a_method_attaches_to_every_family_of_models(method, family):
    make, example, shared = FAMILIES[family]
    torch.manual_seed(0)
    learner = Learner(make(), method(), example_input=example, shared=shared)
    stream = tasks(example, 2)
    for number, data in enumerate(stream):
        learner.learn(Task(str(number), data), Recipe(epochs=1, retrain_epochs=1))
    x = stream[0][0][:7]
    for task in learner.tasks:
        with torch.no_grad():
            assert torch.equal(learner.subnet(task)(to_memory_format(x, learner.channels_last)), learner.logits(x, task))


@every_method
def test_a_method_says_truly_whether_it_forgets(method):
    learner, _ = taught(method, "convnet", count=1)
    first, second, _ = tasks(FAMILIES["convnet"][1], 3)
    before = learner.logits(first[0], "0")
    learner.learn(Task("1", second), QUICK)
    assert torch.equal(learner.logits(first[0], "0"), before) is not method.forgets


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("method", [m for m in METHODS.values() if not m.forgets], ids=lambda m: m.__name__)
def test_methods_that_do_not_forget_hold_to_it_under_momentum_and_weight_decay(method, optimizer):
    learner, stream = begun(method, "resnet")
    recipe = Recipe(epochs=2, retrain_epochs=1, optimizer=optimizer, lr=0.01, weight_decay=0.1, keep="last")
    answers = {}
    for number, data in enumerate(stream):
        learner.learn(Task(str(number), data), recipe)
        answers[str(number)] = learner.logits(stream[0][0], str(number))
        assert all(torch.equal(learner.logits(stream[0][0], task), logits) for task, logits in answers.items())


@every_method
def test_what_is_committed_is_what_was_trained(method):
    """The committed network's accuracy is that of the epoch that was chosen, though a coarse optimiser pulls at all weights."""
    learner, _ = begun(method, "convnet", **({"compressibility": 0.01} if method.__name__ == "HAT" else {}))
    recipe = Recipe(epochs=4, retrain_epochs=2, optimizer="sgd", lr=0.1, weight_decay=0.01)
    for number, (x, y) in enumerate(tasks(FAMILIES["convnet"][1], 3, examples=1000)):
        record = learner.learn(Task(str(number), (x[:300], y[:300]), valid=(x[300:], y[300:])), recipe)
        last = record.history[-1]["phase"]
        best = max(row["accuracy"] for row in record.history if row["phase"] == last)
        if method.needs_data and number:
            continue  # its epoch is chosen on the data of all tasks
        near = 0.02 if method.__name__ == "HAT" else 0  # gates are nearly, then wholly, open or shut
        assert record.accuracy == pytest.approx(best, abs=near)


@every_method
@every_backbone
def test_sizes_and_operations_are_those_of_the_networks_themselves(method, backbone):
    """Counted here by hand, from the networks that the learner hands out."""
    learner, _ = taught(method, backbone)
    example, full = FAMILIES[backbone][1], learner.full()
    head = learner.core.blueprint.head
    networks = {task: learner.subnet(task) for task in learner.tasks}
    for task, network in networks.items():
        assert learner.records[task].parameters == sum(p.numel() for p in network.parameters())
        widths = learner.records[task].widths
        if list(widths.values()) == list(learner.widths.values()):
            assert multiply_adds(network, example) == multiply_adds(full, example), "nothing was removed, so nothing is saved"
        else:
            assert multiply_adds(network, example) < multiply_adds(full, example)
    counted = {name: p.numel() for name, p in full.named_parameters() if not name.startswith(f"{head}.")}
    core = learner.core
    places = {name: torch.arange(size).reshape(core.channels.shapes[name]) for name, size in counted.items()}
    used = 0
    for name, numbers in places.items():
        values, union = [], set()
        for number, network in enumerate(networks.values()):
            weight = network.get_parameter(name).detach()
            if name in core.tasks[number].private:
                values += [] if any(torch.equal(weight, other) for other in values) else [weight]
            else:
                where = core.channels.gather({name: numbers}, core.tasks[number].units)[name]
                assert where.shape == weight.shape, "the network has these positions and no others"
                union |= set(
                    where[core.ownership.owners[name] <= number].tolist()
                    if name in core.ownership.masks
                    else where.flatten().tolist()
                )
        used += len(union) + sum(weight.numel() for weight in values)
    assert learner.size == pytest.approx(used / sum(counted.values()))
    if method in (spacecl.STL, spacecl.FineTune, spacecl.EWC, spacecl.UCB, spacecl.LwF, spacecl.Joint):
        norms = sum(counted[name] for name in core.channels.private if name in counted) / sum(counted.values())
        of_each_task = {spacecl.STL: 3.0, spacecl.LwF: 1.0, spacecl.Joint: 1.0}.get(method, 1 + 2 * norms)
        assert learner.size == pytest.approx(of_each_task)
    assert set(learner.storage) == {"weights", "own", "masks", "memory", "signatures"}


def test_what_methods_keep_beside_their_networks_is_reported():
    kept = {name: taught(method, "chain")[0].storage for name, method in METHODS.items()}
    weights = kept["SPACE"]["weights"]
    assert kept["EWC"]["memory"] == 2 * weights, "an importance and an anchor for each weight"
    assert kept["UCB"]["memory"] == weights, "a deviation for each weight"
    assert kept["PackNet"]["masks"] > weights / 4, "a byte for each weight, and units"
    assert kept["STL"]["own"] > 3 * weights
    assert all(kept[name]["memory"] == 0 for name in ("SPACE", "FineTune", "LwF", "HAT", "PackNet"))


@every_method
def test_a_method_runs_from_the_command_line_and_comes_back_from_a_crash(method, tmp_path):
    name = method.__name__.lower()
    given = {"benchmark": "permuted-digits", "method": name, "tasks": 2, "limit": 20, "device": "cpu"}
    settings = resolve(given | {"train": {"epochs": 1, "retrain_epochs": 1}})
    result = run.run(settings, tmp_path / "whole", print_line=lambda text: None)

    def stop(text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(settings, tmp_path / "stopped", print_line=stop)  # when the first task is done
    again = run.run(settings, tmp_path / "stopped", print_line=lambda text: None)
    assert [task["digest"] for task in again["tasks"]] == [task["digest"] for task in result["tasks"]]
    assert again["accuracy_matrix"] == result["accuracy_matrix"]
    epochs = sum(sum(task["epochs"].values()) for task in result["tasks"])
    assert epochs == 4, "every method has the same budget"
    assert result["forgetting"] >= 0


@every_method
def test_a_method_takes_models_in_double_precision_frozen_backbones_and_numbers_of_any_library(method, tmp_path):
    make, example, _ = FAMILIES["chain"]
    first, second, _ = tasks(example, 3)
    learner = Learner(make().double(), method(), example_input=example.double())
    for number, (x, y) in enumerate((first, second)):
        learner.learn(Task(str(number), (x.double(), y)), QUICK)
    assert learner.logits(first[0].double(), "0").dtype == torch.float64
    model = make()
    for parameter in [*model[0].parameters(), *model[2].parameters()]:
        parameter.requires_grad_(False)
    given = [p.detach().clone() for p in model.parameters()]
    options = {f.name: np.float32(f.default) for f in fields(method) if type(f.default) is float}
    learner = Learner(model, method(**options), example_input=example)
    learner.learn(Task("0", first), QUICK)
    learner.learn(Task("1", second), QUICK, checkpoint=tmp_path / "kept")
    learner.save(tmp_path / "saved")
    assert all(torch.equal(a, b) for a, b in zip(given, model.parameters())), "the user's own model was changed"
    if method not in (spacecl.SPACE, spacecl.HAT):  # which are narrower
        assert torch.equal(learner.subnet("1")[0].weight, given[0])


@every_method
def test_no_number_may_be_infinite(method):
    for option in fields(method):
        if type(option.default) is float:
            with pytest.raises(ConfigError, match=option.name):
                method(**{option.name: float("inf")})


@every_method
def test_a_learner_goes_on_with_no_other_method_than_it_had(method, tmp_path):
    learner, _ = taught(method, "chain")
    learner.save(tmp_path)
    other = spacecl.FineTune() if method is not spacecl.FineTune else spacecl.SPACE()
    with pytest.raises(
        ConfigError, match=f"was learned with {method.__name__}; it cannot continue with {type(other).__name__}"
    ):
        Learner.load(tmp_path, FAMILIES["chain"][0](), method=other)
    Learner.load(tmp_path, FAMILIES["chain"][0](), method=method())


@every_method
def test_every_option_is_checked_when_it_is_given(method):
    for option in fields(method):
        with pytest.raises(ConfigError, match=f"Invalid {method.__name__} options: {option.name}='much' must be"):
            method(**{option.name: "much"})


def test_methods_learn_in_two_processes_as_one(tmp_path):
    """All methods in two processes: both end with the same bits, and those that never forget have not."""
    script = Path(__file__).parent / "methods_together.py"
    done = subprocess.run(
        [sys.executable, script, str(tmp_path)], capture_output=True, text=True, timeout=600, env=with_tests_on_path()
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first.keys() == METHODS.keys()
    assert {name: found["memory"] for name, found in first.items()} == {name: f["memory"] for name, f in second.items()}
    assert len({found["seen"] for found in (first["EWC"], second["EWC"])}) == 2, "each process looks at examples of its own"
    assert {name: found["digests"] for name, found in first.items()} == {name: f["digests"] for name, f in second.items()}
    for name, found in first.items():
        assert found["unchanged"] is not METHODS[name].forgets


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
