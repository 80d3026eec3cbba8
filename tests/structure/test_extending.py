"""Operators and layers that users register: the examples of the docs run, and what exists is not replaced by accident."""

import re

import pytest
import torch
from helpers import ROOT
from models import IMAGE
from torch import Tensor, nn

import spacecl
from spacecl import ConfigError, UnsupportedModelError
from spacecl.learning.core import Core
from spacecl.learning.growth import grow
from spacecl.structure import layers, operators
from spacecl.structure.validate import validate_model


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    """Nothing that a test registers stays registered."""
    monkeypatch.setattr(operators, "_RULES", dict(operators._RULES))
    monkeypatch.setattr(layers, "_LAYERS", dict(layers._LAYERS))


@torch.library.custom_op("test_extending::shuffle", mutates_args=())
def shuffle(x: Tensor) -> Tensor:
    return torch.cat([x[:, 1::2], x[:, ::2]], 1)


@shuffle.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("test_extending::linear", mutates_args=())
def custom_linear(x: Tensor, weight: Tensor) -> Tensor:
    return x.flip(1) @ weight.T


@custom_linear.register_fake
def _(x, weight):
    return x.new_empty(len(x), len(weight))


class Shuffling(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 1), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(shuffle(self.conv(x)).mean((2, 3)))


class Averaging(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


@pytest.mark.filterwarnings("ignore:.*finds no free channel.*")
def test_the_code_of_the_page_on_extending_runs_as_written():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL)
    assert len(blocks) >= 5
    namespace = {"__name__": "extending"}
    for block in blocks:
        exec(compile(block, "extending.md", "exec"), namespace)


def test_the_method_of_the_page_is_that_of_the_example():
    code = (ROOT / "examples" / "own_method.py").read_text().partition('"""\n\n')[2]
    assert f"```python\n{code}```" in (ROOT / "docs" / "extending.md").read_text()


def test_an_operator_without_a_rule_is_refused_with_what_to_do():
    with pytest.raises(UnsupportedModelError, match=r"test_extending::shuffle; describe it with spacecl\.register_operator"):
        validate_model(Shuffling(), IMAGE)


def test_a_rule_says_which_channels_belong_together():
    @spacecl.register_operator("test_extending::shuffle")
    def rule(op):
        even, odd = op.ids("x")[:, ::2], op.ids(0)[:, 1::2]
        op.tie(even, odd)
        return op.run_on_ids()

    assert [len(group.units) for group in validate_model(Shuffling(), IMAGE).channels.groups] == [4]


@pytest.mark.filterwarnings("ignore:.*cannot be pruned.*")
def test_a_wrong_rule_is_noticed_before_any_training():
    spacecl.register_operator("test_extending::shuffle")(lambda op: op.ids("x"))
    with pytest.raises(UnsupportedModelError, match="No layer of the model can be pruned"):
        validate_model(Shuffling(), IMAGE)


def test_a_rule_must_return_ids_of_the_results_shape():
    for result, message in ((lambda op: op.ids("x")[:1], "ids of shape"), (lambda op: None, "None instead of a tensor")):
        spacecl.register_operator("test_extending::shuffle", override=True)(result)
        with pytest.raises(UnsupportedModelError, match=message):
            validate_model(Shuffling(), IMAGE)


def test_an_operator_of_another_library_is_not_mistaken_for_pytorchs_own():
    """It may do something else under the same name."""

    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.weight, self.head = nn.Linear(6, 8), nn.Parameter(torch.randn(5, 8)), nn.Linear(5, 2)

        def forward(self, x):
            return self.head(custom_linear(self.hidden(x), self.weight))

    with pytest.raises(UnsupportedModelError, match="unknown operation test_extending::linear"):
        validate_model(Same(), torch.zeros(1, 6))


def test_a_built_in_rule_is_only_replaced_on_purpose():
    for name in ("aten::permute", "relu", "max_pool2d", "zeros", "ones_like"):  # by name, by tag, by family
        with pytest.raises(ConfigError, match=r"There is a rule for aten::.* already. Replace it with override=True"):
            spacecl.register_operator(name)
    spacecl.register_operator("mean", override=True)(lambda op: op.reject("replaced"))
    with pytest.raises(UnsupportedModelError, match="replaced"):
        validate_model(nn.Sequential(nn.Conv2d(3, 4, 1), Averaging(), nn.Linear(4, 2)), IMAGE)


def test_names_that_are_not_operators_and_rules_that_are_not_functions_are_refused():
    for names in ((), (3,), ("a b",), ("a::b::c",)):
        with pytest.raises(ConfigError, match="give names of operators"):
            spacecl.register_operator(*names)
    with pytest.raises(ConfigError, match="must be a function"):
        spacecl.register_operator("mylib::op")("conv2d")


class Sized(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.sizes, self.weight = {"outputs": outputs}, nn.Parameter(torch.ones(outputs, inputs))

    def forward(self, x):
        return nn.functional.linear(x, self.weight).view(-1, self.sizes["outputs"])


class Initialized(Sized):
    def reset_parameters(self):
        nn.init.zeros_(self.weight)


def sized(kind):
    return nn.Sequential(kind(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))


def adapt(layer):
    layer.sizes = {"outputs": len(layer.weight)}


def test_a_layer_that_stores_its_size_can_be_pruned_once_it_is_registered():
    with pytest.warns(UserWarning, match="0: its code needs all channels"):
        assert len(validate_model(sized(Sized), torch.zeros(1, 6)).channels.groups) == 1
    spacecl.register_layer(Sized)(adapt)
    for kind in (Sized, Initialized):  # subclasses follow
        assert len(validate_model(sized(kind), torch.zeros(1, 6)).channels.groups) == 2


@pytest.mark.parametrize(
    ("kind", "initialize", "value"), [(Sized, None, 1), (Initialized, None, 0), (Sized, nn.init.zeros_, 0)]
)
def test_a_layer_of_a_grown_network_begins_as_its_type_says(kind, initialize, value):
    """By its own function, by reset_parameters(), or with the model's values."""
    spacecl.register_layer(kind, initialize=initialize and (lambda layer: initialize(layer.weight)))(adapt)
    blueprint = validate_model(sized(kind), torch.zeros(1, 6))
    grown = grow(Core.empty(blueprint), 2).blueprint.initial_tensors(2)["0.weight"]
    assert grown[8:].unique().tolist() == [value]
    assert grown[:8].unique().tolist() == [1]  # as the user gave it


def test_a_layer_type_is_only_replaced_on_purpose():
    with pytest.raises(ConfigError, match=r"The layer type Linear is registered already. Replace it with override=True"):
        spacecl.register_layer(nn.Linear)
    spacecl.register_layer(nn.Linear, override=True)(lambda layer: None)
    spacecl.register_layer(Sized)(adapt)
    with pytest.raises(ConfigError, match="Sized is registered already"):
        spacecl.register_layer(Sized)
    with pytest.raises(ConfigError, match=r"give a subclass of torch\.nn\.Module"):
        spacecl.register_layer(sized(Sized))


def test_a_rule_that_reads_an_argument_that_the_operator_does_not_have_is_told_so():
    for read in (lambda op: op.ids("z"), lambda op: op.assign_owner("scal", 0, op.channel_ids(op.ids("self"), 1))):
        spacecl.register_operator("aten::relu", override=True)(lambda op, read=read: read(op))
        with pytest.raises(ConfigError, match=r"The rule of relu reads the argument '\w+'; the operator has: self"):
            validate_model(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(1, 6))
