"""Sizes in the code of a module follow the widths: of splits into unequal parts, of heads, and what is computed from them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spacecl import SPACE, Learner, Recipe, Task
from spacecl.learning.core import Core
from spacecl.learning.growth import grow
from spacecl.learning.state import State
from spacecl.structure.validate import validate_model

TOKENS = torch.zeros(1, 5, 12)
IMAGE = torch.zeros(1, 3, 8, 8)


class Mixer(nn.Module):
    """Convolves some of the channels, by the sizes of parts that it stores."""

    def __init__(self):
        super().__init__()
        self.parts = (3, 5, 8)
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Conv2d(5, 5, 3, padding=1, groups=5)

    def forward(self, x):
        first, second, rest = torch.split(x, self.parts, dim=1)
        return torch.cat([self.first(first), self.second(second), rest], 1)


def make_mixer():
    return nn.Sequential(nn.Conv2d(3, 16, 3), Mixer(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))


class WindowAttention(nn.Module):
    """Takes the size of a head from the width of what it reads, for a reshape and for a scale."""

    def __init__(self, heads=4):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x):
        rows, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(rows, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        q = q * (width // self.heads) ** -0.5
        y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(rows, tokens, width))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attn, self.head = nn.Linear(12, 12), WindowAttention(), nn.Linear(12, 3)

    def forward(self, x):
        x = self.embed(x)
        return self.head((x + self.attn(x)).mean(1))


def narrow(blueprint, kept):
    """The network that keeps the first units of every group: `kept` has their numbers."""
    channels, keep = blueprint.channels, blueprint.channels.all_units()
    for group, count in zip(channels.groups, kept, strict=True):
        keep[group.units[count:]] = False
    return blueprint.build(channels.gather(blueprint.tensors(), keep)).eval(), keep


def test_the_parts_of_a_split_are_groups_of_their_own():
    blueprint = validate_model(make_mixer(), IMAGE)
    assert [(group.layers, len(group.units), group.number) for group in blueprint.channels.groups] == [
        (("0",), 3, 0),
        (("0",), 5, 1),
        (("0",), 8, 2),
    ]
    network, _ = narrow(blueprint, (1, 4, 2))
    assert (network[1].first.groups, network[1].second.groups) == (1, 4)
    assert network(torch.randn(3, 3, 8, 8)).shape == (3, 2)


def test_a_network_with_unequal_parts_grows_and_keeps_its_tasks():
    torch.manual_seed(0)
    learner = Learner(make_mixer(), SPACE(variance=0.7), example_input=IMAGE)
    x = torch.randn(60, 3, 8, 8)
    learner.learn(Task("sum", (x, (x.sum((1, 2, 3)) > 0).long())), Recipe(epochs=1))
    grown = grow(learner.core, 2)
    assert [len(group.units) for group in grown.channels.groups] == [6, 10, 16]
    torch.testing.assert_close(grown.network(0).eval()(x), learner.core.network(0).eval()(x), rtol=0, atol=0)


def test_the_size_of_a_head_stays_when_the_width_that_it_was_taken_from_changes():
    blueprint = validate_model(Block(), TOKENS)
    assert {group.layers: len(group.units) for group in blueprint.channels.groups} == {
        ("embed", "attn.proj"): 12,
        ("attn.qkv",): 4,
    }
    network, keep = narrow(blueprint, (2, 3))  # fewer channels than heads: the code would compute a size of 0
    full = blueprint.tensors()
    masked = {name: tensor.clone() for name, tensor in full.items()}
    for name in masked:
        masked[name][~blueprint.channels.mask(name, keep)] = 0
    x = torch.randn(7, 5, 12)
    expected = torch.func.functional_call(blueprint.module, masked, (x,))
    torch.testing.assert_close(network(x), expected)


def test_channels_that_are_merged_with_examples_and_divided_again_stay_prunable():
    class Unfold(nn.Module):
        """Patches as examples, and back, as in MobileViT."""

        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 10, 3, padding=1), nn.Linear(10, 2)

        def forward(self, x):
            x = self.conv(x)
            rows, width = x.shape[:2]
            x = x.reshape(rows * width * 4, 2, 4, 2).transpose(1, 2).reshape(rows, width, 16, 4)
            return self.fc(x.mean((2, 3)))

    channels = validate_model(Unfold(), IMAGE).channels
    assert {group.layers: len(group.units) for group in channels.groups} == {("conv",): 10}


def test_a_layer_whose_result_is_not_used_keeps_its_width_and_reads_what_there_is():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.pooler, self.head = nn.Linear(12, 9), nn.Linear(9, 6), nn.Linear(9, 2)

        def forward(self, x):
            x = self.embed(x)
            self.pooler(x[:, 0]).softmax(-1)
            return self.head(x.mean(1))

    channels = validate_model(Unused(), TOKENS).channels
    assert {group.layers: len(group.units) for group in channels.groups} == {("embed",): 9}
    assert [place.layer for place in channels.readings] == ["head"]


def test_a_layer_that_has_a_second_name_which_is_not_used_stays_prunable():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.head = nn.Linear(12, 9), nn.Linear(9, 2)
            self.decoder = nn.Linear(12, 9)
            self.decoder.weight = self.shared.weight

        def forward(self, x):
            return self.head(self.decoder(x).mean(1))

    assert validate_model(Named(), TOKENS).channels.units == 9


def test_a_product_with_a_transposed_parameter_is_a_linear_layer():
    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.head = nn.Parameter(torch.randn(9, 12)), nn.Linear(9, 2)

        def forward(self, x):
            return self.head((x @ self.weight.T).relu().mean(1))

    channels = validate_model(Transposed(), TOKENS).channels
    assert {group.layers: len(group.units) for group in channels.groups} == {("weight",): 9}


def test_operators_that_work_in_place_follow_the_rule_of_the_plain_one():
    class Filled(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = nn.Linear(12, 9), nn.Linear(9, 2)

        def forward(self, x):
            y = F.relu(self.hidden(x))
            y.masked_fill_(x[..., :1] > 5, 0.0)
            return self.head(y.mean(1))

    assert validate_model(Filled(), TOKENS).channels.units == 9


class Dense(nn.Module):
    """A block as in RexNet: some channels are added to what it reads, the others are new."""

    def __init__(self, inputs, new):
        super().__init__()
        self.inputs, self.layer = inputs, nn.Linear(inputs, inputs + new)

    def forward(self, x):
        y = F.relu(self.layer(x))
        return torch.cat([y[..., : self.inputs] + x, y[..., self.inputs :]], -1)


def test_channels_that_are_selected_by_a_stored_number_stay_prunable():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 6), Dense(6, 4), Dense(10, 3), nn.Flatten(), nn.Linear(65, 2))
    blueprint = validate_model(model, TOKENS)
    channels, keep = blueprint.channels, blueprint.channels.all_units()
    assert channels.units == 13
    assert not any(channels.unprunable.values())
    keep[torch.tensor([1, 4, 7, 12])] = False
    network = blueprint.build(channels.gather(blueprint.tensors(), keep))
    assert [module.inputs for module in network if isinstance(module, Dense)] == [4, 7]
    assert network[:3](torch.randn(2, 5, 12)).shape == (2, 5, 9)


class Shaped(nn.Module):
    """Sizes in tuples and lists: a scale that is reshaped, a layer norm of one's own, and a reshape to stored sizes."""

    def __init__(self, channels):
        super().__init__()
        self.shape, self.normalized_shape, self.image = (channels, 1), (channels,), [channels, 5]
        self.scale, self.weight = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.ones(channels))

    def forward(self, x):
        x = F.layer_norm(x, self.normalized_shape, self.weight).transpose(1, 2) * self.scale.view(self.shape)
        return x.flatten(1).view(-1, *self.image)


