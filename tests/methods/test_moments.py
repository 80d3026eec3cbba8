"""Streaming moments against those of all rows at once."""

import pytest
import torch
from lightning_fabric import Fabric
from models import ConvNet

from spacecl.methods.space.moments import Moments, collect_moments
from spacecl.structure.channels import trace


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
    found = collect_moments(model, [*channels.readings, *channels.outputs], batches, Fabric(accelerator="cpu", devices=1))
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
    collect_moments(model, channels.readings, [torch.randn(4, 3, 8, 8)], Fabric(accelerator="cpu", devices=1))
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
