"""A target instead of thresholds: a tolerance of the answers, or a size of the network for a number of tasks."""

from itertools import pairwise

import pytest
import torch
from models import IMAGE, VECTOR, ConvNet, chain, tasks
from torch import nn

import spacecl
from spacecl import SPACE, ConfigError, Learner, Recipe, Task, compress
from spacecl.learning.core import Core
from spacecl.methods.space.moments import Statistics
from spacecl.methods.space.selection import rank_units
from spacecl.methods.space.target import find_level, size_so_far
from spacecl.structure.validate import validate_model

SHORT = Recipe(epochs=3, retrain_epochs=1)
STILL = Recipe(retrain_epochs=0)


def wide(width: int = 60) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


def teach_one(data, model=None, recipe=SHORT, **options):
    torch.manual_seed(0)
    learner = Learner(model or wide(), SPACE(**options), example_input=VECTOR)
    return learner, learner.learn(Task("0", data), recipe)


@pytest.mark.parametrize("examples", [100, 3000])  # fewer than are needed to hold out validation examples alone, and more
def test_the_pruned_network_loses_no_more_than_the_tolerance(examples):
    data = tasks(VECTOR, 1, examples=examples)[0]
    sizes = []
    for tolerance in (0.01, 0.1, 0.5):
        _, record = teach_one(data, recipe=Recipe(epochs=max(3, 3000 // examples), retrain_epochs=1), tolerance=tolerance)
        predicted = record.target["predicted"]
        assert predicted["lost"] <= tolerance
        assert record.target["asked"] == {"tolerance": tolerance}
        sizes.append(record.size)
    assert sizes[0] > sizes[1] > sizes[2]


def test_the_default_is_a_tolerance():
    data = tasks(VECTOR, 1, examples=300)[0]
    _, record = teach_one(data)
    assert record.target["asked"] == {"tolerance": 0.02}
    assert record.size < 1


def test_a_record_says_what_was_asked_predicted_and_reached():
    data = tasks(VECTOR, 1, examples=3000)[0]
    _, record = teach_one(data, tolerance=0.1)
    target = record.target
    assert target["examples"] == 300  # the tenth that is held out for validation
    assert target["level"] > 0
    assert target["reached"]["accuracy"] == pytest.approx(record.accuracy)
    assert target["predicted"]["full_accuracy"] == target["reached"]["full_accuracy"]
    for layer in record.spectrum.values():
        assert 0 <= layer["cost"] < layer["cost_of_none"]
        assert layer["new"] == layer["wanted"]


@pytest.mark.parametrize("selection", ["effect", "pivoted", "first"])
def test_every_order_of_filters_can_be_given_a_tolerance_or_a_size(selection):
    data = tasks(VECTOR, 1, examples=2500)[0]
    _, record = teach_one(data, tolerance=0.05, selection=selection)
    assert record.target["predicted"]["lost"] <= 0.05
    _, record = teach_one(data, size=0.2, budget=1, selection=selection)
    assert 0.1 < record.size <= 0.2


def test_all_tasks_of_a_budget_use_the_size_and_no_more():
    torch.manual_seed(0)
    learner = Learner(wide(100), SPACE(size=0.4, budget=4), example_input=VECTOR)
    for number, data in enumerate(tasks(VECTOR, 4, examples=400)):
        record = learner.learn(Task(str(number), data), SHORT)
        assert record.size <= record.target["asked"]["so_far"] + 1e-9
        assert record.target["asked"]["size"] == 0.4
    assert 0.25 < learner.size <= 0.4
    sizes = [record.size for record in learner.records.values()]
    assert sizes == sorted(set(sizes)), "every task got channels of its own"
    assert learner.verify()


@pytest.mark.filterwarnings("ignore:.*finds no free channel.*")
def test_a_size_counts_the_norms_of_every_task():
    torch.manual_seed(0)
    learner = Learner(ConvNet(24), SPACE(size=0.5, budget=3), example_input=IMAGE)
    for number, data in enumerate(tasks(IMAGE, 3, examples=200)):
        before = learner.core
        learner.learn(Task(str(number), data), SHORT)
        assert before.size(learner.core.tasks[-1].units) == pytest.approx(learner.size)
    assert learner.size <= 0.5


@pytest.mark.parametrize("budget", [1, 2, 5, 10])
def test_shares_of_a_size_fall_from_task_to_task_and_add_up(budget):
    sizes = [0, *(size_so_far(0.6, number, budget) for number in range(1, budget + 1))]
    assert sizes[-1] == 0.6
    shares = [after - before for before, after in pairwise(sizes)]
    assert shares == sorted(shares, reverse=True), "the first task, which finds nothing to share, gets most"
    assert shares[-1] > 0.6 / budget / 4, "the last task has space, too"


def test_a_size_without_a_number_of_tasks_is_refused():
    with pytest.raises(ConfigError, match=r"size=0.5 is for a number of tasks: give it with budget=\.\.\."):
        Learner(chain(), SPACE(size=0.5), example_input=VECTOR)


def test_two_targets_are_refused():
    with pytest.raises(ConfigError, match=r"tolerance=0.1 and variance=0.9 exclude each other; give one of them"):
        SPACE(tolerance=0.1, variance=0.9)


def test_a_task_can_have_a_variance_where_others_have_a_tolerance():
    torch.manual_seed(0)
    learner = Learner(wide(), SPACE(task_variance={"1": 0.9}), example_input=VECTOR)
    first, second = (learner.learn(Task(str(n), data), SHORT) for n, data in enumerate(tasks(VECTOR, 2, examples=300)))
    assert first.target["asked"] == {"tolerance": 0.02}
    assert second.target["asked"] == {"variance": 0.9}
    assert second.target["level"] is None


def test_bisection_finds_the_level_where_acceptance_ends():
    class Costs:
        highest_level = 8

    low, high = find_level([Costs()], lambda level: level <= 0.1234, steps=20)
    assert low <= 0.1234 < high
    assert high / low < 1.001
    assert find_level([Costs()], lambda level: True) == (8, 8)
    assert find_level([], lambda level: False) == (0, 0)


def test_a_parameter_has_one_price_in_all_layers():
    """Of all widths, those that follow from a level have the lowest sum of costs and price: tried one by one."""
    core, rankings = analyze_random(scarce=False)
    assert len({float(ranking.prices[1]) for ranking in rankings}) == len(rankings) == 2, "units of other sizes"
    for level in (0.5 * min(ranking.highest_level for ranking in rankings), 0.1 * rankings[0].highest_level):
        chosen = [ranking.count(level) for ranking in rankings]
        assert any(1 < count < len(ranking.group.units) for count, ranking in zip(chosen, rankings))
        for ranking, count in zip(rankings, chosen):
            totals = [float(ranking.costs[k]) + level * unit_parameters(core, ranking) * k for k in range(len(ranking.costs))]
            assert totals[count] == pytest.approx(min(totals[1:]))  # a layer has at least one channel


def unit_parameters(core, ranking) -> int:
    """The parameters that a network has less without one unit, counted from the networks."""
    keep = core.channels.all_units()
    keep[ranking.group.units[0]] = False
    full, less = (
        sum(tensor.numel() for name, tensor in core.channels.gather(core.blueprint.tensors(), units).items())
        for units in (core.channels.all_units(), keep)
    )
    return full - less


def analyze_random(scarce: bool):
    """The rankings of a network with two layers of unequal width, of what a random input and random gradients show."""
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 12), nn.ReLU(), nn.Linear(12, 3))
    core = Core.empty(validate_model(model, VECTOR, None, ()))
    generator = torch.Generator().manual_seed(0)
    statistics = {}
    for place in core.channels.readings:
        scale = torch.linspace(3, 1, len(place.units), dtype=torch.float64).exp()
        rows = torch.randn(500, len(place.units), generator=generator, dtype=torch.float64) * scale
        statistics[place] = Statistics(500, 500, rows.mean(0), rows.T.cov(), rows.T.cov() / 1e4)
    return core, rank_units(core, core.committed_units, statistics, order="effect", scarce=scarce)


def test_while_tasks_are_to_come_units_get_dearer_and_the_last_one_is_kept():
    _, plain = analyze_random(scarce=False)
    _, scarce = analyze_random(scarce=True)
    for one, other in zip(plain, scarce):
        assert one.count(1e-12) > other.count(1e-12) == len(other.group.units) - 1
        assert other.prices[1] == pytest.approx(float(one.prices[1]), rel=0.1)
        assert bool((other.prices.diff().diff()[:-1] > 0).all())


def test_thin_layers_give_a_task_more_than_half_of_their_channels_if_it_needs_them():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 200), nn.ReLU(), nn.Linear(200, 3))
    x = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] * x[:, 3] * x[:, 4] * x[:, 5] > 0).long()
    _, record = teach_one((x, y), model, Recipe(epochs=10, retrain_epochs=1))
    assert record.widths["0"] == 5, "all but one: they bring few parameters, and nothing can stand in for them"
    assert record.widths["2"] < 100


