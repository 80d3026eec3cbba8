"""Later tasks of a pretrained model begin with the whole model, beside the core; what they keep is fitted into the network."""

import pytest
import torch
from helpers import QUICK, teach
from models import FAMILIES, IMAGE, ConvNet, ResNet, tasks

from spacecl import SPACE, Learner, Recipe, Task
from spacecl.errors import SpaceError
from spacecl.learning import growth
from spacecl.learning.growth import commit_into, widen
from spacecl.structure.tensors import named_tensors
from spacecl.structure.validate import validate_model

pytestmark = pytest.mark.filterwarnings("ignore:.*finds no free channel.*")
NARROW = SPACE(variance=0.6)


def pretrained(make=ResNet):
    """A model whose norms have learned."""
    torch.manual_seed(1)
    model = make()
    for _ in range(3):
        model(torch.randn(8, *IMAGE.shape[1:]))
    for layer in model.modules():
        if "Norm" in type(layer).__name__:
            torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_a_network_whose_units_are_in_another_order_is_the_same(name):
    make, example, shared = FAMILIES[name]
    torch.manual_seed(0)
    model = make().eval()
    channels = validate_model(model, example, None, shared).channels
    source = torch.arange(channels.units)
    for group in channels.groups:
        source[group.units] = group.units[torch.randperm(len(group.units))]
    permuted = channels.permute(named_tensors(model), source)
    assert any(not torch.equal(permuted[key], tensor) for key, tensor in named_tensors(model).items())
    x = torch.randn(4, *example.shape[1:]) if example.is_floating_point() else example.expand(4, *example.shape[1:])
    expected = model(x)
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            tensor.copy_(permuted[key])
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-4)


def test_a_later_task_begins_with_the_whole_model_beside_the_core():
    model = pretrained()
    learner = teach(model, NARROW, example=IMAGE, count=1)
    wide = widen(learner.core)
    given, channels, start = wide.blueprint.given_units, wide.channels, wide.initial_tensors(3)
    begins = channels.gather(start, given)
    backbone = {name: tensor for name, tensor in named_tensors(model).items() if not name.startswith("fc.")}
    assert all(torch.equal(begins[name], tensor) for name, tensor in backbone.items())
    for name in wide.shared:  # neither reads the other yet
        alone = channels.mask(name, given) | channels.mask(name, wide.committed_units)
        assert not bool(start[name][~alone].any())


def test_a_new_model_is_not_widened():
    learner = teach(ResNet(), NARROW, example=IMAGE, count=1)
    assert not learner.core.blueprint.pretrained
    assert NARROW._widen(learner.core) is learner.core


def test_without_compensation_nothing_is_widened():
    learner = teach(pretrained(), NARROW, example=IMAGE, count=1)
    assert SPACE.paper()._widen(learner.core) is learner.core
    assert NARROW._widen(learner.core) is not learner.core


def test_a_network_with_a_group_that_cannot_be_judged_is_not_widened(monkeypatch):
    core = teach(pretrained(), NARROW, example=IMAGE, count=1).core
    monkeypatch.setattr("spacecl.methods.space.method.find_places", lambda channels, group, side: group.layers[0] != "conv")
    assert NARROW._widen(core) is core


def test_a_network_learned_beside_the_core_is_fitted_into_free_units():
    learner = teach(pretrained(), NARROW, example=IMAGE, count=1)
    core, x = learner.core, torch.randn(5, *IMAGE.shape[1:])
    before = core.network(0)(x)
    wide = widen(core)
    free, units = ~wide.committed_units, wide.committed_units.clone()
    for old, new in zip(core.channels.groups, wide.channels.groups):
        space = int((~core.committed_units[old.units]).sum())
        units[new.units[free[new.units]].flip(0)[:space]] = True  # the last ones, which only the wide network has
    start = wide.initial_tensors(3)
    start = {name: torch.randn_like(t) * 0.2 + t if t.is_floating_point() else t for name, t in start.items()}
    start |= {name: tensor.abs() for name, tensor in start.items() if name.endswith("running_var")}
    frozen = wide.frozen_positions("subnet")
    start |= {name: torch.where(frozen[name], wide.shared[name], start[name]) for name in frozen}
    small = wide.channels.gather(start, units)
    expected = wide.blueprint.build(small).eval()(x)
    moved = commit_into(core, wide, small, units)
    assert moved.channels is core.channels
    torch.testing.assert_close(moved.network(1)(x), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(moved.network(0)(x), before)
    assert moved.size() == pytest.approx(wide.commit(small, units).size())


@pytest.mark.parametrize("method", [SPACE(), NARROW, SPACE(size=0.6, budget=3), SPACE(variance=0.6, reuse="all")], ids=str)
def test_tasks_of_a_pretrained_model_stay_the_same_and_fit_into_it(method, tmp_path):
    model, x = pretrained(), torch.randn(5, *IMAGE.shape[1:])
    learner = teach(model, method, example=IMAGE, count=1)
    logits = learner.logits(x, "task 0")
    for number, data in enumerate(tasks(IMAGE, 3)[1:], 1):
        learner.learn(Task(f"task {number}", data), QUICK)
        assert learner.core.channels.shapes["fc.weight"][1] == model.fc.in_features
    assert torch.equal(learner.logits(x, "task 0"), logits)
    assert learner.verify()
    assert learner.size <= 1 + 3 * 0.1  # norms of three tasks
    torch.testing.assert_close(learner.subnet("task 2")(x), learner.logits(x, "task 2"))


def test_a_layer_without_free_units_learns_with_those_of_the_core():
    learner = teach(pretrained(), SPACE(variance=1.0), example=IMAGE, count=1)
    assert bool(learner.core.committed_units.all())
    learner.learn(Task("next", tasks(IMAGE, 2)[1]), QUICK)
    assert torch.equal(learner.core.committed_units, learner.core.tasks[0].units)


def test_a_network_that_cannot_be_widened_learns_in_its_free_units(monkeypatch):
    learner = teach(pretrained(), NARROW, example=IMAGE, count=1)

    def fail(*_):
        raise SpaceError("The network cannot grow")

    monkeypatch.setattr(growth, "resize", fail)
    learner.learn(Task("next", tasks(IMAGE, 2)[1]), QUICK)
    assert learner.verify()


@pytest.mark.parametrize("grows", [False, True])
def test_a_loaded_learner_of_a_pretrained_model_learns_the_next_task_to_the_same_bits(grows, tmp_path):
    method = SPACE(variance=1.0, on_full="grow") if grows else NARROW
    learner = teach(pretrained(ConvNet), method, example=IMAGE, count=1)
    data = tasks(IMAGE, 3)
    learner.learn(Task("task 1", data[1]), Recipe(epochs=1, retrain_epochs=1))
    assert learner.records["task 1"].grown is grows
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, ConvNet())  # with other weights
    digests = [one.learn(Task("next", data[2]), QUICK).digest for one in (learner, loaded)]
    assert digests[0] == digests[1]


def test_the_model_that_later_tasks_begin_with_counts_as_stored():
    new, old = (teach(model, NARROW, example=IMAGE, count=1).storage for model in (ResNet(), pretrained()))
    backbone = [tensor for name, tensor in named_tensors(ResNet()).items() if not name.startswith("fc.")]
    assert new["memory"] == 0
    assert old["memory"] == sum(tensor.nbytes for tensor in backbone)
