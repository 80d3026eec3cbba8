"""SPACE(multiple=...): widths of a task's network are multiples, as far as free channels and the size allow."""

import pytest
import torch
from models import tasks
from torch import nn

from spacecl import SPACE, ConfigError, Learner, Recipe, Task

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")
VECTOR = torch.zeros(1, 6)
SHORT = Recipe(epochs=2, retrain_epochs=1)
TARGETS = ({"variance": 0.6}, {"tolerance": 0.3}, {"size": 0.4, "budget": 2}, {"variance": 0.6, "reuse": "all"})


def teach(**options) -> Learner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3))
    learner = Learner(model, SPACE(**options), example_input=VECTOR)
    for number, data in enumerate(tasks(VECTOR, 2)):
        learner.learn(Task(str(number), data), SHORT)
    return learner


def list_widths(learner: Learner, layers=("0", "2")) -> list[int]:
    return [record.widths[layer] for record in learner.records.values() for layer in layers]


@pytest.mark.parametrize("target", TARGETS)
def test_every_width_is_a_multiple_while_channels_are_free(target):
    assert any(width % 8 for width in list_widths(teach(**target)))
    learner = teach(**target, multiple=8)
    assert not any(width % 8 for width in list_widths(learner))
    spectrum = [layer for record in learner.records.values() for layer in record.spectrum.values()]
    assert any(layer["rounded"] for layer in spectrum)
    assert all(0 <= layer["rounded"] <= min(7, layer["new"]) for layer in spectrum)
    assert learner.size <= target.get("size", 1)
    assert learner.verify()


def test_a_size_is_kept_even_if_no_multiple_fits_into_it():
    learner = teach(size=0.04, budget=2, multiple=16)
    assert learner.size <= 0.04 < 16 * (6 + 1) / (40 * 7 + 30 * 41)


def test_a_layer_has_its_own_multiple_and_one_that_no_pattern_matches_none():
    learner = teach(variance=0.6, multiple={"2": 10})
    assert not any(width % 10 for width in list_widths(learner, ["2"]))
    assert all(record.spectrum["0"]["rounded"] == 0 for record in learner.records.values())
    assert list_widths(learner, ["0"])[:1] == list_widths(teach(variance=0.6), ["0"])[:1]


def test_a_multiple_of_which_there_are_too_few_channels_is_not_reached():
    assert list_widths(teach(variance=0.6, multiple=64)) == list_widths(teach(variance=0.6))


@pytest.mark.parametrize("multiple", [0, -8, 1.5, True, "8", {"0": 0}, {1: 8}])
def test_a_multiple_that_cannot_be_is_refused(multiple):
    with pytest.raises(ConfigError, match="multiple"):
        SPACE(multiple=multiple)


def test_a_pattern_that_matches_no_layer_is_refused():
    with pytest.raises(ConfigError, match='multiple: the pattern "conv9" matches no layer'):
        teach(multiple={"conv9": 8})
