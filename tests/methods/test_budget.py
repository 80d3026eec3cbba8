"""SPACE with a budget: the network lasts for so many tasks, and what that costs each is told."""

import json
import warnings

import numpy as np
import pytest
import torch
from models import FAMILIES, IMAGE, ConvNet, chain, tasks
from torch import nn

from spacecl import SPACE, ConfigError, Learner, Recipe, SpaceWarning, Task
from spacecl.cli import main as cli
from spacecl.methods.space.selection import allowance

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*")

VECTOR = torch.zeros(1, 6)
SHORT = Recipe(epochs=2, retrain_epochs=1)


def taught(model: nn.Module, example: torch.Tensor, count: int, **options) -> Learner:
    learner = Learner(model, SPACE(**options), example_input=example, seed=0)
    for number, data in enumerate(tasks(example, count)):
        learner.learn(Task(str(number), data), SHORT)
    return learner


def untimed(learner: Learner) -> list[dict]:
    """The learner's records as JSON, without times."""
    found = [record.to_json() for record in learner.records.values()]
    for record in found:
        del record["seconds"]
        record["history"] = [{key: value for key, value in row.items() if key != "seconds"} for row in record["history"]]
    return found


@pytest.mark.filterwarnings("ignore:.*finds no free channel.*")
def test_every_task_of_a_budget_finds_a_free_channel_in_every_layer():
    torch.manual_seed(0)
    model = ConvNet()  # of 8, 8 and 12 channels
    starved = taught(model, IMAGE, 6, variance=0.999)
    assert starved.records["5"].full, "without a budget the tasks do not overfill this network: the test shows nothing"
    learner = taught(model, IMAGE, 6, variance=0.999, budget=6)
    assert all(record.full == () for record in learner.records.values())
    assert learner.verify()


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 8, 20])
def test_whatever_tasks_take_of_their_allowance_each_later_one_has_some(tasks):
    generator = torch.Generator().manual_seed(tasks)
    for units in (*range(2 * tasks), 100):
        for greed in (1.0, 0.5, 0.0):
            free = units
            for left in range(tasks, 0, -1):
                allowed = allowance(free, left)
                assert 0 <= allowed <= free
                assert allowed >= 1 or (free == 0 and units < tasks)
                assert left > 1 or allowed == free, "the last task may have all that is left"
                free -= min(allowed, round(allowed * greed + float(torch.rand(1, generator=generator)) * (1 - greed)))


@pytest.mark.filterwarnings("ignore:.*finds no free channel.*")
def test_a_layer_with_fewer_channels_than_tasks_gives_them_out_one_by_one():
    model = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 3))
    learner = taught(model, VECTOR, 5, variance=1.0, budget=5)
    assert [record.used["0"] for record in learner.records.values()] == [1, 2, 3, 3, 3]


def test_a_budget_that_does_not_bind_changes_nothing():
    torch.manual_seed(0)
    model = ConvNet(width=24)
    free, bound = (taught(model, IMAGE, 2, variance=0.25, budget=budget) for budget in (None, 3))
    assert untimed(free) == untimed(bound)
    assert free.records["1"].spectrum["conv2"]["wanted"] > 0, "the second task takes nothing: the test shows little"


