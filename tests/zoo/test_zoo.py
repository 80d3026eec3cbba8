"""The zoo: models that people bring are admitted as they are, or refused with the expected reason."""

import importlib.util
import warnings

import pytest
import torch
from zoo_models import CLASSES, ZOO

from spacecl import SPACE, Learner, Recipe, Task
from spacecl.errors import UnsupportedModelError
from spacecl.structure.blueprint import Blueprint
from spacecl.structure.calling import list_tensors, map_tensors
from spacecl.structure.probe import _Probe
from spacecl.structure.validate import validate_model

_MISSING = [name for name in ("torchvision", "timm", "transformers") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(_MISSING), reason=f"{', '.join(_MISSING)} not installed; the extra zoo has them"),
]
EXAMPLES = 24


@pytest.fixture(autouse=True)
def no_warnings():
    """Layers that keep their full width are no failure here: docs/models.md shows how much can be narrowed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def validate(name: str) -> Blueprint:
    torch.manual_seed(0)
    return validate_model(*ZOO[name].make())


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.refused is None])
def test_a_model_is_admitted_and_its_narrowed_networks_equal_the_masked_ones(name):
    blueprint = validate(name)
    channels = blueprint.channels
    probe = _Probe(blueprint.module, blueprint.example, channels)
    generator = torch.Generator().manual_seed(1)  # not one of the narrowings that validation has tried
    keep = torch.rand(channels.units, generator=generator) < 0.5
    for group in channels.groups:
        keep[group.units[int(torch.randint(len(group.units), (1,), generator=generator))]] = True
    assert probe.compare(keep, range(len(channels.groups))) is None


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.refused is not None])
def test_a_model_is_refused_with_the_expected_reason(name):
    with pytest.raises(UnsupportedModelError, match=ZOO[name].refused):
        validate(name)


def draw_task(name: str, example, number: int) -> Task:
    """A small task: random pictures, or random tokens where the example has any."""
    generator = torch.Generator().manual_seed(number)

    def draw(x):
        shape = (EXAMPLES, *x.shape[1:])
        if x.is_floating_point():
            return torch.randn(shape, generator=generator)
        return torch.ones(shape, dtype=x.dtype) if bool((x == 1).all()) else torch.randint(2, 10, shape, generator=generator)

    labels = torch.arange(EXAMPLES) % CLASSES
    return Task(f"task {number}", (map_tensors(draw, example), labels))


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.taught])
def test_a_task_keeps_its_bits_when_another_is_learned(name):
    torch.manual_seed(0)
    model, example = ZOO[name].make()
    learner = Learner(model, SPACE(variance=0.8), example_input=example)
    first, second = (draw_task(name, example, number) for number in (1, 2))
    recipe = Recipe(epochs=1, retrain_epochs=1)
    learner.learn(first, recipe)
    inputs = first.train[0]
    before = learner.logits(inputs, "task 1")
    assert before.shape == (EXAMPLES, CLASSES)
    assert learner.size < 1
    learner.learn(second, recipe)
    assert torch.equal(learner.logits(inputs, "task 1"), before)
    learner.verify()
    assert all(len(x) == EXAMPLES for x in list_tensors(inputs))
