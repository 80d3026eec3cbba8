"""The learner: the method's steps, zero forgetting to the bit, every family, growth, interruption, prediction."""

import copy
import sys
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from models import FAMILIES, IMAGE, VISION_SHARED, ConvNet, MobileNet, ResNet, VisionTransformer, chain, tasks
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import spacecl
from spacecl import SPACE, FineTune, Joint, Learner, Recipe, SpaceWarning, Task, store
from spacecl.learning.core import Core
from spacecl.learning.freezing import make_freeze_hook
from spacecl.learning.growth import grow
from spacecl.learning.learn_task import learn_task
from spacecl.learning.state import State
from spacecl.structure.memory_format import to_memory_format

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")

QUICK = Recipe(epochs=2, batch_size=32, retrain_epochs=2)
VECTOR = torch.zeros(1, 6)


def taught(model=None, method=None, example=VECTOR, count=3, recipe=QUICK, **options):
    torch.manual_seed(0)
    learner = Learner(model or chain(), method or SPACE(variance=0.8), example_input=example, **options)
    for number, data in enumerate(tasks(example, count)):
        learner.learn(Task(f"task {number}", data), recipe)
    return learner


OPTIMISERS = {
    "sgd with momentum and weight decay": Recipe(epochs=2, optimizer="sgd", lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam with weight decay": Recipe(epochs=2, optimizer="adam", lr=0.01, weight_decay=0.01),
    "adamw with weight decay": Recipe(epochs=2, optimizer="adamw", lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("recipe", OPTIMISERS.values(), ids=OPTIMISERS)
@pytest.mark.parametrize(
    "method", [SPACE(variance=0.7), SPACE.paper(variance=0.8), SPACE(variance=0.5, on_full="grow", growth=1.3)]
)
def test_old_tasks_are_bitwise_unchanged(recipe, method, tmp_path):
    """With batch norm and dropout, after every later task, after save and load, and after growth."""
    learner = Learner(ConvNet(), method, example_input=IMAGE)
    x, before = torch.randn(9, 3, 8, 8), {}
    for number, data in enumerate(tasks(IMAGE, 4)):
        learner.learn(Task(str(number), data), recipe)
        for name, logits in before.items():
            assert torch.equal(learner.logits(x, name), logits), f"task {name} changed when task {number} was learned"
            assert torch.equal(learner.subnet(name)(to_memory_format(x, learner.channels_last)), logits)
        before[str(number)] = learner.logits(x, str(number))
    learner._state = replace(learner._state, core=grow(learner.core, 1.5))
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", ConvNet())
    for name, logits in before.items():
        assert torch.equal(learner.logits(x, name), logits), "after growth"
        assert torch.equal(loaded.logits(x, name), logits), "after growth, save and load"
    assert loaded.verify() == {name: record.digest for name, record in learner.records.items()}


def test_the_check_above_would_see_a_changed_bit():
    learner = taught(ConvNet(), example=IMAGE)
    x = torch.randn(50, 3, 8, 8)
    before = learner.logits(x, "task 0")
    weight, mask = learner.core.shared["conv1.weight"], learner.core.channels.mask("conv1.weight", learner.core.tasks[0].units)
    weight[mask] = torch.nextafter(weight[mask], torch.tensor(9.0))
    learner._state = replace(learner._state)  # networks are built anew
    assert not torch.equal(learner.logits(x, "task 0"), before)
    with pytest.raises(spacecl.StoreError, match="task 0"):
        learner.verify()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_three_tasks_and_forgets_none(family):
    make, example, shared = FAMILIES[family]
    learner = Learner(make(), SPACE(variance=0.8), example_input=example, shared=shared)
    streams = tasks(example, 3)
    before = {}
    for number, data in enumerate(streams):
        record = learner.learn(Task(str(number), data), QUICK)
        before[str(number)] = learner.logits(data[0], str(number))
        assert all(0 < width <= learner.widths[layer] for layer, width in record.widths.items())
        assert all(0 < share <= 1 for share in record.explained.values())
    for number, (x, _) in enumerate(streams):
        assert torch.equal(learner.logits(x, str(number)), before[str(number)])
    first, last = learner.records["0"], learner.records["2"]
    assert all(last.used[layer] >= width for layer, width in first.widths.items())
    assert sum(p.numel() for p in learner.subnet("0").parameters()) == first.parameters


def test_a_batch_of_one_gives_the_answer_of_a_batch_of_many():
    for model in (ConvNet(), ResNet(), MobileNet()):
        learner = taught(model, example=IMAGE, count=2)
        x = torch.randn(50, 3, 8, 8)
        for task in learner.tasks:
            single = torch.cat([learner.logits(row[None], task) for row in x])
            torch.testing.assert_close(learner.logits(x, task), single, atol=1e-5, rtol=1e-5)


def test_norm_layers_have_values_of_their_own_per_task():
    learner = taught(ConvNet(), example=IMAGE, count=2)
    first, second = (learner.subnet(task).norm1 for task in learner.tasks)
    shared = min(first.num_features, second.num_features)
    assert not torch.equal(first.running_mean[:shared], second.running_mean[:shared])
    assert not torch.equal(first.weight[:shared], second.weight[:shared])


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    def digests(seed, drawn):
        torch.manual_seed(0)
        learner = Learner(ConvNet(), SPACE(variance=0.8), example_input=IMAGE, seed=seed)
        torch.rand(drawn)  # the state of the global generators plays no part
        np.random.rand(drawn)
        return [learner.learn(Task(str(number), data), QUICK).digest for number, data in enumerate(tasks(IMAGE, 2))]

    assert digests(0, 1) == digests(0, 5)
    assert digests(0, 1) != digests(1, 1)


def test_learning_leaves_the_global_random_state_alone():
    learner = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    learner.learn(Task("one", tasks(VECTOR)[0]), QUICK)
    assert torch.equal(torch.rand(3), expected)


def test_the_users_model_is_never_trained():
    model = ConvNet()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    Learner(model, example_input=IMAGE).learn(Task("one", tasks(IMAGE)[0]), QUICK)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


MASKS = {
    "whole rows": lambda shape: (torch.arange(shape[0]) % 2 == 0).reshape(-1, *[1] * (len(shape) - 1)).expand(shape).clone(),
    "few": lambda shape: torch.rand(shape) < 0.2,
    "many": lambda shape: torch.rand(shape) < 0.7,
    "all": lambda shape: torch.ones(shape, dtype=torch.bool),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(6, 4), (6, 5, 3, 3), (40,)])
def test_held_positions_survive_any_change_to_the_bit(mask, dtype, shape):
    for channels_last in (False, True) if len(shape) == 4 else (False,):
        torch.manual_seed(0)
        held, layer = mask(shape), nn.Module()
        layer.register_buffer("numbers", (torch.randn(shape) * 5).to(dtype))
        if dtype.is_floating_point:
            layer.numbers[held.nonzero()[0].tolist()] = -0.0
        before = layer.numbers.clone()
        layer.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        put_back = make_freeze_hook(layer, {"numbers": held})
        for value in (float("nan"), 0.0, float("inf"), 1.0) if dtype.is_floating_point else (0, 1):
            layer.numbers.fill_(value)
            put_back()
            expected = torch.where(held, before, torch.full_like(before, value))
            bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[before.element_size()]
            assert torch.equal(layer.numbers.contiguous().view(bits), expected.view(bits))


def test_a_commit_never_writes_what_was_committed_before():
    """Whatever training did to it: here every weight of the next task is said to be 7."""
    core = taught(count=1).core
    before, keep = core.digest(0), core.channels.all_units()
    sevens = {name: torch.full(shape, 7.0) for name, shape in core.channels.shapes.items()}
    after = core.commit(sevens, keep)
    assert after.digest(0) == before
    assert bool((after.shared["0.weight"] == 7).any())
    assert int((after.tasks[1].units & ~after.tasks[0].units).sum()) == int((~core.committed_units).sum()) > 0


def test_a_later_task_may_change_all_that_no_earlier_one_reads():
    """freeze="subnet": a core filter learns on newer channels; freeze="filters": it reads none of them."""
    for freeze, learns in (("subnet", True), ("filters", False)):
        learner = taught(method=SPACE(variance=0.6, freeze=freeze, reuse="all"), count=2)
        core = learner.core
        newer, older = core.tasks[1].units & ~core.tasks[0].units, core.tasks[0].units
        rows = (core.channels.dims["2.weight"][0] >= 0) & older[core.channels.dims["2.weight"][0]]
        columns = newer[core.channels.dims["2.weight"][1]]
        assert bool(columns.any()), "the second task should have needed new filters"
        assert bool((core.shared["2.weight"][rows][:, columns] != 0).any()) is learns


def test_freed_channels_start_afresh_for_the_next_task():
    learner = taught(count=1)
    core = learner.core
    torch.manual_seed(1)
    start = core.initial_tensors(3)
    free = ~core.channels.filter_mask("0.weight", core.committed_units)
    assert bool(free.any())
    assert not bool((start["0.weight"][free] == 0).any())
    bound = 1 / 6**0.5  # torch's own initialisation of a linear layer on six inputs
    assert float(start["0.weight"][free].abs().max()) <= bound
    assert torch.equal(start["0.weight"][~free], core.shared["0.weight"][~free])


def test_more_variance_keeps_more_filters_by_layer_name_pattern_and_task():
    few, many = taught(method=SPACE(variance=0.5), count=1), taught(method=SPACE(variance=0.99), count=1)
    assert all(few.records["task 0"].widths[layer] < many.records["task 0"].widths[layer] for layer in ("0", "2"))
    mixed = taught(method=SPACE(variance={"0": 0.99, "*": 0.5}), count=1).records["task 0"].widths
    assert mixed["0"] == many.records["task 0"].widths["0"]
    assert mixed["2"] == few.records["task 0"].widths["2"]
    by_task = taught(method=SPACE(variance=0.5, task_variance={"task 0": 0.99}), count=1)
    assert by_task.records["task 0"].widths == many.records["task 0"].widths


def test_projection_saves_filters():
    torch.manual_seed(0)
    with_it = taught(method=SPACE(variance=0.9), count=3)
    without = taught(method=SPACE(variance=0.9, projection=False), count=3)
    assert with_it.size < without.size


@pytest.mark.parametrize("activations", ["post", "pre"])
@pytest.mark.parametrize("selection", ["pivoted", "first"])
@pytest.mark.parametrize("compensate", [True, False])
def test_every_choice_learns_and_forgets_nothing(activations, selection, compensate):
    method = SPACE(variance=0.8, activations=activations, selection=selection, compensate=compensate)
    learner = taught(ConvNet(), method, IMAGE)
    learner.verify()
    assert all(record.explained["conv1"] >= 0.8 - 1e-6 for record in learner.records.values())


def test_the_first_filters_are_kept_in_order():
    core = taught(method=SPACE(variance=0.7, selection="first", reuse="all")).core
    for group in core.channels.groups:
        for keep in (task.units for task in core.tasks):
            order = keep[group.units].long()
            assert torch.equal(order, order.sort(descending=True).values)


def test_a_compensated_network_stands_closer_to_the_full_one_before_retraining():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    x = torch.randn(2000, 6) @ torch.randn(6, 6)
    data = x, model(x).argmax(1)
    still = Recipe(retrain_epochs=0)
    errors = {}
    for compensate in (True, False):
        small, _ = spacecl.compress(model, data, 0.95, example_input=VECTOR, recipe=still, compensate=compensate)
        with torch.no_grad():
            errors[compensate] = float((small(x) - model(x)).square().mean())
    assert errors[True] < 0.5 * errors[False]


def test_a_layer_that_is_full_is_said_refused_or_grown():
    wide = SPACE(variance=1.0)
    learner = taught(method=wide, count=1)
    assert learner.records["task 0"].widths["0"] == 12
    data = tasks(VECTOR, 2)[1]
    learner.method = replace(wide, on_full="error")
    with pytest.raises(spacecl.FullError, match=r"'next' finds no free channel in: 0, 2. Nothing was changed"):
        learner.learn(Task("next", data), QUICK)
    assert learner.tasks == ("task 0",)
    learner.method = wide
    with pytest.warns(SpaceWarning, match="'next' finds no free channel in: 0, 2"):
        record = learner.learn(Task("next", data), QUICK)
    assert record.full == ("0", "2")
    assert not record.grown
    x, before = data[0], learner.logits(data[0], "task 0")
    learner.method = replace(wide, on_full="grow", growth=1.5)
    record = learner.learn(Task("third", data), QUICK)
    assert record.grown
    assert learner.widths["0"] == 18
    assert record.used["0"] > 12
    assert torch.equal(learner.logits(x, "task 0"), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_grow_with_its_committed_networks_unchanged(family):
    make, example, shared = FAMILIES[family]
    learner = Learner(make(), SPACE(variance=0.8), example_input=example, shared=shared)
    (x, _), *_ = streams = tasks(example, 2)
    learner.learn(Task("0", streams[0]), QUICK)
    before, widths = learner.logits(x, "0"), learner.widths
    learner._state = replace(learner._state, core=grow(learner.core, 2))
    narrowable = [layer for group in learner.core.channels.groups for layer in group.layers]
    assert all(learner.widths[layer] == 2 * widths[layer] for layer in narrowable)
    assert torch.equal(learner.logits(x, "0"), before)
    learner.learn(Task("1", streams[1]), QUICK)
    assert torch.equal(learner.logits(x, "0"), before)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_task_begins_with_what_is_committed_where_it_is_committed_after_growth_too(family, frozen):
    """Also where the user froze layers, and growth put new channels between old ones, as after a concat."""
    make, example, shared = FAMILIES[family]
    model = make()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen or name.startswith(("fc.", "head.", "4.")))
    learner = Learner(model, SPACE(variance=0.6), example_input=example, shared=shared)
    learner.learn(Task("0", tasks(example, 1)[0]), QUICK)
    core = grow(learner.core, 1.5)
    start = core.initial_tensors(3)
    for name, tensor in core.shared.items():
        committed = core.channels.mask(name, core.committed_units)
        assert torch.equal(start[name][committed], tensor[committed]), name


def test_shared_layers_are_learned_with_the_first_task_and_then_fixed():
    learner = Learner(VisionTransformer(), SPACE(variance=0.8), example_input=IMAGE, shared=VISION_SHARED)
    first, second = tasks(IMAGE, 2)
    given = dict(VisionTransformer().named_parameters())["patch.weight"]
    learner.learn(Task("0", first), QUICK)
    learned = learner.core.shared["patch.weight"].clone()
    learner.learn(Task("1", second), QUICK)
    assert not torch.equal(learned, given)
    assert torch.equal(learner.core.shared["patch.weight"], learned)
    assert torch.equal(learner.subnet("1").patch.weight, learned)


def test_predict_takes_one_task_or_one_name_per_row():
    learner = taught(count=3)
    x = torch.randn(30, 6)
    names = [f"task {number % 3}" for number in range(30)]
    mixed = learner.predict(x, names)
    single = torch.stack([learner.predict(row[None], name)[0] for row, name in zip(x, names)])
    assert torch.equal(mixed, single)
    assert torch.equal(learner.predict(x, "task 1"), learner.logits(x, "task 1").argmax(1))


def test_predicting_changes_nothing():
    learner = taught(ConvNet(), example=IMAGE, count=2)
    x, state = torch.randn(5, 3, 8, 8), torch.get_rng_state()
    first = learner.logits(x, "task 0")
    before = {task: {n: t.clone() for n, t in learner._state.networks[task].state_dict().items()} for task in learner.tasks}
    learner.predict(x, ["task 1", "task 0", "task 1", "task 0", "task 1"])
    learner.evaluate(DataLoader(TensorDataset(x, torch.zeros(5, dtype=torch.int64)), shuffle=True), "task 0")
    assert torch.equal(learner.logits(x, "task 0"), first)
    for task, tensors in before.items():  # running statistics above all
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in learner._state.networks[task].state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_subnet_is_plain_and_small_and_the_users_to_change():
    learner = taught(ConvNet(), example=IMAGE, count=1)
    small = learner.subnet("task 0")
    assert type(small) is ConvNet
    assert small.conv1.out_channels == learner.records["task 0"].widths["conv1"] < 8
    before = learner.logits(torch.ones(1, 3, 8, 8), "task 0")
    nn.init.zeros_(small.fc.weight)
    assert torch.equal(learner.logits(torch.ones(1, 3, 8, 8), "task 0"), before)


class Pairs(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], int(self.y[index])


def test_tensors_arrays_datasets_and_loaders_are_all_data():
    x, y = tasks(VECTOR, 1, examples=120)[0]
    train, valid = (x[:100], y[:100]), (x[100:], y[100:])
    digests = set()
    for source, held in (
        (train, valid),
        ((train[0].numpy(), train[1].numpy()), (valid[0].numpy(), valid[1].numpy())),
        (TensorDataset(*train), TensorDataset(*valid)),
        (Pairs(*train), Pairs(*valid)),
    ):
        torch.manual_seed(0)
        learner = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR)
        digests.add(learner.learn(Task("one", source, held), QUICK).digest)
    assert len(digests) == 1, "the same data in another form gives the same bits"
    learner = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR)
    loader = DataLoader(TensorDataset(*train), batch_size=16, shuffle=True)
    record = learner.learn(Task("one", loader, DataLoader(TensorDataset(*valid), batch_size=7)), QUICK)
    assert 0 <= record.accuracy <= 1
    with pytest.raises(spacecl.DataError, match="a DataLoader cannot be split"):
        learner.learn(Task("two", loader), QUICK)