def test_numbers_in_tuples_and_lists_follow_the_channels():
    model = nn.Sequential(nn.Linear(12, 9), Shaped(9), nn.Flatten(), nn.Linear(45, 2))
    blueprint = validate_model(model, TOKENS)
    channels, keep = blueprint.channels, blueprint.channels.all_units()
    assert (channels.units, any(channels.unprunable.values())) == (9, False)
    keep[3:] = False
    network = blueprint.build(channels.gather(blueprint.tensors(), keep))
    assert (network[1].shape, network[1].normalized_shape, network[1].image) == ((3, 1), (3,), [3, 5])
    assert network(torch.randn(7, 5, 12)).shape == (7, 2)
    assert (model[1].shape, blueprint.module[1].image) == ((9, 1), [9, 5])


def test_unflatten_follows_the_channels():
    layers = [nn.Linear(12, 24), nn.ReLU(), nn.Unflatten(-1, (4, 6)), nn.Linear(6, 3), nn.Flatten(), nn.Linear(60, 2)]
    blueprint = validate_model(nn.Sequential(*layers), TOKENS)
    channels, keep = blueprint.channels, blueprint.channels.all_units()
    assert {group.layers: len(group.units) for group in channels.groups} == {("0",): 6, ("3",): 3}
    keep[channels.groups[0].units[2:]] = False
    network = blueprint.build(channels.gather(blueprint.tensors(), keep))
    assert (network[2].unflattened_size, network[0].out_features) == ((4, 2), 8)


def test_channels_that_are_selected_by_a_number_in_the_code_are_not_pruned():
    class Fixed(Dense):
        def forward(self, x):
            y = F.relu(self.layer(x))
            return torch.cat([y[..., :6] + x, y[..., 6:]], -1)

    model = nn.Sequential(nn.Linear(12, 6), Fixed(6, 4), nn.Linear(10, 7), nn.Flatten(), nn.Linear(35, 2))
    with pytest.warns(UserWarning, match="selected by number"):
        channels = validate_model(model, TOKENS).channels
    assert [group.layers for group in channels.groups] == [("2",)]


@pytest.mark.parametrize(("make", "example"), [(make_mixer, IMAGE), (Block, TOKENS)])
def test_a_learner_that_was_saved_before_these_rules_is_read_as_it_was(make, example, tmp_path):
    torch.manual_seed(0)
    model, x = make(), torch.randn(60, *example.shape[1:])
    extra = nn.Sequential(nn.Conv2d(3, 3, 1) if example.dim() == 4 else nn.Linear(12, 12), model)
    learner = Learner(extra, SPACE(variance=0.7), example_input=example)
    with pytest.warns(UserWarning, match="split into unequal parts|its code needs all channels|used by their number"):
        learner._state = State(learner.method, Core.empty(validate_model(extra, example, rules=3)))
    learner.learn(Task("sum", (x, (x.flatten(1).sum(1) > 0).long())), Recipe(epochs=1))
    learner.save(tmp_path / "saved")
    again = Learner.load(tmp_path / "saved", extra)
    assert again.core.blueprint.rules == 3
    torch.testing.assert_close(again.logits(x, task="sum"), learner.logits(x, task="sum"), rtol=0, atol=0)
