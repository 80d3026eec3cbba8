"""Norms follow the network that pruning leaves behind."""

import pytest
import torch
from lightning_fabric import Fabric
from models import IMAGE, ResNet, tasks
from torch import nn

from spacecl import SPACE, Learner, PackNet, Recipe, Task
from spacecl.data.task_data import Data
from spacecl.learning.context import TaskContext
from spacecl.learning.normalization import reestimate_norms
from spacecl.learning.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*")


def make_context(x, y):
    trainer = Trainer(Fabric(accelerator="cpu", devices=1), Recipe(), seed=0)
    return TaskContext("one", Data((x, y), "train"), Data((x, y), "valid"), 3, trainer)


def test_running_statistics_are_those_of_the_examples_and_nothing_else_changes():
    torch.manual_seed(0)
    x = 3 + 2 * torch.randn(100, 5)  # one batch
    module = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(5, momentum=0.3), nn.Linear(5, 3))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    reestimate_norms(module, make_context(x, torch.zeros(100, dtype=torch.int64)))
    assert torch.allclose(module[1].running_mean, x.mean(0), atol=1e-5)
    assert torch.allclose(module[1].running_var, x.var(0), atol=1e-4)
    assert (module.training, module[1].training, module[1].momentum) == (True, True, 0.3)
    kept = [name for name in before if not name.startswith("1.running") and name != "1.num_batches_tracked"]
    assert all(torch.equal(module.state_dict()[name], before[name]) for name in kept)


def test_a_network_without_running_statistics_is_not_even_run():
    class Untouchable(nn.Module):
        def forward(self, x):
            raise AssertionError

    module = nn.Sequential(Untouchable(), nn.BatchNorm1d(5, track_running_stats=False), nn.LayerNorm(5))
    reestimate_norms(module, make_context(torch.zeros(9, 5), torch.zeros(9, dtype=torch.int64)))


@pytest.mark.parametrize("method", [SPACE(variance=0.7), PackNet(prune=0.6)], ids=["SPACE", "PackNet"])
def test_a_pruned_network_has_the_statistics_of_its_own_activations(method):
    """Without retraining, what norms put out has mean 0 and variance 1 on the training data, before their affine map."""
    x, y = tasks(IMAGE, 1, examples=400)[0]
    learner = Learner(ResNet(), method, example_input=IMAGE)
    learner.learn(Task("one", (x[:300], y[:300]), valid=(x[300:], y[300:])), Recipe(epochs=3, retrain_epochs=0))
    network, seen = learner.subnet("one"), {}
    for name, layer in network.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_hook(lambda norm, inputs, _, name=name: seen.update({name: (norm, inputs[0])}))
    with torch.no_grad():
        network(x[:300])
    assert len(seen) > 2
    for norm, activation in seen.values():
        spread = activation.var((0, 2, 3))
        assert torch.allclose(norm.running_mean, activation.mean((0, 2, 3)), atol=0.05 * float(spread.sqrt().max()))
        assert torch.allclose(norm.running_var, spread, rtol=0.1, atol=1e-3)