def test_a_last_batch_of_one_does_not_trip_batch_norm():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    x, y = tasks(VECTOR, 1, examples=75)[0]
    Learner(model, example_input=VECTOR).learn(Task("one", (x[:65], y[:65]), (x[65:], y[65:])), Recipe(epochs=1, batch_size=64))


def test_classes_may_be_named_or_counted():
    x, y = tasks(VECTOR, 1)[0]
    learner = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR)
    assert learner.learn(Task("named", (x, y), classes=["ant", "bee", "cow", "dog"]), QUICK).class_names == (
        "ant",
        "bee",
        "cow",
        "dog",
    )
    assert learner.logits(x, "named").shape == (90, 4)
    learner.learn(Task("counted", (x, y), classes=7), QUICK)
    assert learner.logits(x, "counted").shape == (90, 7)


def test_compress_makes_a_trained_model_smaller_and_leaves_it_alone():
    torch.manual_seed(0)
    x = torch.randn(1500, 6)
    y = (x @ torch.randn(6, 3)).argmax(1)
    model = nn.Sequential(nn.Linear(6, 100), nn.ReLU(), nn.Linear(100, 3))
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        optimiser.zero_grad()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small, record = spacecl.compress(model, (x, y), variance=0.99, example_input=VECTOR, recipe=Recipe(retrain_epochs=3))
    assert small[0].out_features == record.widths["0"] < 80
    assert record.accuracy > 0.93
    assert small(x).argmax(1).eq(y).float().mean() > 0.93
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_space_keeps_what_fine_tuning_forgets():
    generator = torch.Generator().manual_seed(0)
    streams = []
    for _ in range(4):
        x = torch.randn(600, 20, generator=generator)
        streams.append((x, (x @ torch.randn(20, 3, generator=generator)).argmax(1)))
    now = {}
    for method in (SPACE(variance=0.95), FineTune()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3))
        learner = Learner(model, method, example_input=torch.zeros(1, 20))
        for number, data in enumerate(streams):
            learner.learn(Task(str(number), data), Recipe(epochs=8))
        now[type(method)] = learner.evaluate(streams[0], "0")
    assert now[SPACE] > 0.85
    assert now[FineTune] < now[SPACE] - 0.15


