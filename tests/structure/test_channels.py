"""Owner ids over every family of models: what is tied, what a narrowed network computes, what is refused."""

import warnings
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from models import FAMILIES, IMAGE, ConvNet, ResNet
from torch import nn

from spacecl.errors import ConfigError, SpaceWarning, UnsupportedModelError
from spacecl.structure.blueprint import rebuild
from spacecl.structure.probe import _AffineNorms, _Probe, check_narrowing
from spacecl.structure.tensors import named_tensors
from spacecl.structure.trace import trace
from spacecl.structure.validate import validate_model


def find_groups(model, example=IMAGE, **options):
    return sizes_of(validate_model(model, example, **options).channels)


def sizes_of(channels):
    return {group.layers: len(group.units) for group in channels.groups}


def randomize(module):
    for name, tensor in named_tensors(module).items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.5 if name.endswith("running_var") else torch.randn_like(tensor) * 0.4)


@cache
def validated(family):
    """The blueprint of a family's model; tests that share it do not change it."""
    make, example, shared = FAMILIES[family]
    return validate_model(make(), example, shared=shared)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_narrowed_network_computes_what_the_masked_one_does(family):
    blueprint, example = validated(family), FAMILIES[family][1]
    channels = blueprint.channels
    module = rebuild(blueprint.module, {}).double().eval()
    for seed in range(3):
        torch.manual_seed(seed)
        randomize(module)
        tensors = named_tensors(module)
        keep = torch.rand(channels.units) < 0.6
        for group in channels.groups:
            keep[group.units[torch.randint(len(group.units), (1,))]] = True
        masked = {
            name: tensor * channels.mask(name, keep)
            if tensor.is_floating_point() and not name.endswith("running_var")
            else tensor
            for name, tensor in tensors.items()
        }
        x = torch.randn(4, *example.shape[1:]).double() if example.is_floating_point() else torch.randint(0, 20, (4, 7))
        small = rebuild(module, channels.gather(tensors, keep), channels).eval()
        with _AffineNorms():  # norms over channels rightly differ
            torch.testing.assert_close(small(x), rebuild(module, masked).eval()(x), atol=1e-9, rtol=1e-9)
        assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_gathered_and_scattered_back_are_the_same(family):
    channels, tensors = validated(family).channels, validated(family).tensors()
    keep = torch.rand(channels.units) < 0.5
    small = channels.gather(tensors, keep)
    blank = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    full = channels.scatter(small, keep, blank)
    for name, tensor in tensors.items():
        assert torch.equal(full[name], torch.where(channels.mask(name, keep), tensor, torch.zeros_like(tensor))), name
        assert small[name].numel() == int(channels.mask(name, keep).sum())


def test_residual_sums_tie_the_layers_that_meet():
    assert sizes_of(validated("resnet").channels) == {
        ("conv", "layers.0.conv2", "layers.1.conv2"): 6,
        ("layers.0.conv1",): 6,
        ("layers.1.conv1",): 6,
        ("layers.2.conv1",): 12,
        ("layers.2.conv2", "layers.2.shortcut.0", "layers.3.conv2"): 12,
        ("layers.3.conv1",): 12,
    }


def test_the_papers_resnet18_has_twelve_groups():
    assert len(trace(ResNet(base=40, stages=4).eval(), torch.zeros(1, 3, 32, 32)).groups) == 12


def test_concatenated_layers_keep_widths_of_their_own():
    assert sizes_of(validated("densenet").channels) == {
        ("stem",): 6,
        ("layers.0.2",): 4,
        ("layers.1.2",): 4,
        ("layers.2.2",): 4,
    }


def test_gates_and_depthwise_layers_follow_their_channels():
    blueprint = validated("mobilenet")
    assert sizes_of(blueprint.channels) == {
        ("stem.0", "project.0"): 6,
        ("expand.0", "gate.up"): 14,
        ("gate.down",): 4,
    }
    keep = blueprint.channels.all_units()
    keep[blueprint.channels.groups[0].units[2:]] = False
    widths = blueprint.channels.widths(keep)
    assert (widths["stem.0"], widths["doubling"], widths["depthwise.0"]) == (2, 4, 14)
    small = rebuild(blueprint.module, blueprint.channels.gather(blueprint.tensors(), keep))
    assert (small.doubling.groups, small.doubling.out_channels, small.slope.num_parameters) == (2, 4, 4)


