"""Free channels begin as the user gave them, for every task, also after saving, loading and growing."""

import pytest
import torch
from helpers import QUICK, teach
from models import IMAGE, VECTOR, ConvNet, chain, tasks

from spacecl import HAT, SPACE, STL, WSN, Learner, PackNet, Recipe, Task
from spacecl.learning.saved import to_files

pytestmark = pytest.mark.filterwarnings("ignore:.*finds no free channel.*")


def given(learner):
    return learner.core.blueprint.tensors()


@pytest.mark.parametrize("method", [SPACE(variance=0.6), HAT()], ids=lambda method: type(method).__name__)
def test_free_filters_begin_as_given_and_core_filters_with_zeros_on_free_channels(method):
    learner = teach(ConvNet(), method, example=IMAGE, count=1)
    core, start = learner.core, learner.core.initial_tensors(3)
    channels, units = core.channels, core.committed_units
    assert not bool(units.all()), "no channel is free: the test shows nothing"
    for name in core.shared:
        filters = channels.filter_mask(name, units, unprunable=True)
        assert torch.equal(start[name][~filters], given(learner)[name][~filters])
        assert not bool(start[name][filters & ~channels.mask(name, units)].any())
    free = ~units[channels.dims["norm1.weight"][0]]
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert torch.equal(start[f"norm1.{name}"][free], given(learner)[f"norm1.{name}"][free])


@pytest.mark.parametrize(
    "method", [SPACE(variance=0.6), HAT(), PackNet(), WSN(), STL()], ids=lambda method: type(method).__name__
)
def test_a_loaded_learner_learns_the_next_task_to_the_same_bits(method, tmp_path):
    learner = teach(ConvNet(), method, example=IMAGE, count=1)
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, ConvNet())  # with other weights
    data = tasks(IMAGE, 2)[1]
    digests = [one.learn(Task("next", data), QUICK).digest for one in (learner, loaded)]
    assert digests[0] == digests[1]


def test_a_learner_that_has_learned_nothing_is_loaded_with_its_weights(tmp_path):
    learner = teach(ConvNet(), SPACE(variance=0.6), example=IMAGE, count=0)
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, ConvNet())
    backbone = {name for name in given(learner) if not name.startswith("fc.")}
    assert all(torch.equal(given(loaded)[name], given(learner)[name]) for name in backbone)


def test_the_weights_that_were_given_take_no_space_of_their_own():
    body, files = to_files(*_core_and_records(teach(ConvNet(), SPACE(variance=0.6), example=IMAGE, count=1)))
    assert body["given"]
    assert {name for name in files["core"] if name.startswith("given.")} == {
        f"given.norm1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def _core_and_records(learner):
    return learner.core, learner.records, {}


def test_a_learner_of_version_0_1_draws_free_channels_anew(tmp_path, monkeypatch):
    from spacecl.learning import saved

    learner = teach(ConvNet(), SPACE(variance=0.6), example=IMAGE, count=1)
    monkeypatch.setattr(saved, "_add_given_values", lambda core: {})

    def old_files(*args):
        body, files = to_files(*args)
        return {key: value for key, value in body.items() if key != "given"}, files

    monkeypatch.setattr("spacecl.learner.to_files", old_files)
    learner.save(tmp_path)
    monkeypatch.undo()
    loaded = Learner.load(tmp_path, ConvNet())
    start = loaded.core.initial_tensors(3)
    free = ~loaded.core.channels.filter_mask("conv1.weight", loaded.core.committed_units, unprunable=True)
    assert bool(start["conv1.weight"][free].any())
    assert not torch.equal(start["conv1.weight"][free], given(learner)["conv1.weight"][free])
    loaded.learn(Task("next", tasks(IMAGE, 2)[1]), QUICK)
    loaded.save(tmp_path)
    assert Learner.load(tmp_path, ConvNet()).verify()


def test_channels_that_growth_adds_are_drawn_and_the_others_begin_as_given(tmp_path):
    learner = teach(chain(), SPACE(variance=1.0, on_full="grow"), example=VECTOR, count=1)
    learner.learn(Task("grown", tasks(VECTOR, 2)[1]), Recipe(epochs=0, retrain_epochs=0))
    assert learner.records["grown"].grown
    core = learner.core
    units = core.blueprint.given_units
    start, user = core.blueprint.initial_tensors(3), given(learner)
    for name in core.shared:
        assert torch.equal(start[name][core.channels.mask(name, units)], user[name].flatten())
    assert len(torch.unique(start["0.weight"], dim=0)) == len(start["0.weight"]), "no filter is a copy of another"
    learner.save(tmp_path)
    again = Learner.load(tmp_path, chain()).core.blueprint
    assert torch.equal(again.given_units, units)


def test_a_pretrained_model_is_recognized_and_trained_at_a_lower_rate_until_it_is_pruned(tmp_path):
    torch.manual_seed(0)
    new, old = ConvNet(), ConvNet()
    for _ in range(3):
        old(torch.randn(4, 3, 8, 8))  # its norms keep running statistics
    rates = {}
    for name, model in {"new": new, "old": old}.items():
        learner = Learner(model, SPACE(variance=0.6), example_input=IMAGE)
        learner.learn(Task("0", tasks(IMAGE, 1)[0]), QUICK)
        learner.save(tmp_path / name)
        loaded = Learner.load(tmp_path / name, ConvNet())
        histories = [one.learn(Task("1", tasks(IMAGE, 2, examples=20)[1])).history for one in (learner, loaded)]
        for phase in ("train", "retrain"):
            rates[name, phase] = [max(row["lr"] for row in history if row["phase"] == phase) for history in histories]
    assert rates.pop(("old", "train")) == [pytest.approx(5e-4, rel=0.2)] * 2
    assert list(rates.values()) == [[pytest.approx(2e-3, rel=0.2)] * 2] * 3