def test_a_few_samples_are_told():
    learner = Learner(chain(), SPACE(variance=0.8, samples=20, shrinkage=False), example_input=VECTOR)
    with pytest.warns(SpaceWarning, match=r"too few samples .* 0 \(20 samples for 12 channels\)"):
        record = learner.learn(Task("one", tasks(VECTOR)[0]), QUICK)
    assert record.samples == {"0": 20, "2": 20}


def test_no_warning_is_given_where_nothing_is_wrong():
    x, y = tasks(VECTOR, 1, examples=900)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpaceWarning)
        Learner(chain(), example_input=VECTOR).learn(Task("one", (x, y)))


def test_the_best_epoch_on_validation_data_is_kept():
    data = tasks(VECTOR, 1, examples=200)[0]
    recipe = Recipe(epochs=6, lr=0.3, schedule="constant", optimizer="sgd", retrain_epochs=4)
    record = Learner(chain(), SPACE(variance=0.9), example_input=VECTOR).learn(Task("one", data), recipe)
    retrained = [row["accuracy"] for row in record.history if row["phase"] == "retrain"]
    assert record.accuracy == pytest.approx(max(retrained))
    last = Learner(chain(), SPACE(variance=0.9), example_input=VECTOR).learn(Task("one", data), replace(recipe, keep="last"))
    rows = [row["accuracy"] for row in last.history if row["phase"] == "retrain"]
    assert last.accuracy == pytest.approx(rows[-1])


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine", "steps", "constant"])
def test_every_schedule_trains(schedule):
    recipe = replace(QUICK, schedule=schedule, milestones=(1,))
    assert taught(count=1, recipe=recipe).tasks == ("task 0",)