def test_compress_takes_a_tolerance_or_a_size():
    torch.manual_seed(0)
    model = wide()
    x, y = tasks(VECTOR, 1, examples=3000)[0]
    small, record = spacecl.compress(model, (x, y), example_input=VECTOR, recipe=STILL)
    assert record.target["predicted"]["lost"] <= 0.02
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    _, record = spacecl.compress(model, (x, y), size=0.3, example_input=VECTOR, recipe=STILL)
    assert 0.2 < record.size <= 0.3


def teach_two(reuse: str) -> Learner:
    """Two tasks that look at different inputs, so that the second needs little of what the first has learned."""
    generator = torch.Generator().manual_seed(0)
    learner = None
    for number in range(2):
        x = torch.randn(3000, 6, generator=generator)
        y = (x[:, 3 * number] * x[:, 3 * number + 1] > 0).long() + (x[:, 3 * number + 2] > 0).long()
        if learner is None:
            torch.manual_seed(0)
            learner = Learner(wide(), SPACE(tolerance=0.05, reuse=reuse), example_input=VECTOR)
        learner.learn(Task(str(number), (x, y)), Recipe(epochs=12, retrain_epochs=4))
    return learner


def test_a_task_leaves_out_core_filters_that_it_does_not_need():
    everything, needed = teach_two("all"), teach_two("needed")
    assert needed.records["0"].digest == everything.records["0"].digest
    for learner in (everything, needed):
        for layer in learner.records["1"].spectrum.values():
            assert layer["reused"] + layer["new"] >= 1
            assert layer["reused"] <= layer["core"]
    assert all(layer["reused"] == layer["core"] for layer in everything.records["1"].spectrum.values())
    first, second = (task.units for task in needed.core.tasks)
    assert bool((first & ~second).any()), "nothing was left out"
    assert needed.records["1"].parameters < everything.records["1"].parameters
    target = needed.records["1"].target
    assert target["predicted"]["lost"] <= 2 * 0.05 + 1e-9
    assert needed.records["1"].accuracy > everything.records["1"].accuracy - 0.03
    assert needed.verify()


