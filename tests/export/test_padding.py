"""Padded files: widths are multiples, and the outputs are those of the network without zero filters."""

import json

import pytest
import torch
from helpers import teach_random
from models import FAMILIES, IMAGE, VECTOR, ConvNet
from torch import nn

from spacecl import ConfigError
from spacecl.cli.main import main
from spacecl.export.export import open_session
from spacecl.export.pad import pad_network


def pad(learner, name, multiple):
    core, number = learner.core, learner.tasks.index(name)
    return pad_network(core.blueprint, core.task_tensors(number), core.tasks[number].units, multiple)


@pytest.fixture(scope="module")
def convnet():
    return teach_random(ConvNet(width=16), IMAGE)


@pytest.mark.parametrize("family", FAMILIES)
def test_zero_filters_change_no_output_of_any_architecture(family):
    make, example, shared = FAMILIES[family]
    torch.manual_seed(0)
    learner = teach_random(make(), example, shared)
    name = learner.tasks[0]
    small, (network, widths) = learner.subnet(name), pad(learner, name, 4)
    x = torch.randn(5, *example.shape[1:]) if example.is_floating_point() else torch.randint(0, 20, (5, *example.shape[1:]))
    with torch.no_grad():
        difference = (network(x) - small(x)).abs().max()
        assert difference <= 1e-4 * max(1.0, float(small(x).abs().max()))
    before = learner.records[name].widths
    assert all(widths[layer] >= before[layer] for layer in before)
    if family not in ("vision transformer", "whole transformer", "norms"):  # layer norms and group norms
        assert any(widths[layer] > before[layer] for layer in before)


def test_every_width_of_a_chain_becomes_a_multiple_where_the_model_is_that_wide(convnet):
    name = convnet.tasks[0]
    before = convnet.records[name].widths
    _, widths = pad(convnet, name, 4)
    assert {layer: -(-before[layer] // 4) * 4 for layer in before if layer != convnet.head} == {
        layer: width for layer, width in widths.items() if layer != convnet.head
    }
    assert widths != before
    assert pad(convnet, name, 64)[1] == before, "the model has too few channels for that"


def test_a_padded_file_says_so_and_computes_the_same(convnet, tmp_path):
    name = convnet.tasks[0]
    info = convnet.export(name, tmp_path / "a.onnx", pad=8)
    x = torch.randn(5, *IMAGE.shape[1:])
    assert (open_session(tmp_path / "a.onnx")(x) - convnet.logits(x, name)).abs().max() < 1e-4
    plain = convnet.export(name, tmp_path / "b.onnx")
    assert info["parameters"] > plain["parameters"]
    assert info["widths"] == plain["widths"] == convnet.records[name].widths
    assert info["padded"]["conv1"] % 8 == 0
    assert "padded" not in plain


def test_tuning_keeps_one_of_what_it_measured_and_says_which(convnet, tmp_path):
    name = convnet.tasks[0]
    info = convnet.export(name, tmp_path / "a.onnx", tune=True)
    rows = info["tuned"]
    assert sorted(row["pad"] or 0 for row in rows) == [0, 1, 8, 16]
    assert rows[-1]["pad"] is None
    assert rows[-1]["of_dense"] == 1
    assert rows[0]["ms"] <= 1.02 * min(row["ms"] for row in rows[:-1])
    kept = convnet.export(name, tmp_path / "b.onnx", pad=rows[0]["pad"])
    assert kept["parameters"] == info["parameters"]


@pytest.mark.parametrize(
    "options",
    [{"pad": 0}, {"pad": 2.5}, {"tune": True, "pad": 8}, {"tune": True, "int8": IMAGE}, {"tune": True, "format": "torch"}],
)
def test_what_cannot_be_padded_or_tuned_is_refused(convnet, tmp_path, options):
    with pytest.raises(ConfigError, match="pad"):
        convnet.export(convnet.tasks[0], tmp_path / "a.onnx", **options)
    assert not (tmp_path / "a.onnx").exists()


def test_the_command_prints_what_it_measured(digits_run, tmp_path, capsys):
    assert main(["export", str(digits_run), "--all", "--tune", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "dense network" in printed
    assert "<- kept" in printed
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert all(len(task["tuned"]) == 4 for task in index["tasks"])


def test_only_layers_that_a_layer_norm_reads_together_are_left_as_they_are():
    model = nn.Sequential(nn.Linear(6, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 3))
    learner = teach_random(model, VECTOR)
    name, x = learner.tasks[0], torch.randn(5, 6)
    before, (network, widths) = learner.records[name].widths, pad(learner, name, 4)
    assert before["0"] % 4, "there is nothing to pad: the test shows nothing"
    assert before["3"] % 4
    assert (widths["0"], widths["3"] % 4) == (before["0"], 0)
    with torch.no_grad():
        assert (network(x) - learner.subnet(name)(x)).abs().max() < 1e-5
