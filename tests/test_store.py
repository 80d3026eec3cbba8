"""Saving and loading: every bit back, nothing by pickle, damage and other architectures refused, crashes harmless."""

import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import signal
from dataclasses import dataclass

import pytest
import torch
from models import FAMILIES, IMAGE, ConvNet, ResNet, chain, tasks
from torch import nn

from spacecl import SPACE, FineTune, Learner, Recipe, StoreError, Task, store
from spacecl.documents import digest_json

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")

QUICK = Recipe(epochs=1, retrain_epochs=1)
VECTOR = torch.zeros(1, 6)


def taught(model=None, example=VECTOR, count=2, **options):
    learner = Learner(model or chain(), SPACE(variance=0.8, samples=60), example_input=example, **options)
    for number, data in enumerate(tasks(example, count)):
        learner.learn(Task(f"task {number}", data), QUICK)
    return learner


@pytest.mark.parametrize("family", FAMILIES)
def test_a_learner_comes_back_bit_for_bit_and_learns_on_alike(family, tmp_path):
    make, example, shared = FAMILIES[family]
    learner = taught(make(), example, shared=shared)
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


def test_an_untaught_learner_can_be_saved(tmp_path):
    Learner(chain(), SPACE(variance={"0": 0.9, "*": 0.8}), example_input=VECTOR).save(tmp_path)
    assert Learner.load(tmp_path, chain()).tasks == ()


def test_only_json_and_safetensors_are_written(tmp_path):
    taught().save(tmp_path)
    names = sorted(set(os.listdir(tmp_path)) - {".lock"})  # empty, and stays
    assert {name.rpartition(".")[2] for name in names} == {"json", "safetensors"}
    for name in names:
        start = (tmp_path / name).read_bytes()[:2]
        assert start not in (b"PK", b"\x80\x02", b"\x80\x04"), "a zip or pickle"


def test_saving_again_replaces_what_was_there(tmp_path):
    learner = taught(count=1)
    learner.save(tmp_path)
    learner.learn(Task("more", tasks(VECTOR, 2)[1]), QUICK)
    learner.save(tmp_path)
    assert Learner.load(tmp_path, chain()).tasks == ("task 0", "more")
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


def test_another_architecture_is_refused_by_what_differs(tmp_path):
    taught(ConvNet(), IMAGE).save(tmp_path)
    with pytest.raises(StoreError, match=r"another architecture: conv1.bias is float32 \[8\] there and float32 \[9\] here"):
        Learner.load(tmp_path, ConvNet(9))
    with pytest.raises(StoreError, match="is missing here"):
        Learner.load(tmp_path, ResNet())

    class Other(ConvNet):
        def forward(self, x):
            return super().forward(torch.tanh(x))

    with pytest.raises(StoreError, match="another architecture: the tensors are the same, but forward"):
        Learner.load(tmp_path, Other())


def damaged(folder, name, change):
    files = [folder / "spacecl.json"] if name == "manifest" else list(folder.glob("*.safetensors"))
    content = json.loads((folder / "spacecl.json").read_text())["content"]["files"]
    file = files[0] if name == "manifest" else folder / content[name]["file"]
    data = bytearray(file.read_bytes())
    file.write_bytes(bytes(change(data)))
    return file.name


