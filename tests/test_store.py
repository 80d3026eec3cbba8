"""Saving and loading: every bit back, no pickles, damage and other architectures refused, crashes harmless."""

import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import shutil
import signal
from dataclasses import dataclass

import pytest
import torch
from helpers import teach
from models import FAMILIES, IMAGE, VECTOR, ConvNet, ResNet, chain, tasks
from torch import nn

from spacecl import SPACE, FineTune, Learner, Recipe, SpaceError, StoreError, Task, store
from spacecl.documents import digest_json

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")

QUICK = Recipe(epochs=1, retrain_epochs=1)
METHOD = SPACE(variance=0.8, samples=60)


def teach_quickly(model=None, example=VECTOR, count=2, **options):
    return teach(model, METHOD, example=example, count=count, recipe=QUICK, **options)


@pytest.fixture(scope="module")
def learner():
    """A learner with two tasks; do not teach it more."""
    return teach_quickly()


@pytest.fixture
def folder(learner, tmp_path):
    """The saved learner."""
    learner.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_learner_has_the_same_bits_and_learns_the_same(family, tmp_path):
    make, example, shared = FAMILIES[family]
    learner = teach_quickly(make(), example, shared=shared)
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, make())
    streams = tasks(example, 3)
    for number in range(2):
        assert torch.equal(loaded.logits(streams[0][0], f"task {number}"), learner.logits(streams[0][0], f"task {number}"))
    assert loaded.records == learner.records
    assert loaded.method == learner.method
    third = Task("third", streams[2])
    assert loaded.learn(third, QUICK).digest == learner.learn(third, QUICK).digest


def test_any_method_can_be_saved(tmp_path):
    learner = Learner(chain(), FineTune(), example_input=VECTOR)
    learner.learn(Task("one", tasks(VECTOR)[0]), QUICK)
    learner.save(tmp_path)
    assert isinstance(Learner.load(tmp_path, chain()).method, FineTune)


def test_a_learner_without_tasks_can_be_saved(tmp_path):
    Learner(chain(), SPACE(variance={"0": 0.9, "*": 0.8}), example_input=VECTOR).save(tmp_path)
    assert Learner.load(tmp_path, chain()).tasks == ()


def test_only_json_and_safetensors_are_written(folder):
    names = sorted(set(os.listdir(folder)) - {".lock"})  # empty, and stays
    assert {name.rpartition(".")[2] for name in names} == {"json", "safetensors"}
    for name in names:
        start = (folder / name).read_bytes()[:2]
        assert start not in (b"PK", b"\x80\x02", b"\x80\x04"), "a zip or pickle"


def test_saving_again_replaces_the_old_version(tmp_path):
    learner = teach_quickly(count=1)
    learner.save(tmp_path)
    learner.learn(Task("more", tasks(VECTOR, 2)[1]), QUICK)
    learner.save(tmp_path)
    assert Learner.load(tmp_path, chain()).tasks == ("task 0", "more")
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


def test_another_architecture_is_refused_with_the_difference(tmp_path):
    teach_quickly(ConvNet(), IMAGE).save(tmp_path)
    with pytest.raises(StoreError, match=r"another architecture: conv1.bias is float32 \[8\] there and float32 \[9\] here"):
        Learner.load(tmp_path, ConvNet(9))
    with pytest.raises(StoreError, match="is missing here"):
        Learner.load(tmp_path, ResNet())

    class Other(ConvNet):
        def forward(self, x):
            return super().forward(torch.tanh(x))

    with pytest.raises(StoreError, match="another architecture: the tensors are the same, but forward"):
        Learner.load(tmp_path, Other())


def damage(folder, name, change):
    files = [folder / "spacecl.json"] if name == "manifest" else list(folder.glob("*.safetensors"))
    content = json.loads((folder / "spacecl.json").read_text())["content"]["files"]
    file = files[0] if name == "manifest" else folder / content[name]["file"]
    data = bytearray(file.read_bytes())
    file.write_bytes(bytes(change(data)))
    return file.name


def flip(data):
    data[len(data) // 2] ^= 1
    return data


@pytest.mark.parametrize("name", ["core", "task 1"])
def test_a_truncated_or_changed_file_is_named(learner, folder, name):
    file = damage(folder, name, lambda data: data[:-7])
    with pytest.raises(StoreError, match=rf"{file} \({name}\) is truncated: \d+ bytes instead of \d+"):
        Learner.load(folder, chain())
    learner.save(folder)
    file = damage(folder, name, flip)
    with pytest.raises(StoreError, match=rf"{file} \({name}\) was changed after it was written"):
        Learner.load(folder, chain())
    (folder / file).unlink()
    with pytest.raises(StoreError, match=rf"{file} \({name}\) is missing"):
        Learner.load(folder, chain())


def test_a_damaged_manifest_is_named(folder):
    manifest = folder / "spacecl.json"
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    with pytest.raises(StoreError, match="damaged or truncated"):
        Learner.load(folder, chain())
    manifest.write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(StoreError, match="was changed after it was written"):
        Learner.load(folder, chain())
    manifest.unlink()
    with pytest.raises(StoreError, match="has no saved learner"):
        Learner.load(folder, chain())


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory):
    """The folder of a learner with one task, and the learner after another one."""
    folder, learner = tmp_path_factory.mktemp("version"), teach_quickly(count=1)
    learner.save(folder)
    learner.learn(Task("more", tasks(VECTOR, 2)[1]), QUICK)
    return folder, learner


