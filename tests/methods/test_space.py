"""SPACE's own steps, each against a plain computation: compensation, selection, several readers, starts, size."""

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from models import IMAGE, ConvNet, chain, tasks
from torch import nn

import spacecl
from spacecl import SPACE, Learner, Recipe, Task
from spacecl.methods.space.compensation import compensate
from spacecl.methods.space.moments import collect_statistics
from spacecl.structure.tensors import named_tensors
from spacecl.structure.trace import trace

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")

VECTOR = torch.zeros(1, 6)
STILL = Recipe(retrain_epochs=0)


def least_squares(inputs: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    return np.linalg.lstsq(inputs.double().numpy(), targets.double().numpy(), rcond=None)[0]


@pytest.fixture
def narrowing():
    """A chain whose second layer reads twelve channels of which seven stay; rows 0 to 3 of it and channels 0 to 4 are core."""
    model = chain().eval()
    channels = trace(model, VECTOR, "4")
    x = torch.randn(400, 6)
    moments = collect_statistics(model, channels.readings, [x], Fabric(accelerator="cpu", devices=1))
    keep, core = channels.all_units(), torch.zeros(channels.units, dtype=torch.bool)
    first, second = (group.units for group in channels.groups)
    keep[first[[2, 5, 6, 9, 11]]] = False
    core[first[[0, 1, 3]]] = core[second[:4]] = True
    with torch.no_grad():
        read = torch.relu(model[0](x))
    return model, channels, moments, keep, core, read


def test_free_filters_get_the_least_squares_fit_of_what_was_removed(narrowing):
    model, channels, moments, keep, _, read = narrowing
    nothing = torch.zeros_like(keep)
    result = compensate(channels, named_tensors(model), moments, keep, nothing, {})
    kept = keep[channels.groups[0].units]
    with torch.no_grad():
        target = model[2](read)
    fit = least_squares(torch.cat([read[:, kept], torch.ones(400, 1)], 1), target)  # of all that the layer put out
    np.testing.assert_allclose(result["2.weight"][:, kept].numpy().T, fit[:-1], atol=2e-3)
    np.testing.assert_allclose(result["2.bias"].numpy(), fit[-1], atol=2e-3)


def test_core_filters_change_on_new_channels_only_and_as_little_as_the_fit_asks(narrowing):
    model, channels, moments, keep, core, read = narrowing
    tensors = named_tensors(model)
    held = {name: channels.mask(name, core) for name in channels.shared}
    result = compensate(channels, tensors, moments, keep, core, held)
    assert all(torch.equal(result[name][mask], tensors[name][mask]) for name, mask in held.items()), "a held position changed"
    units = channels.groups[0].units
    new, removed = keep[units] & ~core[units], ~keep[units]
    lost = read[:, removed] @ tensors["2.weight"][:4, removed].T
    fit = least_squares(read[:, new], lost)  # core filters have no bias of their own to change
    np.testing.assert_allclose((result["2.weight"][:4] - tensors["2.weight"][:4])[:, new].numpy().T, fit, atol=2e-3)
    assert not torch.equal(result["2.bias"][4:], tensors["2.bias"][4:])


def test_compensation_reaches_through_a_flatten():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 64, 3))
    x = nn.functional.interpolate(torch.randn(600, 3, 2, 2), size=8, mode="bilinear")
    data, errors = (x, torch.zeros(600, dtype=torch.int64)), {}
    for on in (True, False):
        small, _ = spacecl.compress(model, data, 0.9, example_input=IMAGE, recipe=STILL, compensate=on)
        with torch.no_grad():
            errors[on] = float((small(x) - model(x)).square().mean())
    assert errors[True] < 0.5 * errors[False]


def dead_first() -> nn.Module:
    """Of the first layer's filters only the last four do anything."""
    model = chain()
    with torch.no_grad():
        model[0].weight[:8] = 0
        model[0].bias[:] = 1
    return model


@pytest.mark.parametrize(("selection", "live"), [("pivoted", True), ("first", False)])
def test_pivoting_keeps_the_filters_that_do_something(selection, live):
    x, y = tasks(VECTOR, 1, examples=300)[0]
    small, record = spacecl.compress(dead_first(), (x, y), 0.8, example_input=VECTOR, recipe=STILL, selection=selection)
    assert record.widths["0"] < 4
    assert bool((small[0].weight.abs().sum(1) > 0).all()) is live


