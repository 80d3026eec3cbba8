"""Whether a network is any good, and the warning that says so."""

import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from models import chain, tasks
from torch import nn

from spacecl import STL, Learner, Recipe, Task
from spacecl.data.targets import Scaling, Targets
from spacecl.errors import SpaceWarning
from spacecl.learning.objective import Objective
from spacecl.learning.quality import Examples, describe_weakness, reduce_inputs


def keep(x, y, limit=5000):
    examples = Examples(limit)
    for part_x, part_y in zip(x.split(7), y.split(7)):
        assert list(examples.keep([(part_x, part_y, part_y)])) == [(part_x, part_y, part_y)]
    return examples


def make_data(count, seed=0, noise=0.0):
    """Two classes that a hyperplane separates."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 10, generator=generator)
    return x, (x[:, 0] + noise * torch.randn(count, generator=generator) > 0).long()


TRAIN, VALID = keep(*make_data(500)), keep(*make_data(100, seed=1))


def test_an_accuracy_like_that_of_guessing_is_reported():
    for accuracy in (0.3, 0.4, 0.5):
        assert "not clearly more than by guessing the most frequent class" in describe_weakness(accuracy, 100, TRAIN, VALID)
    unequal = keep(torch.zeros(100, 3), (torch.arange(100) < 10).long())
    assert "guessing the most frequent class (90%)" in describe_weakness(0.93, 100, unequal, unequal)
    assert describe_weakness(0.99, 100, unequal, unequal) is None


def test_an_accuracy_far_below_that_of_a_linear_classifier_is_reported():
    text = describe_weakness(0.75, 100, TRAIN, VALID)
    assert "clearly less than a linear classifier of the raw inputs" in text
    assert describe_weakness(0.97, 100, TRAIN, VALID) is None


def test_a_network_is_not_blamed_for_what_a_linear_classifier_cannot_do_either():
    train, valid = keep(*make_data(500, noise=1.0)), keep(*make_data(100, seed=1, noise=1.0))
    assert describe_weakness(0.7, 100, train, valid) is None


def test_so_few_validation_examples_that_nothing_can_be_said_are_not_reported():
    few = keep(*make_data(3, seed=1))
    assert describe_weakness(0.5, 3, TRAIN, few) is None
    assert describe_weakness(1.0, 8, TRAIN, keep(*make_data(8, seed=1))) is None
    assert describe_weakness(0.5, 3, TRAIN, Examples()) is None


def keep_outputs(x, y, outputs):
    examples = Examples()
    list(examples.keep([(x, y, outputs)]))
    return examples


def test_networks_for_values_are_compared_with_the_mean_and_with_a_linear_model():
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(600, 10, generator=generator), torch.randn(600, 1, generator=generator)
    y = 1e4 + 500 * (x[:, :1] + 0.3 * noise)
    objective = Objective(Targets("values", 1), Scaling.measure(y[:500]))
    train = keep_outputs(x[:500], y[:500], y[:500])

    def judge(outputs, rows=slice(500, None)):
        return describe_weakness(0.0, 100, train, keep_outputs(x[rows], y[rows], outputs), objective)

    assert judge(1e4 + 500 * x[500:, :1]) is None
    assert "not clearly closer to the targets than their mean" in judge(1e4 + 500 * noise[500:])
    assert "clearly further from the targets than a linear model" in judge(1e4 + 150 * x[500:, :1])
    assert judge(torch.full((1, 1), 1e4), slice(500, 501)) is None, "of one example, nothing can be said"
    own = replace(objective, own_loss=F.l1_loss)
    assert describe_weakness(0.0, 100, train, keep_outputs(x[500:], y[500:], noise[500:]), own) is None


def test_networks_for_labels_are_compared_with_the_mean_and_with_a_linear_model():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 10, generator=generator)
    y = (x[:, :2] > 0).long()
    objective, train = Objective(Targets("labels", 2)), keep_outputs(x[:500], y[:500], x[:500, :2])

    def judge(outputs):
        return describe_weakness(0.0, 100, train, keep_outputs(x[500:], y[500:], outputs), objective)

    assert judge(5 * x[500:, :2]) is None
    assert "not clearly closer to the targets than their mean" in judge(x[500:, 2:4])
    assert "clearly further from the targets than a linear model" in judge(0.5 * x[500:, :2] + 0.3 * x[500:, 3:5])


def test_a_warning_names_the_metric():
    torch.manual_seed(0)
    learner = Learner(chain(), STL(), example_input=torch.zeros(1, 6))
    x = torch.randn(300, 6)
    with pytest.warns(SpaceWarning, match=r"Task 'noise': the network has R² -?\d.*, not clearly closer to the targets"):
        learner.learn(Task("noise", (x, torch.randn(300))), Recipe(epochs=1))


def test_integer_inputs_have_no_linear_classifier():
    words = keep(torch.randint(0, 9, (100, 4)), torch.arange(100) % 2)
    assert not words.features
    assert describe_weakness(0.75, 100, words, words) is None
    assert describe_weakness(0.5, 100, words, words) is not None


def test_inputs_of_every_shape_are_reduced_and_few_examples_are_kept():
    for shape in ((3, 8, 8), (3, 100, 60), (2000, 4, 4), (1,), (2, 3000), (5, 4, 4, 4, 8)):
        x = torch.ones(4, *shape)
        reduced = reduce_inputs(x)
        assert reduced.shape[1] <= 1024
        assert torch.allclose(reduced, torch.ones(()))
    assert len(keep(torch.zeros(100, 2), torch.zeros(100), limit=30)) == 30


def test_a_task_that_was_not_learned_well_is_reported_with_what_to_do():
    x, y = make_data(400)
    learner = Learner(chain_of(10), STL(), example_input=x[:1])
    with pytest.warns(SpaceWarning, match=r"Task 'noise': the network is right on \d+% of the 40 validation.*Give more"):
        learner.learn(Task("noise", (x, torch.randint(0, 2, (400,)))), Recipe(epochs=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.learn(Task("good", (x, y)), Recipe(epochs=30))
        learner.learn(Task("untrained", (x, torch.randint(0, 2, (400,)))), Recipe(epochs=0))


def test_looking_at_the_quality_does_not_change_what_is_learned(monkeypatch):
    def learn():
        torch.manual_seed(0)
        learner = Learner(chain(), STL(), example_input=torch.zeros(1, 6))
        for number, data in enumerate(tasks(torch.zeros(1, 6), 2)):
            learner.learn(Task(str(number), data), Recipe(epochs=2))
        return learner.digests(), torch.rand(1)

    with_it = learn()
    monkeypatch.setattr("spacecl.learning.learn_task.describe_weakness", lambda *arguments: None)
    monkeypatch.setattr(Examples, "keep", lambda self, batches: batches)
    assert learn() == with_it


def chain_of(inputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 2))
