"""PyTorch's own attention layers: the same outputs as PyTorch's code, with heads that can be removed."""

import copy

import pytest
import torch
from torch import nn

from spacecl import SPACE, Learner, Recipe, Task
from spacecl.learning.core import Core
from spacecl.learning.state import State
from spacecl.structure.attention import replace_attention
from spacecl.structure.validate import validate_model

TOKENS = torch.zeros(1, 5, 8)
WIDTH, HEADS = 16, 4
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


def replaced(layer):
    layer = copy.deepcopy(layer).eval()
    replace_attention(layer)
    return layer


class Network(nn.Module):
    """Embedded tokens, a layer that reads them, and the mean over time."""

    def __init__(self, layer, call=lambda layer, x: layer(x)):
        super().__init__()
        self.embed, self.layer, self.fc, self.call = nn.Linear(8, WIDTH), layer, nn.Linear(WIDTH, 3), call

    def forward(self, x):
        return self.fc(self.call(self.layer, self.embed(x)).mean(1))


def encoder(**options):
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, **options), 2)


PADDED = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
CALLS = {
    "self-attention": {},
    "with weights of every head": {"average_attn_weights": False},
    "without weights": {"need_weights": False},
    "a causal mask": {"attn_mask": CAUSAL},
    "a mask of numbers, without weights": {"attn_mask": torch.randn(5, 5), "need_weights": False},
    "a mask for every head": {"attn_mask": torch.randn(2 * HEADS, 5, 5)},
    "padding": {"key_padding_mask": PADDED},
    "padding and a causal mask": {"key_padding_mask": PADDED, "attn_mask": CAUSAL},
}


@pytest.mark.parametrize("options", [{"batch_first": True}, {"batch_first": False}, {"batch_first": True, "bias": False}])
@pytest.mark.parametrize("call", CALLS)
def test_replaced_attention_computes_what_pytorch_does(call, options):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, HEADS, **options).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, memory = torch.randn(2, 5, WIDTH), torch.randn(2, 5, WIDTH)
    if not options["batch_first"]:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    for inputs in ((x, x, x), (x, memory, memory), (x, memory, x)):
        (expected, weights), (result, shown) = (some(*inputs, **CALLS[call]) for some in (layer, replaced(layer)))
        torch.testing.assert_close(result, expected)
        assert (weights is None) == (shown is None)
        if weights is not None:
            torch.testing.assert_close(shown, weights)


def test_replaced_attention_takes_one_example_without_a_dimension_for_rows():
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(WIDTH, HEADS).eval(), torch.randn(5, WIDTH)
    for one, other in zip(layer(x, x, x, key_padding_mask=PADDED[1]), replaced(layer)(x, x, x, key_padding_mask=PADDED[1])):
        torch.testing.assert_close(one, other)


def test_attention_that_is_not_plain_stays_pytorchs():
    for options in ({"add_bias_kv": True}, {"kdim": 8, "vdim": 8}, {"add_zero_attn": True}):
        assert type(replaced(nn.MultiheadAttention(WIDTH, HEADS, **options))) is nn.MultiheadAttention


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_loses_heads_and_width_independently(norm_first):
    groups = {g.layers: len(g.units) for g in validate_model(Network(encoder(norm_first=norm_first)), TOKENS).channels.groups}
    stream = ("embed", *(f"layer.layers.{n}.{name}" for n in (0, 1) for name in ("self_attn.out_proj", "linear2")))
    inside = {
        (f"layer.layers.{n}.{name}",): size
        for n in (0, 1)
        for name, size in {"self_attn.in_proj_weight": HEADS, "linear1": 32}.items()
    }
    assert groups == {stream: WIDTH} | inside


def test_a_causal_encoder_and_a_decoder_are_admitted():
    causal = Network(encoder(), lambda layer, x: layer(x, mask=CAUSAL))
    assert not validate_model(causal, TOKENS).channels.unprunable
    decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, 32, batch_first=True)
    blueprint = validate_model(Network(decoder, lambda layer, x: layer(x, x[:, :3])), TOKENS)
    heads = [group for group in blueprint.channels.groups if group.layers[0].endswith("in_proj_weight")]
    assert [len(group.units) for group in heads] == [HEADS, HEADS]


def test_an_encoder_learns_tasks_and_keeps_them(tmp_path):
    torch.manual_seed(0)
    model = Network(encoder(dropout=0.0))
    x = torch.randn(60, 5, 8)
    learner = Learner(model, SPACE(variance=0.7), example_input=TOKENS)
    learner.learn(Task("sum", (x, (x.sum((1, 2)) > 0).long())), Recipe(epochs=2))
    before = learner.logits(x, task="sum")
    learner.learn(Task("first", (x, (x[:, 0, 0] > 0).long())), Recipe(epochs=2))
    assert learner.records["sum"].widths["layer.layers.0.linear1"] < 32
    torch.testing.assert_close(learner.logits(x, task="sum"), before, rtol=0, atol=0)
    learner.save(tmp_path / "saved")
    again = Learner.load(tmp_path / "saved", model)
    torch.testing.assert_close(again.logits(x, task="sum"), before, rtol=0, atol=0)
    assert type(model.layer.layers[0].self_attn) is nn.MultiheadAttention  # the user's own model is left as it was


def test_a_learner_that_was_saved_before_these_heads_were_units_is_read_as_it_was(tmp_path):
    torch.manual_seed(0)
    model, x = Network(encoder(dropout=0.0)), torch.randn(60, 5, 8)
    learner = Learner(model, SPACE(variance=0.7), example_input=TOKENS)
    with pytest.warns(UserWarning, match="self_attn.in_proj_weight: its code needs all channels"):
        learner._state = State(learner.method, Core.empty(validate_model(model, TOKENS, rules=2)))
    learner.learn(Task("sum", (x, (x.sum((1, 2)) > 0).long())), Recipe(epochs=1))
    learner.save(tmp_path / "saved")
    again = Learner.load(tmp_path / "saved", model)
    assert again.core.blueprint.rules == 2
    torch.testing.assert_close(again.logits(x, task="sum"), learner.logits(x, task="sum"), rtol=0, atol=0)
