"""The order of channels by their effect on the loss, against a plain computation and against the loss itself."""

import torch
from lightning_fabric import Fabric
from models import VECTOR, ConvNet, chain
from torch import nn

from spacecl.methods.space.effect import rank_by_effect
from spacecl.methods.space.moments import collect_statistics
from spacecl.structure.trace import trace

CPU = Fabric(accelerator="cpu", devices=1)


def random_matrix(size: int, rank: int, seed: int) -> torch.Tensor:
    factor = torch.randn(size, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return factor @ factor.mT


def rank_plainly(places):
    """Pick the channel that saves most, deflate, repeat; every gain from the definition."""
    residuals, gradients = [residual.clone() for residual, _ in places], [gradient for _, gradient in places]

    def cost(matrices):
        return sum(float((gradient @ matrix).trace()) for gradient, matrix in zip(gradients, matrices)) / 2

    def deflate(matrix, channel):
        return matrix - torch.outer(matrix[:, channel], matrix[:, channel]) / matrix[channel, channel]

    left, order, costs = list(range(len(residuals[0]))), [], [cost(residuals)]
    while left:
        best = min(left, key=lambda channel: cost([deflate(matrix, channel) for matrix in residuals]))
        residuals = [deflate(matrix, best) for matrix in residuals]
        left.remove(best)
        order.append(best)
        costs.append(cost(residuals))
    return order, torch.tensor(costs, dtype=torch.float64)


def test_channels_are_ordered_as_by_the_definition():
    places = [(random_matrix(20, 40, seed), random_matrix(20, 6, seed + 10)) for seed in (0, 1)]
    for some in (places[:1], places):
        order, costs = rank_by_effect(some)
        expected, expected_costs = rank_plainly(some)
        assert order == expected
        torch.testing.assert_close(costs, expected_costs, rtol=1e-4, atol=1e-4 * float(expected_costs[0]))


def test_channels_that_nothing_depends_on_come_last_and_cost_nothing():
    gradient = torch.diag(torch.tensor([0.0, 2.0, 0.0, 1.0]))
    order, costs = rank_by_effect([(torch.eye(4), gradient)])
    assert order[:2] == [1, 3]
    assert sorted(order) == [0, 1, 2, 3]
    assert costs.tolist() == [1.5, 0.5, 0.0, 0.0, 0.0]


def test_no_channel_at_all_costs_nothing():
    empty = torch.zeros(0, 0)
    assert rank_by_effect([(empty, empty)])[0] == []
    assert rank_by_effect([(empty, empty)])[1].tolist() == [0]


def collect(model, channels, batches):
    generator = torch.Generator().manual_seed(0)
    return collect_statistics(model, channels.readings, batches, CPU, gradients=generator)


def test_the_cost_is_the_rise_of_the_loss_when_a_channel_is_replaced_by_its_mean():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Identity(), nn.Linear(5, 4), nn.Identity(), nn.Linear(4, 3)).eval()
    with torch.no_grad():
        model[2].weight *= 0.3  # a small effect, where the second order suffices
    channels = trace(model, VECTOR, "4")
    x = torch.randn(40_000, 6)
    with torch.no_grad():
        answers = model(x).log_softmax(1)
        features = model[0](x)
    _, statistics = next((p, s) for p, s in collect(model, channels, x.split(4000)).items() if p.weight == "2.weight")
    for channel in range(5):
        alone = features.clone()
        alone[:, channel] = features[:, channel].mean()
        with torch.no_grad():
            changed = model[4](model[2](alone)).log_softmax(1)
        rise = float((answers.exp() * (answers - changed)).sum(1).mean())
        estimate = float(statistics.gradient[channel, channel] * statistics.covariance[channel, channel]) / 2
        assert 0.6 * rise < estimate < 1.6 * rise, "answers are smoothed a little, so they differ somewhat"


def test_a_tensor_that_two_layers_read_has_a_gradient_for_each():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.one, self.two, self.fc = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x):
            x = self.stem(x)
            return self.fc(self.one(x) + 0 * self.two(x))

    model = Two().eval()
    channels = trace(model, VECTOR, "fc")
    gradients = {p.layer: s.gradient for p, s in collect(model, channels, [torch.randn(50, 6)]).items()}
    assert float(gradients["one"].abs().sum()) > 0
    assert float(gradients["two"].abs().sum()) == 0


def test_gradients_are_summed_over_the_positions_of_an_image_and_leave_the_module_as_it_was():
    torch.manual_seed(0)
    model = ConvNet().eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    channels = trace(model, torch.zeros(1, 3, 8, 8), "fc")
    x = torch.randn(64, 3, 8, 8)
    once, twice = (collect(model, channels, batches) for batches in ([x], [x, x]))
    for place, statistics in once.items():
        assert statistics.gradient.shape == (len(place.units),) * 2
        ratio = float(twice[place].gradient.trace() / statistics.gradient.trace())
        assert 0.5 < ratio < 2, "a mean over examples does not grow with their number"
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_frozen_parameters_have_no_part_in_it():
    torch.manual_seed(0)
    model = chain().eval()
    channels = trace(model, VECTOR, "4")
    x = torch.randn(200, 6)
    free = collect(model, channels, [x])
    model.requires_grad_(False)
    frozen = collect(model, channels, [x])
    assert all(torch.equal(free[place].gradient, frozen[place].gradient) for place in free)
