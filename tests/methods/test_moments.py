"""Streaming moments against those of all rows at once."""

import pytest
import torch
from lightning_fabric import Fabric
from models import ConvNet
from sklearn.covariance import OAS
from torch import nn

from spacecl import Recipe
from spacecl.data.task_data import Data
from spacecl.learning.context import TaskContext
from spacecl.learning.trainer import Trainer
from spacecl.methods.space.moments import Moments, collect_statistics, shrink
from spacecl.structure.trace import trace


def streamed(rows, sizes):
    moments = Moments(rows.shape[1])
    for part in rows.split(sizes):
        moments.update(part)
    return moments


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_batches_of_any_size_give_the_moments_of_all_rows(size):
    rows = torch.randn(500, 6) @ torch.randn(6, 6) + 5
    moments = streamed(rows, size)
    assert moments.count == 500
    torch.testing.assert_close(moments.mean, rows.double().mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(moments.covariance, torch.cov(rows.double().T), atol=1e-5, rtol=1e-5)


def test_a_large_mean_does_not_cancel_in_float32():
    rows = torch.randn(4000, 3, dtype=torch.float64) * 1e-2 + 1000
    moments = streamed(rows.float(), 128)
    expected = torch.cov(rows.float().double().T)
    torch.testing.assert_close(moments.covariance, expected, atol=1e-9, rtol=1e-4)


def test_moments_at_readers_and_outputs_are_those_of_the_stored_activations():
    model = ConvNet().eval()
    channels = trace(model, torch.zeros(1, 3, 8, 8), "fc")
    batches = [torch.randn(5, 3, 8, 8) for _ in range(3)]
    found = collect_statistics(model, [*channels.readings, *channels.outputs], batches, Fabric(accelerator="cpu", devices=1))
    x = torch.cat(batches)
    conv1 = model.conv1(x)
    read2 = torch.nn.functional.max_pool2d(torch.relu(model.norm1(conv1)), 2)
    conv2 = model.conv2(read2)
    flat = torch.relu(conv2)
    hidden = model.hidden(flat.flatten(1))
    expected = {
        ("conv2", "input"): read2.movedim(1, -1).reshape(-1, 8),
        ("hidden", "input"): flat.movedim(1, -1).reshape(-1, 8),  # a flattened channel is one channel at many places
        ("fc", "input"): torch.relu(hidden),
        ("conv1", "output"): conv1.movedim(1, -1).reshape(-1, 8),
        ("conv2", "output"): conv2.movedim(1, -1).reshape(-1, 8),
        ("hidden", "output"): hidden,
    }
    assert {(place.layer, place.side) for place in found} == set(expected)
    for place, moments in found.items():
        rows = expected[place.layer, place.side]
        assert moments.count == len(rows)
        torch.testing.assert_close(moments.covariance, torch.cov(rows.detach().double().T), atol=1e-6, rtol=1e-4)


def test_collecting_leaves_the_module_as_it_was():
    model = ConvNet().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    channels = trace(ConvNet().eval(), torch.zeros(1, 3, 8, 8), "fc")
    collect_statistics(model, channels.readings, [torch.randn(4, 3, 8, 8)], Fabric(accelerator="cpu", devices=1))
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_shrunk_covariance_is_that_of_scikit_learn_for_standardized_rows():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 12, dtype=torch.float64, generator=generator) @ torch.randn(12, 12, dtype=torch.float64)
    covariance = torch.cov(rows.T, correction=0)
    scale = covariance.diagonal().sqrt()
    expected = OAS().fit(((rows - rows.mean(0)) / scale).numpy()).covariance_
    torch.testing.assert_close(shrink(covariance, 30) / torch.outer(scale, scale), torch.from_numpy(expected))


def test_a_shrunk_covariance_keeps_its_diagonal_and_dead_channels():
    covariance = torch.tensor([[2.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    shrunk = shrink(covariance, 20)
    assert torch.equal(shrunk.diagonal(), covariance.diagonal())
    assert 0 < float(shrunk[0, 1]) < 1
    assert torch.equal(shrink(torch.zeros(3, 3), 20), torch.zeros(3, 3))


def count_independent(examples, positions, alike, channels=16):
    """The estimate for images whose positions share a part of what they are."""
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(examples, positions, channels, generator=generator)
    common = torch.randn(examples, 1, channels, generator=generator)
    moments = Moments(channels)
    for part in (alike**0.5 * common + (1 - alike) ** 0.5 * own).split(100):
        moments.update(part.reshape(-1, channels), examples=len(part))
    return moments.independent


def test_independent_rows_count_in_full_and_equal_ones_once():
    assert 0.7 * 2000 < count_independent(2000, 1, 0.0) <= 2000
    assert 0.7 * 32_000 < count_independent(2000, 16, 0.0) <= 32_000
    assert 0.7 * 2000 < count_independent(2000, 16, 1.0) < 1.3 * 2000
    assert 1.3 * 2000 < count_independent(2000, 16, 0.5) < 0.7 * 32_000


def test_positions_are_those_of_the_same_example_however_a_layer_reads_them():
    """A flatten orders the rows of a place by occurrence, a convolution by example."""
    torch.manual_seed(0)
    flat = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Flatten(), nn.Linear(8 * 16, 3)).eval()
    pooled = nn.Sequential(flat[0], nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    x = torch.randn(300, 3, 1, 1).expand(-1, -1, 4, 4)  # all positions alike
    found = []
    for model, weight in ((flat, "2.weight"), (pooled, "1.weight")):
        channels = trace(model, x[:1], None)
        statistics = collect_statistics(model, channels.readings, x.split(100), Fabric(accelerator="cpu", devices=1))
        found += [s.independent for p, s in statistics.items() if p.weight == weight]
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    assert found[0] < 600


def test_examples_that_are_seen_again_are_no_new_ones():
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(200, 6)
    channels, fabric = trace(model, x[:1], None), Fabric(accelerator="cpu", devices=1)
    once = collect_statistics(model, channels.readings, [x], fabric, distinct=200)
    again = collect_statistics(model, channels.readings, [x, x, x], fabric, distinct=200)
    for place, statistics in once.items():
        assert again[place].independent == pytest.approx(statistics.independent, rel=0.02)


def test_large_examples_are_analyzed_in_batches_of_a_training_step():
    rows = []
    for size, batch in ((100, 16), (9000, 16), (9000, 300)):
        x, y = torch.zeros(250, size), torch.arange(250) % 2
        trainer = Trainer(Fabric(accelerator="cpu", devices=1), Recipe(batch_size=batch))
        context = TaskContext("one", Data((x, y), "data"), Data((x, y), "data"), 2, trainer)
        rows.append([len(part) for part in context.examples_of_step(120, x)])
    assert rows == [[100, 20], [16] * 7 + [8], [100, 20]]