def test_a_group_with_several_readers_takes_the_most_that_any_needs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Identity(), nn.Linear(10, 3))
    x, y = tasks(VECTOR, 1, examples=500)[0]
    _, alone = spacecl.compress(model, (x, y), 0.95, example_input=VECTOR, recipe=STILL)

    class Branches(nn.Module):
        """The same channels, read as they are, and where few of them are ever above a threshold."""

        def __init__(self):
            super().__init__()
            self.hidden, self.plain, self.rare, self.fc = model[0], nn.Linear(10, 3), nn.Linear(10, 3), nn.Linear(3, 3)

        def forward(self, x):
            x = self.hidden(x)
            return self.fc(self.plain(x) + self.rare(torch.relu(0.001 * x - 1)))

    _, both = spacecl.compress(Branches(), (x, y), 0.95, example_input=VECTOR, recipe=STILL)
    assert both.widths["hidden"] == alone.widths["0"] > 1


def test_a_later_task_begins_with_the_last_tasks_norms_on_core_channels():
    learner = Learner(ConvNet(), SPACE(variance=0.7), example_input=IMAGE)
    learner.learn(Task("0", tasks(IMAGE, 1)[0]), Recipe(epochs=2))
    core = learner.core
    start, own = core.initial_tensors(3), core.tasks[0].private
    kept = core.tasks[0].units[core.channels.dims["norm1.weight"][0]]
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert torch.equal(start[f"norm1.{name}"][kept], own[f"norm1.{name}"])
    assert torch.equal(start["norm1.weight"][~kept], torch.ones(int((~kept).sum())))
    assert start["fc.weight"].shape == (3, 12)


def test_size_is_that_of_all_networks_together_with_every_tasks_norms():
    learner = Learner(ConvNet(), SPACE(variance=0.7, reuse="all"), example_input=IMAGE)
    for number, data in enumerate(tasks(IMAGE, 2)):
        learner.learn(Task(str(number), data), Recipe(epochs=1))
    conv1, conv2, hidden = (learner.records["1"].widths[name] for name in ("conv1", "conv2", "hidden"))
    weights = conv1 * 28 + conv2 * (9 * conv1 + 1) + hidden * (16 * conv2 + 1)
    norms = 2 * (learner.records["0"].widths["conv1"] + conv1)
    full = 8 * 28 + 8 * 73 + 12 * 129 + 16
    assert learner.size == pytest.approx((weights + norms) / full)
    assert learner.size == learner.records["1"].size
    small = learner.subnet("1")
    assert learner.records["1"].parameters == weights + 2 * conv1 + 3 * hidden + 3
    assert sum(parameter.numel() for parameter in small.parameters()) == learner.records["1"].parameters


def test_samples_are_what_was_asked_for_or_enough():
    x, y = tasks(VECTOR, 1, examples=900)[0]
    asked = Learner(chain(), SPACE(variance=0.8, samples=300), example_input=VECTOR).learn(Task("0", (x, y)), Recipe(epochs=1))
    assert set(asked.samples.values()) == {300}
    most = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR).learn(Task("0", (x, y)), Recipe(epochs=1))
    assert set(most.samples.values()) == {810}, "fewer than 1,000: all that there are"


def test_the_paper_to_the_letter():
    method = SPACE.paper(variance={"0": 0.999, "*": 0.99})
    assert (method.activations, method.selection, method.freeze) == ("pre", "first", "filters")
    assert (method.compensate, method.projection, method.samples) == (False, True, 1000)
    assert SPACE.paper(projection=False).projection is False


def test_the_spectrum_of_tied_channels_is_told_in_channels():
    """Channels that a chunk has tied lane by lane are kept in pairs."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.head = nn.Linear(12, 40), nn.Linear(20, 2)

        def forward(self, x):
            one, two = torch.relu(self.a(x)).chunk(2, 1)
            return self.head(one * torch.sigmoid(two))

    x = torch.randn(900, 12)
    learner = Learner(Gated(), SPACE(variance=0.7), example_input=x[:1])
    for number in range(2):
        record = learner.learn(Task(str(number), (x, (x[:, number] > 0).long())), Recipe(epochs=3))
        seen = record.spectrum["a"]
        assert seen["reused"] + seen["new"] == record.widths["a"]
        assert seen["new_without_projection"] >= seen["new"]
        assert seen["needed"]["0.7"] == seen["new"]


def test_the_published_choices_are_written_down_alike_in_both_places():
    from spacecl.data.benchmarks.presets import PUBLISHED

    assert SPACE.paper() == SPACE(variance=0.99, **PUBLISHED)
