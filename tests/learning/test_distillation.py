"""Retraining from few examples: a pruned network learns the full network's answers to mixtures of examples."""

import torch
from torch import nn

from spacecl import SPACE, Learner, Recipe, Task
from spacecl.learning.distillation import mix_examples

VECTOR = torch.zeros(1, 6)


def learn(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 2))
    learner = Learner(model, SPACE(size=0.3, budget=1, **options), example_input=VECTOR)
    x = torch.randn(120, 6, generator=torch.Generator().manual_seed(1))
    flipped = torch.rand(120, generator=torch.Generator().manual_seed(2)) < 0.15  # labels that a network should not follow
    y = ((x[:, 0] * x[:, 1] > 0) ^ flipped).long()
    return learner.learn(Task("one", (x, y)), Recipe(epochs=40, retrain_epochs=40, lr=5e-3))


def test_from_few_examples_a_pruned_network_answers_as_the_full_one_does():
    distilled, labelled = learn(), learn(distill_below=0)
    assert distilled.target["predicted"] == labelled.target["predicted"], "both begin with the same network"
    assert distilled.target["reached"]["lost"] < 0.5 * labelled.target["reached"]["lost"]


def test_from_enough_examples_it_learns_the_labels():
    assert learn(distill_below=100).digest == learn(distill_below=0).digest != learn(distill_below=109).digest


def test_the_published_method_learns_the_labels():
    assert SPACE.paper().distill_below == 0


def test_all_inputs_of_an_example_are_mixed_alike_and_tokens_are_not():
    x = torch.randn(4, 3)
    mixed = mix_examples({"a": x, "b": 2 * x})
    torch.testing.assert_close(mixed["b"], 2 * mixed["a"])
    torch.testing.assert_close(mixed["a"][0], 0.125 * x[0] + 0.875 * x[1])
    torch.testing.assert_close(mixed["a"][3], 0.875 * x[3] + 0.125 * x[0])
    tokens = (x, torch.arange(4))
    assert mix_examples(tokens) is tokens
    assert torch.equal(mix_examples(x[:1]), x[:1])