def test_what_a_budget_costs_is_what_the_threshold_misses():
    torch.manual_seed(0)
    model = ConvNet()
    learner = taught(model, IMAGE, 2, variance=0.95, budget=4)
    record = learner.records["0"]
    for layer, seen in record.spectrum.items():
        assert seen["new"] == record.widths[layer] < seen["wanted"] == seen["needed"]["0.95"]
        assert seen["lost"] == pytest.approx(0.95 - record.explained[layer], abs=1e-5)
        assert seen["lost"] > 0
    for record in taught(model, IMAGE, 2, variance=0.8).records.values():
        assert all(seen["new"] == seen["wanted"] and seen["lost"] == 0 for seen in record.spectrum.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_models_keeps_to_its_budget(family):
    make, example, shared = FAMILIES[family]
    torch.manual_seed(0)
    learner = Learner(make(), SPACE(variance=0.98, budget=2), example_input=example, shared=shared)
    records = [learner.learn(Task(str(n), data), SHORT) for n, data in enumerate(tasks(example, 2))]
    for record in records:
        assert record.full == ()
        for layer, seen in record.spectrum.items():
            assert seen["reused"] + seen["new"] == record.widths[layer]
            assert seen["core"] + seen["new"] == record.used[layer]
            assert 0 <= seen["new"] <= seen["wanted"]
            assert (seen["lost"] > 0) == (seen["new"] < seen["wanted"])
    assert any(seen["lost"] > 0 for seen in records[0].spectrum.values())


def test_of_a_layer_with_several_groups_the_one_that_loses_most_is_told():
    from spacecl.methods.space.selection import _merge

    plain = {"core": 1, "reused": 1, "rounded": 0, "new_without_projection": 9, "needed": {"0.9": 2}}
    held = plain | {"new": 2, "wanted": 6, "lost": 0.3, "threshold": 0.9}
    well = plain | {"new": 5, "wanted": 5, "lost": 0.0, "threshold": 0.8}
    for seen in (_merge(held, well), _merge(well, held)):
        assert (seen["new"], seen["wanted"], seen["lost"], seen["threshold"]) == (7, 11, 0.3, 0.9)


def test_a_task_beyond_the_budget_learns_as_if_it_were_the_last_and_is_told():
    torch.manual_seed(0)
    method = SPACE(variance=1.0, task_variance={"one": 0.3, "two": 0.3}, budget=2)
    learner = Learner(chain(), method, example_input=VECTOR)
    one, two, three = tasks(VECTOR, 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*budget.*")
        learner.learn(Task("one", one), SHORT)
        learner.learn(Task("two", two), SHORT)
    with pytest.warns(SpaceWarning, match="'three' is number 3, but the budget is for 2 tasks.* as if it were") as told:
        record = learner.learn(Task("three", three), SHORT)
    assert told[0].filename == __file__, "the warning does not point to the caller's line"
    assert record.used == {"0": 12, "2": 10}, "the task was held back"
    assert all(seen["new"] == seen["wanted"] > 2 for seen in record.spectrum.values())


@pytest.mark.filterwarnings("ignore:.*but the budget is for.*")
def test_a_network_that_grows_beyond_its_budget_has_room_again():
    learner = taught(chain(), VECTOR, 3, variance=1.0, budget=2, on_full="grow")
    assert [record.grown for record in learner.records.values()] == [False, False, True]
    assert all(learner.records["2"].widths[layer] > learner.records["1"].widths[layer] for layer in ("0", "2"))


@pytest.mark.parametrize("budget", [0, -3, 2.5, 2.0, True, "five", float("nan")])
def test_a_budget_is_a_whole_number_of_tasks(budget):
    with pytest.raises(ConfigError, match=r"budget=.* must be a whole number, at least 1"):
        SPACE(budget=budget)
    assert json.dumps(SPACE(budget=np.int64(5)).budget) == "5"


def test_the_command_line_takes_a_budget_and_tells_what_it_costs(tmp_path, capsys):
    command = ["run", "permuted-digits", "--tasks", "2", "--model", "mlp-small", "--set", "train.epochs=2"]
    command += ["--set", "options.variance=0.99", "--set", "eval_split=valid", "--out", str(tmp_path), "--set"]
    assert cli.main([*command, "options.budget=8"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(" 1/2"))
    result = json.loads((tmp_path / "result.json").read_text())
    spectrum = result["tasks"][0]["spectrum"]
    layer = max(spectrum, key=lambda layer: spectrum[layer]["lost"])
    seen, explained = spectrum[layer], result["tasks"][0]["explained"][layer]
    assert line.endswith(f"budget: {layer} {seen['new']} of {seen['wanted']} filters, {explained:.3f} of 0.990 explained")
    from spacecl.data.benchmarks.networks import NETWORKS

    assert Learner.load(tmp_path / "model", NETWORKS["mlp-small"]((1, 8, 8), 10)).method.budget == 8
    assert cli.main([*command, "options.budget=none"]) != 0
    assert "budget='none' must be a whole number" in capsys.readouterr().err


def test_without_a_budget_a_line_says_nothing_of_it(tmp_path, capsys):
    assert cli.main(["run", "permuted-digits", "--tasks", "1", "--set", "train.epochs=1", "--out", str(tmp_path)]) == 0
    assert "budget:" not in capsys.readouterr().out
