"""What a core, its seal and a saved learner know of all tasks together, compared with what each task has by itself."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import QUICK, teach
from models import IMAGE, VECTOR, ConvNet, chain, tasks

from spacecl import SPACE, Core, Learner, Task, disk, store
from spacecl.learning import learn_task as learn_task_module
from spacecl.learning.seal import extend_seal, has_seal, make_seal
from spacecl.learning.summary import Summary
from spacecl.methods.packnet import PackNet
from spacecl.methods.stl import STL
from spacecl.methods.wsn import WSN

NETWORKS = [(ConvNet, IMAGE), (chain, VECTOR)]


METHODS = [SPACE(variance=0.6), PackNet(), WSN(density=0.3), STL()]


@pytest.fixture(scope="module", params=METHODS, ids=lambda method: type(method).__name__)
def learner(request):
    return teach(ConvNet(), request.param, example=IMAGE, count=3)


def test_the_summary_of_a_core_is_that_of_all_its_tasks(learner):
    core = learner.core
    channels, recomputed = core.channels, replace(core)
    assert "summary" in core.__dict__  # it was kept up to date while tasks were learned
    assert "summary" not in recomputed.__dict__
    assert torch.equal(core.committed_units, torch.stack([task.units for task in core.tasks]).any(0))
    assert core.size() == recomputed.size()
    for name in core.shared:
        used = torch.zeros(channels.shapes[name], dtype=torch.bool)
        for number, task in enumerate(core.tasks):
            ones = {name: torch.ones(channels.shapes[name])}
            own = core.ownership.view(ones, number)[name].bool() & channels.mask(name, task.units)
            used |= own & (name not in task.private)
        assert torch.equal(core.used_positions(name), used)


def test_a_task_begins_with_the_norms_of_the_last_task_that_has_each_channel(learner):
    core, expected = learner.core, learner.core.blueprint.initial_tensors(3)
    channels = core.channels
    norms = {name for name in channels.private - channels.heads if expected[name].is_floating_point()}
    assert norms
    for task in core.tasks:
        own = {name: task.private[name] for name in norms}
        expected |= channels.scatter(own, task.units, {name: expected[name] for name in norms})
    begun = core.initial_tensors(3)
    assert all(torch.equal(begun[name], expected[name]) for name in norms)


def test_equal_norms_count_once():
    core = teach(ConvNet(), SPACE(variance=0.6), example=IMAGE, count=1).core
    twice = core.add(replace(core.tasks[0], private={name: tensor.clone() for name, tensor in core.tasks[0].private.items()}))
    assert twice.size() == core.size()
    other = {name: tensor + 1 for name, tensor in core.tasks[0].private.items()}
    assert core.add(replace(core.tasks[0], private=other)).size() > core.size()


def test_a_seal_is_broken_by_any_change_of_what_networks_depend_on(learner):
    core = learner.core
    seal = make_seal(core)
    assert has_seal(replace(core), seal, core)
    assert extend_seal(make_seal(replace(core, tasks=core.tasks[:-1])), core) == seal

    def broken(**changes):
        return not has_seal(replace(core, **changes), seal, core)

    for name in core.shared:
        used = core.used_positions(name)
        for at in used.nonzero()[:1]:
            changed = core.shared[name].clone()
            changed[tuple(at)] += 1
            assert broken(shared=core.shared | {name: changed})
        for at in (~used).nonzero()[:1]:  # free positions belong to nobody
            changed = core.shared[name].clone()
            changed[tuple(at)] += 1
            assert not broken(shared=core.shared | {name: changed})
    for name, tensor in core.tasks[1].private.items():
        task = replace(core.tasks[1], private=core.tasks[1].private | {name: tensor + 1})
        assert broken(tasks=(core.tasks[0], task, core.tasks[2]))
    task = replace(core.tasks[1], units=core.tasks[1].units.roll(1) if not core.tasks[1].units.all() else ~core.tasks[1].units)
    assert broken(tasks=(core.tasks[0], task, core.tasks[2]))
    assert broken(tasks=core.tasks[:2])
    assert broken(tasks=(core.tasks[1], core.tasks[0], core.tasks[2]))


def test_a_seal_is_broken_by_weights_that_are_taken_from_another_task_or_given_to_it():
    core = teach(ConvNet(), PackNet(), example=IMAGE, count=2).core
    seal = make_seal(core)
    for was, becomes in ((0, 1), (0, 255), (1, 0), (255, 0), (255, 1)):
        name, owner = next((name, owner) for name, owner in core.ownership.owners.items() if bool((owner == was).any()))
        changed = owner.clone()
        changed.view(-1)[int((owner.flatten() == was).nonzero()[0])] = becomes
        ownership = replace(core.ownership, owners=core.ownership.owners | {name: changed})
        assert not has_seal(replace(core, ownership=ownership), seal, core), (was, becomes)
    later = core.ownership.claim(2, {name: torch.ones_like(owner).bool() for name, owner in core.ownership.owners.items()})
    assert has_seal(replace(core, ownership=later), seal, core)


def test_a_seal_is_broken_by_a_selection_that_changes_for_any_task():
    core = teach(ConvNet(), WSN(density=0.3), example=IMAGE, count=3).core
    seal = make_seal(core)
    for number in range(3):
        name, rows = next(iter(core.ownership.selected.items()))
        changed = rows.clone()
        changed[number, 0] ^= 128
        ownership = replace(core.ownership, selected=core.ownership.selected | {name: changed})
        assert not has_seal(replace(core, ownership=ownership), seal, core), number
    later = core.ownership.claim(3, {name: torch.ones_like(tensor).bool() for name, tensor in core.shared.items()})
    assert has_seal(replace(core, ownership=later), seal, core)


def test_digests_of_all_tasks_are_compared_once_and_afterwards_the_seal(monkeypatch):
    learner = teach(chain(), SPACE(variance=0.6), example=VECTOR, count=2)
    counted, digest = [], Core.digest
    monkeypatch.setattr(Core, "digest", lambda core, number: counted.append(number) or digest(core, number))
    learner.learn(Task("third", tasks(VECTOR, 3)[2]), QUICK)
    assert counted == [2]
    counted.clear()
    monkeypatch.setattr(learn_task_module, "has_seal", lambda *args: False)
    learner.learn(Task("fourth", tasks(VECTOR, 4)[3]), QUICK)
    assert counted == [0, 1, 2, 3]


def test_learning_adds_one_task_to_the_summary_and_reads_no_other(monkeypatch):
    learner = teach(chain(), SPACE(variance=0.6), example=VECTOR, count=2)
    added, add = [], Summary.add
    monkeypatch.setattr(Summary, "add", lambda summary, *args: added.append(args[0]) or add(summary, *args))
    learner.learn(Task("third", tasks(VECTOR, 3)[2]), QUICK)
    assert len(added) == 1


def test_saving_again_writes_only_the_new_task_and_reads_none(tmp_path, monkeypatch):
    learner = teach(chain(), SPACE(variance=0.6), example=VECTOR, count=2)
    monkeypatch.setattr(store, "UNSETTLED", -1)
    learner.save(tmp_path)
    written, serialized = [], []
    write, serialize = disk.write_file, store.TensorFile.serialize
    monkeypatch.setattr(Path, "read_bytes", lambda file: pytest.fail(f"{file} is read"))
    monkeypatch.setattr(disk, "write_file", lambda file, *args, **how: written.append(file.name) or write(file, *args, **how))
    monkeypatch.setattr(store.TensorFile, "serialize", lambda file: serialized.append(file) or serialize(file))
    learner.learn(Task("third", tasks(VECTOR, 3)[2]), QUICK)
    learner.save(tmp_path)
    listed = store.read_manifest(tmp_path, dict)[1]
    assert written == [listed["core"].file, listed["task 2"].file, store.MANIFEST]
    assert len(serialized) == 2
    monkeypatch.undo()
    assert Learner.load(tmp_path, chain()).verify() == learner.verify()


@pytest.mark.parametrize("damage", ["changed", "removed", "link"])
def test_saving_again_mends_a_task_that_was_damaged_meanwhile(tmp_path, monkeypatch, damage):
    learner = teach(chain(), SPACE(variance=0.6), example=VECTOR, count=2)
    monkeypatch.setattr(store, "UNSETTLED", -1)
    learner.save(tmp_path)
    file = tmp_path / store.read_manifest(tmp_path, dict)[1]["task 0"].file
    content = file.read_bytes()
    if damage == "changed":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(file, (0, 0))  # however coarse the clock of the disk is
    else:
        file.unlink()
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(content[:-1] + b"x")
        file.symlink_to(tmp_path / "elsewhere")
    learner.save(tmp_path)
    assert Learner.load(tmp_path, chain()).verify() == learner.verify()


def test_another_folder_gets_all_tasks(tmp_path):
    learner = teach(chain(), SPACE(variance=0.6), example=VECTOR, count=2)
    learner.save(tmp_path / "one")
    learner.save(tmp_path / "two")
    assert Learner.load(tmp_path / "two", chain()).verify() == learner.verify()
    shutil.rmtree(tmp_path / "one")
    learner.save(tmp_path / "one")
    assert Learner.load(tmp_path / "one", chain()).verify() == learner.verify()


@pytest.mark.parametrize(("build", "example"), NETWORKS)
def test_a_learner_of_format_2_is_loaded_and_saved_in_the_present_one(tmp_path, build, example):
    """Its core's file had the units and the signatures of all tasks."""
    learner = teach(build(), SPACE(variance=0.6), example=example, count=2)
    learner.save(tmp_path)
    body, files = store.load(tmp_path, dict)
    for number in range(2):
        own = files[f"task {number}"]
        files["core"][f"keep.{number}"] = own.pop(".units")
        for name in [name for name in own if name.startswith(".signature.")]:
            files["core"][f"signature.{number}.{name.removeprefix('.signature.')}"] = own.pop(name)
        assert not [name for name in own if name.startswith(".")]
    store.save(tmp_path, {**body, "format": 2}, files)
    loaded = Learner.load(tmp_path, build())
    assert loaded.verify() == learner.verify()
    assert torch.equal(loaded.task_scores(tasks(example)[0][0]), learner.task_scores(tasks(example)[0][0]))
    loaded.save(tmp_path)
    assert "task 0" in store.read_manifest(tmp_path, dict)[1]
    assert not [name for name in store.load(tmp_path, dict)[1]["core"] if name.startswith(("keep", "signature"))]