@pytest.mark.parametrize("at", range(6))
def test_a_crash_at_any_step_of_saving_leaves_a_complete_version(two_versions, tmp_path, monkeypatch, at):
    """Fail at the n-th sync or rename of a save: the old version or the new one can be loaded, never a mix."""
    old, learner = two_versions
    shutil.copytree(old, tmp_path, dirs_exist_ok=True)
    calls = {"left": at}

    def fail_at(function):
        def call(*args):
            if calls["left"] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            calls["left"] -= 1
            return function(*args)

        return call

    monkeypatch.setattr(os, "fsync", fail_at(os.fsync))
    monkeypatch.setattr(os, "replace", fail_at(os.replace))
    with pytest.raises(StoreError, match="No space left"):
        learner.save(tmp_path)
    monkeypatch.undo()
    assert Learner.load(tmp_path, chain()).tasks in (("task 0",), ("task 0", "more"))
    learner.save(tmp_path)
    assert Learner.load(tmp_path, chain()).tasks == ("task 0", "more")
    assert not list(tmp_path.glob(".*-tmp"))


def save_forever(folder):
    torch.set_num_threads(1)
    number = 0
    while True:
        number += 1
        store.save(
            folder, {"number": number}, {"a": {"x": torch.full((50_000,), float(number))}, "b": {"y": torch.full((9,), number)}}
        )


def test_a_killed_save_leaves_one_complete_version(tmp_path):
    """A real process, killed at random moments while it saves."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=save_forever, args=(tmp_path,))
    process.start()
    while not (tmp_path / "spacecl.json").exists():
        process.join(0.05)
    process.join(0.3)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    body, files = store.load(tmp_path, dict)
    assert bool((files["a"]["x"] == body["number"]).all())
    assert bool((files["b"]["y"] == body["number"]).all())


def test_pickles_are_never_read(folder, monkeypatch):
    """Not even a pickle that the manifest lists with its size and checksum."""
    document = json.loads((folder / "spacecl.json").read_text())
    entry = document["content"]["files"]["core"]
    torch.save(nn.Linear(2, 2), folder / entry["file"])
    data = (folder / entry["file"]).read_bytes()
    entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    document["sha256"] = digest_json(document["content"])
    (folder / "spacecl.json").write_text(json.dumps(document))
    for module in (pickle, torch):
        monkeypatch.setattr(module, "load", lambda *a, **k: pytest.fail("a pickle was loaded"))
    with pytest.raises(StoreError, match=r"\(core\) is not a safetensors file"):
        Learner.load(folder, chain())


def test_files_of_others_are_left_alone(learner, folder):
    (folder / "mine.safetensors").write_bytes(b"precious")
    learner.save(folder)
    assert (folder / "mine.safetensors").read_bytes() == b"precious"


def test_another_stride_or_slope_is_another_architecture(tmp_path):
    class Strided(ConvNet):
        def __init__(self, slope=0.1):
            super().__init__()
            self.slope = slope

        def forward(self, x):
            return super().forward(nn.functional.leaky_relu(x, self.slope))

    teach_quickly(Strided(), IMAGE, count=1).save(tmp_path)
    assert Learner.load(tmp_path, Strided()).tasks == ("task 0",)
    with pytest.raises(StoreError, match="forward"):
        Learner.load(tmp_path, Strided(0.9))
    with pytest.raises(StoreError, match=r"float32 .* there and float64 .* here"):
        Learner.load(tmp_path, Strided().double())


def test_a_method_of_the_users_own_is_passed_when_loading(tmp_path):
    @dataclass(frozen=True)
    class Mine(FineTune):
        pass

    learner = Learner(chain(), Mine(), example_input=VECTOR)
    learner.learn(Task("one", tasks(VECTOR)[0]), QUICK)
    learner.save(tmp_path)
    without = Learner.load(tmp_path, chain())
    assert torch.equal(without.logits(tasks(VECTOR)[0][0], "one"), learner.logits(tasks(VECTOR)[0][0], "one"))
    with pytest.raises(SpaceError, match="Mine"):
        without.learn(Task("two", tasks(VECTOR)[1]), QUICK)
    assert Learner.load(tmp_path, chain(), method=Mine()).learn(Task("two", tasks(VECTOR)[1]), QUICK).name == "two"


def test_a_learner_without_tasks_learns_the_same_after_loading(tmp_path):
    learner = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR)
    learner.save(tmp_path)
    loaded, data = Learner.load(tmp_path, chain()), tasks(VECTOR)[0]
    assert loaded.learn(Task("one", data), QUICK).digest == learner.learn(Task("one", data), QUICK).digest
