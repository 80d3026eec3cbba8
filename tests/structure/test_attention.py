"""Attention: heads are units, and numbers that modules store follow them. Tokens are mixed without pinning their channels."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spacecl import SPACE, Learner, Recipe, Task
from spacecl.learning.core import Core
from spacecl.learning.state import State
from spacecl.structure.validate import validate_model

TOKENS = torch.zeros(1, 5, 12)


class Attention(nn.Module):
    """Self-attention over 12 features in `heads` heads, written in one of several ways."""

    def __init__(self, how: str, heads: int = 4, size: int = 6):
        super().__init__()
        self.how, self.heads, self.head_size, self.inner = how, heads, size, heads * size
        self.qkv, self.proj = nn.Linear(12, 3 * self.inner), nn.Linear(self.inner, 12)
        self.norm = nn.LayerNorm(size)
        self.bias = nn.Parameter(torch.randn(heads, 5, 5))

    def forward(self, x):
        batch, tokens, _ = x.shape
        if self.how == "infer heads":
            q, k, v = (part.view(batch, tokens, -1, self.head_size).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        else:
            q, k, v = self.project(x).reshape(batch, tokens, 3, self.heads, self.head_size).permute(2, 0, 3, 1, 4).unbind(0)
        if self.how == "normed":
            q, k = self.norm(q), self.norm(k)
        if self.how == "fused":
            y = F.scaled_dot_product_attention(q, k, v)
        elif self.how == "biased":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)
        elif self.how == "einsum":
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / self.head_size**0.5
            y = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)
        elif self.how == "batched":
            q, k, v = (part.reshape(batch * self.heads, tokens, self.head_size) for part in (q, k, v))
            scores = torch.bmm(q, k.transpose(1, 2)).view(batch, self.heads, tokens, tokens) + self.mask(tokens)
            scores = scores.softmax(-1).view(batch * self.heads, tokens, tokens)
            y = torch.bmm(scores, v).view(batch, self.heads, tokens, self.head_size)
        else:
            y = (q * self.head_size**-0.5 @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, self.inner))

    def project(self, x):
        if self.how != "keys without bias":
            return self.qkv(x)
        bias = self.qkv.bias.clone()  # as in Swin v2
        bias[bias.numel() // 3 : 2 * bias.numel() // 3].zero_()
        return F.linear(x, self.qkv.weight, bias)

    def mask(self, tokens):
        """The same for every head, but copied for each of them."""
        mask = torch.ones(tokens, tokens).tril().log().clamp(min=-9)
        return mask.view(1, 1, tokens, tokens).expand(-1, self.heads, -1, -1).contiguous()


class Block(nn.Module):
    def __init__(self, how: str):
        super().__init__()
        self.embed, self.attn, self.head = nn.Linear(12, 12), Attention(how), nn.Linear(12, 3)

    def forward(self, x):
        x = self.embed(x)
        return self.head((x + self.attn(x)).mean(1))


WAYS = ("plain", "fused", "normed", "biased", "einsum", "infer heads", "batched", "keys without bias")


@pytest.mark.parametrize("how", WAYS)
def test_the_heads_of_attention_are_units(how):
    channels = validate_model(Block(how), TOKENS).channels
    assert {group.layers: len(group.units) for group in channels.groups} == {("embed", "attn.proj"): 12, ("attn.qkv",): 4}
    assert not any(channels.unprunable.values())
    keep = channels.all_units()
    keep[channels.groups[-1].units[1:3]] = False
    assert channels.narrowed_shape("attn.qkv.weight", keep) == (36, 12)
    assert channels.narrowed_shape("attn.proj.weight", keep) == (12, 12)


def test_numbers_that_a_module_stores_follow_its_heads():
    blueprint = validate_model(Block("batched"), TOKENS)
    channels, keep = blueprint.channels, blueprint.channels.all_units()
    keep[channels.groups[-1].units[1:]] = False
    network = blueprint.build(channels.gather(blueprint.tensors(), keep))
    assert (network.attn.heads, network.attn.head_size, network.attn.inner) == (1, 6, 6)
    assert network(torch.randn(7, 5, 12)).shape == (7, 3)
    assert blueprint.module.attn.heads == 4


def test_single_head_attention_ties_queries_to_keys():
    class Single(nn.Module):
        def __init__(self, scale=True):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(12, 8), nn.Linear(12, 8), nn.Linear(12, 10)
            self.head, self.scale = nn.Linear(10, 2), 8**-0.5 if scale else None

        def forward(self, x):
            return self.head(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), scale=self.scale).mean(1))

    groups = {group.layers: len(group.units) for group in validate_model(Single(), TOKENS).channels.groups}
    assert groups == {("q", "k"): 8, ("v",): 10}
    with pytest.warns(UserWarning, match="q, k: attention is scaled by their number"):
        channels = validate_model(Single(scale=False), TOKENS).channels
    assert [group.layers for group in channels.groups] == [("v",)]


def test_layers_that_mix_tokens_leave_channels_prunable():
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm, self.tokens, self.head = nn.Linear(12, 9), nn.LayerNorm(9), nn.Linear(5, 5), nn.Linear(9, 2)

        def forward(self, x):
            x = self.embed(x)
            return self.head((x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)).mean(1))

    with pytest.warns(UserWarning, match="tokens: mixes positions, not channels"):
        channels = validate_model(Mixer(), TOKENS).channels
    assert {group.layers: len(group.units) for group in channels.groups} == {("embed",): 9}


def test_a_mean_over_channels_is_a_statistic_of_those_that_there_are():
    class ResponseNorm(nn.Module):
        """The global response normalization of ConvNeXt V2."""

        def __init__(self, width):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))

        def forward(self, x):
            energy = x.norm(dim=1, keepdim=True)
            return x + self.weight * (x * energy / (energy.mean(-1, keepdim=True) + 1e-6)) + self.bias

    model = nn.Sequential(nn.Linear(12, 10), nn.GELU(), ResponseNorm(10), nn.Linear(10, 8), nn.Flatten(), nn.Linear(40, 2))
    channels = validate_model(model, TOKENS).channels
    assert {group.layers: len(group.units) for group in channels.groups} == {("0",): 10, ("3",): 8}
    assert channels.dims["2.weight"][0] is not None


def test_a_network_with_attention_learns_tasks_and_keeps_them(tmp_path):
    torch.manual_seed(0)
    model = Block("fused")
    learner = Learner(model, SPACE(size=0.6, budget=2), example_input=TOKENS)
    x = torch.randn(300, 5, 12)
    learner.learn(Task("first", (x, (x[:, 0, 0] > 0).long())), Recipe(epochs=3))
    before = learner.logits(x, "first")
    record = learner.learn(Task("second", (x, (x[:, 1, 1] > 0).long())), Recipe(epochs=3))
    assert torch.equal(learner.logits(x, "first"), before)
    assert record.widths["attn.qkv"] % 18 == 0
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, Block("fused"))
    assert torch.equal(loaded.logits(x, "second"), learner.logits(x, "second"))


def test_a_learner_that_was_saved_before_heads_were_units_is_read_as_it_was(tmp_path):
    torch.manual_seed(0)
    model = Block("fused")
    learner = Learner(model, SPACE(size=0.6, budget=2), example_input=TOKENS)
    with pytest.warns(UserWarning, match="attn.qkv: mixed by scaled_dot_product_attention"):
        learner._state = State(learner.method, Core.empty(validate_model(model, TOKENS, rules=1)))
    x = torch.randn(300, 5, 12)
    learner.learn(Task("first", (x, (x[:, 0, 0] > 0).long())), Recipe(epochs=2))
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, Block("fused"))
    assert torch.equal(loaded.logits(x, "first"), learner.logits(x, "first"))
    assert [group.layers for group in loaded.core.channels.groups] == [("embed", "attn.proj")]