def test_what_a_task_left_out_is_there_for_the_next_one(tmp_path):
    learner = teach_two("needed")
    left_out = learner.core.tasks[0].units & ~learner.core.tasks[1].units
    x = torch.randn(3000, 6, generator=torch.Generator().manual_seed(9))
    before = {name: learner.logits(x, name) for name in learner.tasks}
    record = learner.learn(Task("again", (x, (x[:, 0] * x[:, 1] > 0).long())), SHORT)  # like the first task
    assert bool((learner.core.committed_units & left_out).any())
    assert all(torch.equal(learner.logits(x, name), before[name]) for name in before)
    learner.save(tmp_path)
    assert Learner.load(tmp_path, wide()).records["again"].digest == record.digest


def test_without_a_budget_a_task_leaves_most_of_what_is_free_to_later_ones():
    data = tasks(VECTOR, 4, examples=400)
    torch.manual_seed(0)
    learner = Learner(wide(40), SPACE(tolerance=1e-9), example_input=VECTOR)  # more than any network can do
    free = 1.0
    for number, some in enumerate(data):
        learner.learn(Task(str(number), some), SHORT)
        assert 0.7 * free < 1 - learner.size < 0.9 * free
        free = 1 - learner.size


def test_an_unprunable_layer_does_not_use_up_what_a_task_may_take():
    data = tasks(VECTOR, 2, examples=400)
    torch.manual_seed(0)
    learner = Learner(wide(40), SPACE(tolerance=1e-9), example_input=VECTOR, shared=["0"])
    learner.learn(Task("0", data[0]), SHORT)
    assert learner.records["0"].widths["2"] > 4


def test_a_budget_of_one_task_and_compression_may_keep_more_than_half():
    data = tasks(VECTOR, 1, examples=400)[0]
    _, record = teach_one(data, tolerance=1e-9, budget=1)
    assert min(record.widths.values()) > 40  # of 60; the others are dead
    small, _ = compress(wide(), data, example_input=VECTOR, tolerance=1e-9, recipe=SHORT)
    assert small[0].out_features > 40