def test_a_shuffle_and_halves_tie_channels_lane_by_lane():
    assert sizes_of(validated("shuffle").channels) == {("left", "right"): 6, ("inner",): 4, ("branch",): 4, ("outer",): 7}


def test_a_layer_used_twice_ties_its_input_to_its_output():
    assert sizes_of(validated("twice").channels) == {("stem", "again"): 3, ("hidden",): 9}


def test_the_hidden_layers_of_a_transformer_are_narrowed_and_the_rest_shared():
    channels = validated("vision transformer").channels
    assert sizes_of(channels) == {("blocks.0.fc1",): 32, ("blocks.1.fc1",): 32}
    assert not any(channels.unprunable.values())


def test_a_whole_transformer_is_narrowed_although_its_code_divides_the_width_by_the_heads():
    channels = validated("whole transformer").channels
    stream = ("patch", "blocks.0.attn.proj", "blocks.0.fc2", "blocks.1.attn.proj", "blocks.1.fc2")
    heads = {(f"blocks.{number}.attn.qkv",): 4 for number in range(2)}
    assert sizes_of(channels) == {stream: 16, ("blocks.0.fc1",): 32, ("blocks.1.fc1",): 32} | heads
    assert not channels.unprunable


def test_a_layer_that_cannot_be_pruned_is_reported_with_the_reason():
    class Accumulating(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.fc = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(torch.relu(self.second(self.first(x).cumsum(1))))

    with pytest.warns(SpaceWarning, match=r"first: mixed by cumsum \(test_channels.py, line \d+"):
        assert find_groups(Accumulating(), torch.zeros(1, 6)) == {("second",): 4}


class HardCoded(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.fc = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1), nn.Linear(256, 2)

    def forward(self, x):
        return self.fc(F.relu(self.second(F.relu(self.first(x)))).view(-1, 256))


def test_a_hard_coded_size_makes_only_the_layer_that_feeds_it_unprunable():
    with pytest.warns(SpaceWarning, match=r"second: its code needs all channels \(test_channels.py, line \d+\)"):
        assert find_groups(HardCoded()) == {("first",): 5}
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpaceWarning)
        assert find_groups(HardCoded(), shared=["second"]) == {("first",): 5}


class ByNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.fc = nn.Conv2d(3, 6, 3), nn.Conv2d(3, 4, 1), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.second(self.first(x)[:, 1:4]).mean((2, 3)))


def test_channels_selected_by_number_are_unprunable():
    with pytest.warns(SpaceWarning, match=r"first: selected by number \(test_channels.py"):
        assert find_groups(ByNumber()) == {("second",): 4}


class OverChannels(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(6, 5), nn.Linear(6, 7), nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(torch.cat([self.second(x), self.first(x).amax(1, keepdim=True)], 1))


def test_channels_of_which_the_largest_is_taken_are_unprunable():
    with pytest.warns(SpaceWarning, match="first: reduced over channels"):
        assert find_groups(OverChannels(), torch.zeros(1, 6)) == {("second",): 7}


class SpatialGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.gate, self.fc = nn.Conv2d(3, 6, 3), nn.Conv2d(3, 1, 3), nn.Linear(6, 2)

    def forward(self, x):
        return self.fc((self.conv(x) * torch.sigmoid(self.gate(x))).mean((2, 3)))


def test_one_channel_spread_over_many_does_not_tie_them():
    blueprint = validate_model(nn.Sequential(SpatialGate()), IMAGE, head="0.fc", shared=["0.gate"])
    assert sizes_of(blueprint.channels) == {("0.conv",): 6}


class GroupedUp(nn.Module):
    def __init__(self, hidden=True):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 8, 3, groups=4))
        self.hidden = nn.Sequential(nn.Linear(8, 6), nn.ReLU()) if hidden else nn.Identity()
        self.fc = nn.Linear(6 if hidden else 8, 2)

    def forward(self, x):
        return self.fc(self.hidden(self.stem(x).mean((2, 3))))


def test_an_unsupported_model_is_refused_with_layer_and_line_and_the_advice_works():
    with pytest.raises(UnsupportedModelError) as error:
        validate_model(GroupedUp(), IMAGE)
    text = str(error.value)
    assert "stem.2 (ConvTranspose2d): transposed convolution in groups, or with a weight that is computed (test_ch" in text
    assert 'shared=["stem.2"]' in text
    assert sizes_of(validate_model(GroupedUp(), IMAGE, shared=["stem.2"]).channels) == {("hidden.0",): 6}