# -- threads and interrupts ---------------------------------------------------------------------------------------------


def test_threads_that_query_during_commits_get_the_old_state_or_the_new_one():
    """With a method that forgets: the networks of all tasks change at every commit."""
    x, data = torch.randn(7, 6), tasks(VECTOR, 1)[0]
    learner = Learner(chain(), FineTune(), example_input=VECTOR)
    learner.learn(Task("first", data), QUICK)
    states, found, done = [learner.logits(x, "first")], [[], [], [], []], threading.Event()

    def query(mine):
        while not done.is_set():
            mine.append(learner.logits(x, "first"))

    threads = [threading.Thread(target=query, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    try:
        for number in range(10):
            learner.learn(Task(f"task {number}", data), Recipe(epochs=1, batch_size=90))
            states.append(learner.logits(x, "first"))
            assert torch.equal(states[-1], learner.subnet("first")(x)), "a network of an older state"
    finally:
        done.set()
        for thread in threads:
            thread.join()
    known = [tuple(state.flatten().tolist()) for state in states]
    assert len(set(known)) == 11, "each commit should have changed the answers"
    for mine in found:
        order = [known.index(tuple(logits.flatten().tolist())) for logits in mine]  # fails for a mixture
        assert order == sorted(order), "a thread met an older state after a newer one"


def test_a_network_that_was_built_for_an_old_state_is_not_served_for_a_new_one(monkeypatch):
    x, data = torch.randn(7, 6), tasks(VECTOR, 1)[0]
    learner = Learner(chain(), FineTune(), example_input=VECTOR)
    learner.learn(Task("first", data), QUICK)
    learner._state = replace(learner._state)  # no network is built yet
    build, building, committed = Core.network, threading.Event(), threading.Event()

    def build_slowly(core, number):
        network = build(core, number)
        if threading.current_thread() is thread:
            building.set()
            committed.wait(60)
        return network

    monkeypatch.setattr(Core, "network", build_slowly)
    found = []
    thread = threading.Thread(target=lambda: found.append(learner.logits(x, "first")))
    old = build(learner.core, 0)(x)
    thread.start()
    assert building.wait(60)
    learner.learn(Task("second", data), QUICK)
    committed.set()
    thread.join()
    new = build(learner.core, 0)(x)
    assert not torch.equal(old, new)
    assert torch.equal(found[0], old), "the query began before the commit"
    assert torch.equal(learner.logits(x, "first"), new)


@pytest.mark.parametrize("method", [Joint(), SPACE(variance=0.8)], ids=["Joint", "SPACE"])
def test_an_interrupt_at_any_line_of_a_commit_leaves_the_old_state_or_the_new_one(method, monkeypatch):
    x = torch.randn(7, 6)
    one, two = (Task(name, data) for name, data in zip(("one", "two"), tasks(VECTOR, 2)))
    learner = Learner(chain(), method, example_input=VECTOR)
    learner.learn(one, QUICK)
    before, taught = learner._state, copy.copy(learner)
    came_of_it, learn = [], type(method).learn

    def learn_once(self, core, task):
        if not came_of_it:
            came_of_it.append(learn(self, core, task))
        return came_of_it[0]

    monkeypatch.setattr(type(method), "learn", learn_once)
    taught.learn(two, QUICK)
    old, new = learner.logits(x, "one"), taught.logits(x, "one")
    codes = {Learner.learn.__code__, learn_task.__code__, State.with_networks_of.__code__}
    committed, line = False, 0
    while not committed:
        line += 1
        left = line

        def interrupt(frame, event, _):
            nonlocal left
            if frame.f_code not in codes:
                return None
            if event == "line" and came_of_it and frame.f_code in codes:
                left -= 1
                if not left:
                    raise KeyboardInterrupt
            return interrupt

        learner._state = replace(before).with_networks_of(before)
        tracing = sys.gettrace()
        sys.settrace(interrupt)
        try:
            learner.learn(two, QUICK)
            committed = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracing)
        known = learner._state
        complete = known.records.keys() == {"one", "two"}
        assert complete or known.records.keys() == {"one"}
        assert known.data.keys() == (known.records.keys() if method.needs_data else set())
        assert len(known.core.tasks) == len(known.records)
        assert all(task.signature for task in known.core.tasks)
        assert torch.equal(learner.logits(x, "one"), new if complete else old)
        assert learner.verify() == {name: record.digest for name, record in known.records.items()}
        assert not learner._changing.locked(), "it can learn on"
    assert line > 20


def test_a_learner_that_is_learning_refuses_to_be_changed_and_still_answers():
    one, two = tasks(VECTOR, 2)
    learner = Learner(chain(), Joint(), example_input=VECTOR)
    learner.learn(Task("one", one), QUICK)
    epoch, asked, refused = threading.Event(), threading.Event(), []

    def on_epoch(row):
        epoch.set()
        assert asked.wait(60)

    thread = threading.Thread(target=lambda: learner.learn(Task("two", two), QUICK, on_epoch=on_epoch))
    thread.start()
    assert epoch.wait(60)
    for change in (
        lambda: learner.learn(Task("three", one), QUICK),
        lambda: learner.remember(Task("one", one)),
        lambda: setattr(learner, "method", Joint()),
    ):
        with pytest.raises(spacecl.SpaceError, match="is already learning a task"):
            change()
        refused.append(change)
    assert learner.predict(one[0], "one").shape == (90,)
    asked.set()
    thread.join()
    assert learner.tasks == ("one", "two")
    for change in refused:
        change()
    assert learner.tasks == ("one", "two", "three")


def test_a_learner_can_be_copied():
    learner = taught(count=1)
    for other in (copy.copy(learner), copy.deepcopy(learner)):
        other.learn(Task("more", tasks(VECTOR, 1)[0]), QUICK)
        assert other.tasks == ("task 0", "more")
        assert learner.tasks == ("task 0",)


def test_learners_records_and_cores_print_as_one_line():
    learner = taught(count=2)
    assert repr(learner) == f"<Learner method=SPACE tasks=2 size={learner.size:.3f}>"
    assert repr(learner.core).startswith("<Core tasks=2 units=")
    record = learner.records["task 1"]
    assert repr(record).startswith(f"<TaskRecord 'task 1' classes=3 accuracy={record.accuracy:.4f} parameters=")


def test_names_of_version_0_1_still_work_and_warn():
    learner, x = taught(count=1), torch.zeros(2, 6)
    for old, new in {"room": "capacity", "given": "dense", "likeness": "task_scores", "remembers": "has_signature"}.items():
        with pytest.warns(DeprecationWarning, match=f"Learner.{old} is deprecated; use Learner.{new}"):
            assert getattr(learner, old) == getattr(learner, new)
    with pytest.warns(DeprecationWarning, match=r"TaskRecord\.core_ratio"):
        assert learner.records["task 0"].core_ratio == learner.records["task 0"].core_explained
    for answer in (learner.identify(x), learner.predict(x, "infer")):
        with pytest.warns(DeprecationWarning, match=r"sure is deprecated; use .*confidence"):
            assert torch.equal(answer.sure, answer.confidence)
    with pytest.warns(DeprecationWarning, match=r"SPACE\(offer=\.\.\.\) is deprecated; use trainable_fraction"):
        method = SPACE(offer=0.5)
    assert method == SPACE(trainable_fraction=0.5)


def test_a_learner_that_version_0_1_saved_is_loaded(tmp_path):
    """Its options and records had other names."""
    learner = taught(method=SPACE(variance=0.8, trainable_fraction=0.9), count=2)
    learner.save(tmp_path)
    body, files = store.load(tmp_path, dict)
    body["method"]["options"]["offer"] = body["method"]["options"].pop("trainable_fraction")
    for record in body["tasks"]:
        record["core_ratio"] = record.pop("core_explained")
    store.save(tmp_path, body, files)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = Learner.load(tmp_path, chain())
    assert loaded.method == learner.method
    assert loaded.records["task 1"].core_explained == learner.records["task 1"].core_explained != {}
    assert loaded.verify() == learner.verify()


def test_a_checkpoint_of_version_0_1_is_resumed(tmp_path):
    data = tasks(VECTOR, 1)[0]

    def stop(row):
        if row["epoch"] == 2:
            raise KeyboardInterrupt

    def begin():
        torch.manual_seed(0)
        return Learner(chain(), SPACE(variance=0.8), example_input=VECTOR)

    with pytest.raises(KeyboardInterrupt):
        begin().learn(Task("one", data), QUICK, checkpoint=tmp_path, on_epoch=stop)
    body, files = store.load(tmp_path / "train", dict)
    options = body["identity"]["method"]["options"]
    options["offer"] = options.pop("trainable_fraction")
    store.save(tmp_path / "train", body, files)
    resumed, epochs = begin(), []
    resumed.learn(Task("one", data), QUICK, checkpoint=tmp_path, on_epoch=epochs.append)
    undisturbed = begin()
    undisturbed.learn(Task("one", data), QUICK)
    assert resumed.verify() == undisturbed.verify()
    other = Learner(chain(), SPACE(variance=0.7), example_input=VECTOR)
    with pytest.raises(spacecl.StoreError, match="holds a checkpoint of other work: method was"):
        other.learn(Task("one", data), QUICK, checkpoint=tmp_path)


def test_a_checkpoint_of_a_model_that_computes_something_else_is_refused(tmp_path):
    """Its tensors and ties are the same, its operations are not."""

    def stop(row):
        if row["epoch"] == 2:
            raise KeyboardInterrupt

    def begin(activation):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 12), activation(), nn.Linear(12, 3))
        return Learner(model, SPACE(variance=0.8), example_input=VECTOR)

    data = tasks(VECTOR, 1)[0]
    with pytest.raises(KeyboardInterrupt):
        begin(nn.ReLU).learn(Task("one", data), QUICK, checkpoint=tmp_path, on_epoch=stop)
    with pytest.raises(spacecl.StoreError, match="holds a checkpoint of other work: operations was"):
        begin(nn.Tanh).learn(Task("one", data), QUICK, checkpoint=tmp_path)
    begin(nn.ReLU).learn(Task("one", data), QUICK, checkpoint=tmp_path)