def flipped(data):
    data[len(data) // 2] ^= 1
    return data


@pytest.mark.parametrize("name", ["core", "task 1"])
def test_a_truncated_or_changed_file_is_named(tmp_path, name):
    taught().save(tmp_path)
    file = damaged(tmp_path, name, lambda data: data[:-7])
    with pytest.raises(StoreError, match=rf"{file} \({name}\) is truncated: \d+ bytes instead of \d+"):
        Learner.load(tmp_path, chain())
    taught().save(tmp_path)
    file = damaged(tmp_path, name, flipped)
    with pytest.raises(StoreError, match=rf"{file} \({name}\) was changed after it was written"):
        Learner.load(tmp_path, chain())
    (tmp_path / file).unlink()
    with pytest.raises(StoreError, match=rf"{file} \({name}\) is missing"):
        Learner.load(tmp_path, chain())


def test_a_damaged_manifest_is_named(tmp_path):
    with pytest.raises(StoreError, match="holds no saved learner"):
        Learner.load(tmp_path, chain())
    taught().save(tmp_path)
    whole = (tmp_path / "spacecl.json").read_text()
    (tmp_path / "spacecl.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match="damaged or truncated"):
        Learner.load(tmp_path, chain())
    (tmp_path / "spacecl.json").write_text(whole.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(StoreError, match="was changed after it was written"):
        Learner.load(tmp_path, chain())


@pytest.mark.parametrize("at", range(6))
def test_a_crash_at_any_step_of_saving_leaves_the_version_before_whole(tmp_path, monkeypatch, at):
    """Fail at the n-th write or replace of a save: what can be loaded is the old version or the new one, never a mix."""
    learner = taught(count=1)
    learner.save(tmp_path)
    learner.learn(Task("more", tasks(VECTOR, 2)[1]), QUICK)
    calls = {"left": at}

    def failing(function):
        def call(*args):
            if calls["left"] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            calls["left"] -= 1
            return function(*args)

        return call

    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    monkeypatch.setattr(os, "replace", failing(os.replace))
    with pytest.raises(StoreError, match="No space left"):
        learner.save(tmp_path)
    monkeypatch.undo()
    assert Learner.load(tmp_path, chain()).tasks in (("task 0",), ("task 0", "more"))
    learner.save(tmp_path)
    assert Learner.load(tmp_path, chain()).tasks == ("task 0", "more")
    assert not list(tmp_path.glob(".*-tmp"))


def _save_for_ever(folder):
    number = 0
    while True:
        number += 1
        store.save(
            folder, {"number": number}, {"a": {"x": torch.full((50_000,), float(number))}, "b": {"y": torch.full((9,), number)}}
        )


def test_a_killed_save_leaves_one_whole_version(tmp_path):
    """A real process, killed at random moments while it saves."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_save_for_ever, args=(str(tmp_path),))
    process.start()
    while not (tmp_path / "spacecl.json").exists():
        process.join(0.05)
    process.join(0.3)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    body, files = store.load(tmp_path, dict)
    assert bool((files["a"]["x"] == body["number"]).all())
    assert bool((files["b"]["y"] == body["number"]).all())


def test_pickles_are_never_read(tmp_path, monkeypatch):
    """A pickle in the place of a file, listed in the manifest with its right size and checksum, is not opened as one."""
    taught().save(tmp_path)
    document = json.loads((tmp_path / "spacecl.json").read_text())
    entry = document["content"]["files"]["core"]
    torch.save(nn.Linear(2, 2), tmp_path / entry["file"])
    data = (tmp_path / entry["file"]).read_bytes()
    entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    document["sha256"] = digest_json(document["content"])
    (tmp_path / "spacecl.json").write_text(json.dumps(document))
    for module in (pickle, torch):
        monkeypatch.setattr(module, "load", lambda *a, **k: pytest.fail("a pickle was loaded"))
    with pytest.raises(StoreError, match=r"\(core\) is not a safetensors file"):
        Learner.load(tmp_path, chain())


def test_files_that_are_not_the_learners_are_left_alone(tmp_path):
    (tmp_path / "mine.safetensors").write_bytes(b"precious")
    learner = taught(count=1)
    learner.save(tmp_path)
    learner.save(tmp_path)
    assert (tmp_path / "mine.safetensors").read_bytes() == b"precious"


def test_another_stride_or_slope_is_another_architecture(tmp_path):
    class Strided(ConvNet):
        def __init__(self, slope=0.1):
            super().__init__()
            self.slope = slope

        def forward(self, x):
            return super().forward(nn.functional.leaky_relu(x, self.slope))

    taught(Strided(), IMAGE, count=1).save(tmp_path)
    assert Learner.load(tmp_path, Strided()).tasks == ("task 0",)
    with pytest.raises(StoreError, match="forward"):
        Learner.load(tmp_path, Strided(0.9))
    with pytest.raises(StoreError, match=r"float32 .* there and float64 .* here"):
        Learner.load(tmp_path, Strided().double())


def test_a_method_of_ones_own_is_given_back_when_loading(tmp_path):
    @dataclass(frozen=True)
    class Mine(FineTune):
        pass

    learner = Learner(chain(), Mine(), example_input=VECTOR)
    learner.learn(Task("one", tasks(VECTOR)[0]), QUICK)
    learner.save(tmp_path)
    with pytest.raises(StoreError, match="saved with the method Mine"):
        Learner.load(tmp_path, chain())
    assert Learner.load(tmp_path, chain(), method=Mine()).tasks == ("one",)


def test_an_untaught_learner_begins_alike_after_loading(tmp_path):
    learner = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR)
    learner.save(tmp_path)
    loaded, data = Learner.load(tmp_path, chain()), tasks(VECTOR)[0]
    assert loaded.learn(Task("one", data), QUICK).digest == learner.learn(Task("one", data), QUICK).digest