def test_sharing_is_not_advised_if_nothing_would_be_left_to_prune():
    with pytest.raises(UnsupportedModelError, match=r"Replace them\. .* no layer would be left to prune"):
        validate_model(GroupedUp(hidden=False), IMAGE)
    with pytest.raises(UnsupportedModelError, match="No layer of the model can be pruned"):
        validate_model(GroupedUp(hidden=False), IMAGE, shared=["stem.2"])


def test_layers_with_the_same_reason_are_listed_together():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.fc = nn.ModuleList(nn.Linear(6, 6) for _ in range(7)), nn.Linear(6, 2)

        def forward(self, x):
            for layer in self.layers:
                x = torch.softmax(layer(x), 1)
            return self.fc(x)

    with pytest.raises(UnsupportedModelError) as error:
        validate_model(Halves(), torch.zeros(1, 6))
    text = str(error.value)
    assert "layers.0, layers.1, layers.2 and 4 more: normalised over channels (test_channels.py, line " in text
    assert text.endswith("Change the code of these lines, share fewer layers, or use another model.")


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.fc = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(F.dropout(self.hidden(x), 0.5))


def test_dropout_in_eval_mode_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"random in eval mode too; pass training=self.training \(test_channels.py"):
        validate_model(Dropping(), torch.zeros(1, 6))


def test_batch_norm_without_running_statistics_is_refused():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 2))
    with pytest.raises(UnsupportedModelError, match=r"1 \(BatchNorm1d\): no running statistics"):
        validate_model(model, torch.zeros(1, 6))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.fc = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        if x.sum() > 0:
            x = -x
        return self.fc(self.hidden(x))


def test_a_forward_that_branches_on_values_is_refused_with_the_line():
    with pytest.raises(UnsupportedModelError, match="does not branch on the values") as error:
        validate_model(Branching(), torch.zeros(1, 6))
    assert "test_channels.py, line" in str(error.value)


class Sorting(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.hidden, self.fc = nn.Linear(6, 5), nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(torch.sort(self.hidden(self.first(x)), 1).values)


def test_an_unknown_operation_is_refused_and_the_advice_names_the_layer_that_feeds_it():
    with pytest.raises(UnsupportedModelError, match=r'unknown operation sort(.|\n)*shared=\["hidden"\]'):
        validate_model(Sorting(), torch.zeros(1, 6))


def test_a_model_must_return_its_heads_scores():
    with pytest.raises(UnsupportedModelError, match="does not return the output of its head 'hidden'"):
        validate_model(_named_head(), torch.zeros(1, 6), head="hidden")


def _named_head():
    model = nn.Sequential()
    model.add_module("hidden", nn.Linear(6, 8))
    model.add_module("fc", nn.Linear(8, 2))
    return model


def test_an_error_about_the_head_lists_the_possible_ones():
    with pytest.raises(ConfigError, match=r"head='classifier' cannot be the head: there is no such layer.*hidden, fc"):
        validate_model(_named_head(), torch.zeros(1, 6), head="classifier")
    with pytest.raises(ConfigError, match="it is a BatchNorm2d"):
        validate_model(ConvNet(), IMAGE, head="norm1")
    with pytest.raises(ConfigError, match="no Linear layer"):
        validate_model(nn.Sequential(nn.Embedding(5, 2)), torch.zeros(1, 2, dtype=torch.int64))


def test_shared_patterns_must_match_a_layer():
    with pytest.raises(ConfigError, match=r"\['stem.\*'\] match no layer"):
        validate_model(ConvNet(), IMAGE, shared=["stem.*"])


def test_the_users_model_is_not_changed():
    model = ConvNet().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    validate_model(model, IMAGE)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Random(nn.Module):
    """A random graph of convolutions, sums, concatenations and gates over a few feature maps of equal size."""

    def __init__(self, seed: int):
        super().__init__()
        self.plan, self.layers = [], nn.ModuleList()
        generator = torch.Generator().manual_seed(seed)
        widths = [3]

        def draw(limit):
            return int(torch.randint(limit, (1,), generator=generator))

        for _ in range(7):
            kind, source = ("conv", "sum", "cat", "norm", "gate", "depthwise")[draw(6)], draw(len(widths))
            other = draw(len(widths))
            width = widths[source]
            layer = nn.Identity()
            if kind == "conv":
                layer, width = nn.Conv2d(widths[source], 2 + draw(6), 3, padding=1), None
                width = layer.out_channels
            elif kind == "depthwise":
                layer = nn.Conv2d(width, width, 3, padding=1, groups=width)
            elif kind == "norm":
                layer = nn.BatchNorm2d(width)
            elif kind == "cat":
                width += widths[other]
            elif widths[other] != width:
                kind, layer = "sum of own", nn.Conv2d(widths[other], width, 1)
            self.plan.append((kind, source, other))
            self.layers.append(layer)
            widths.append(width)
        self.fc = nn.Linear(sum(widths), 3)

    def forward(self, x):
        maps = [x]
        for (kind, source, other), layer in zip(self.plan, self.layers):
            a, b = maps[source], maps[other]
            if kind in ("conv", "depthwise", "norm"):
                maps.append(torch.relu(layer(a)))
            elif kind == "cat":
                maps.append(torch.cat([a, b], 1))
            elif kind == "sum of own":
                maps.append(a + layer(b))
            else:
                maps.append(a * torch.sigmoid(b) if kind == "gate" else a + b)
        return self.fc(torch.cat(maps, 1).mean((2, 3)))


WITH_CHANNELS = [seed for seed in range(40) if {"conv", "sum of own"} & {kind for kind, _, _ in Random(seed).plan}]


@pytest.mark.parametrize("seeds", [WITH_CHANNELS[:16], pytest.param(WITH_CHANNELS[16:], marks=pytest.mark.slow)], ids=len)
def test_random_graphs_are_validated_as_traced(seeds):
    """The ids alone are right: validation makes no group unprunable."""
    for seed in seeds:
        torch.manual_seed(0)
        model = Random(seed).eval()
        traced = trace(model, IMAGE, "fc")
        assert check_narrowing(model, IMAGE, traced) is traced, seed


def test_validation_notices_a_wrong_tie():
    """The comparison can fail: it does when two units' owners are swapped in one layer that reads them."""
    model = ConvNet().eval()
    channels = trace(model, IMAGE, "fc")
    keep = channels.all_units()
    keep[channels.groups[0].units[:3]] = False
    assert _Probe(model, IMAGE, channels).compare(keep, [0]) is None
    owner = channels.dims["conv2.weight"][1]
    owner[[0, 7]] = owner[[7, 0]]
    assert "by their number" in _Probe(model, IMAGE, channels).compare(keep, [0])


class LastStep(nn.Module):
    """As BART: the step at which a sequence ends is chosen by a mask, so that sizes depend on values."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(20, 10), nn.Linear(10, 3)

    def forward(self, x):
        ends = F.relu(self.embed(x))[x == 2]
        return self.fc(ends.view(len(x), -1, ends.shape[1])[:, -1])


def test_steps_may_be_selected_by_a_mask():
    assert find_groups(LastStep(), torch.tensor([[5, 2, 7]])) == {("embed",): 10}


def test_all_layers_that_make_the_scores_are_heads():
    channels = validated("distilled").channels
    assert channels.heads == {"head.weight", "head.bias", "map.weight", "map.bias"} <= channels.private
    assert list(channels.layers) == ["conv"]
    new = validated("distilled").new_head(validated("distilled").tensors(), 7)
    assert {name: tuple(tensor.shape) for name, tensor in new.items()} == {
        "head.weight": (7, 9),
        "head.bias": (7,),
        "map.weight": (7, 9, 1, 1),
        "map.bias": (7,),
    }


def test_grouped_convolutions_lose_whole_groups_or_channels_of_every_group():
    assert sizes_of(validated("grouped").channels) == {("stem",): 6, ("middle",): 6, ("lanes",): 8, ("up",): 10}


class Chaotic(nn.Module):
    """Doubles every rounding error 24 times, by the logistic map."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(6, 96), nn.Linear(96, 64), nn.Linear(64, 2)

    def forward(self, x):
        x = torch.sigmoid(self.second(torch.tanh(self.first(x))))
        for _ in range(24):
            x = 4 * x * (1 - x)
        return self.fc(x)


def test_rounding_errors_that_the_model_makes_large_pin_nothing():
    assert find_groups(Chaotic(), torch.zeros(1, 6)) == {("first",): 96, ("second",): 64}
