"""The methods that SPACE is compared with, held against plain transcriptions of their formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from models import FAMILIES, IMAGE, ConvNet, chain, tasks
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset

from spacecl import (
    EWC,
    HAT,
    STL,
    UCB,
    DataError,
    FineTune,
    Joint,
    Learner,
    LwF,
    PackNet,
    Recipe,
    Task,
    TaskError,
    TrainingError,
)
from spacecl.data.benchmarks.presets import BENCHMARKS
from spacecl.data.task_data import Data
from spacecl.learning.context import TaskContext
from spacecl.learning.objective import ANSWERS, Objective
from spacecl.learning.trainer import Trainer
from spacecl.methods.ewc import estimate_fisher
from spacecl.methods.hat import Gated, select_open_units
from spacecl.methods.joint import Pool
from spacecl.methods.ucb import Bayesian

RECIPE = Recipe(epochs=3, retrain_epochs=2)
VECTOR = FAMILIES["chain"][1]


def taught(method, count=2, model=None, example=VECTOR, recipe=RECIPE, seed=0):
    torch.manual_seed(0)
    learner = Learner(model or chain(), method, example_input=example, seed=seed)
    for number, data in enumerate(tasks(example, count)):
        learner.learn(Task(str(number), data), recipe)
    return learner


def job_for(learner, data):
    trainer = Trainer(learner.fabric, RECIPE, 0)
    return TaskContext("task", Data(data, "train"), Data(data, "valid"), 3, trainer)


def test_the_paper_s_values_are_the_presets():
    found = {name: benchmark.recipes["paper"].options for name, benchmark in BENCHMARKS.items()}
    names = ("p-mnist", "split-cifar10", "split-cifar100", "8-datasets")
    assert [found[name]["ewc"]["strength"] for name in names] == [100, 100, 100, 1000]
    assert [found[name]["packnet"]["prune"] for name in names] == [0.91, 0.78, 0.85, 0.75]
    assert [found[name]["hat"]["compressibility"] for name in names] == [0.5, 0.05, 0.1, 0.25]
    assert HAT().s_max == 400
    assert (LwF().temperature, LwF().strength, LwF().warmup) == (2, 1, 5)
    assert (UCB().samples, UCB().rho, UCB().prior_share) == (10, -3, 0.25)


# -- EWC ----------------------------------------------------------------------------------------------------------


def test_fisher_information_is_that_of_a_linear_softmax_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Identity(), nn.Linear(4, 3))
    learner = Learner(model, EWC(), example_input=torch.zeros(1, 2))
    x = torch.randn(4000, 2)
    found = estimate_fisher(model, {"2.weight", "2.bias"}, job_for(learner, (x, torch.zeros(4000).long())), 4000)
    with torch.no_grad():
        features = model[0](x)
        p = model(x).softmax(1)
    spread = p * (1 - p)  # the variance of a label's indicator
    assert torch.allclose(found["2.bias"], spread.mean(0), rtol=0.06)
    assert torch.allclose(found["2.weight"], (spread.T @ features.square()) / 4000, rtol=0.1)


def test_fisher_information_is_taken_in_eval_mode():
    torch.manual_seed(0)
    learner = Learner(ConvNet(), EWC(), example_input=IMAGE)
    x, y = tasks(IMAGE, 1)[0]
    model = ConvNet()
    statistics = model.norm1.running_mean.clone()
    found = [estimate_fisher(model.train(), {"conv1.weight"}, job_for(learner, (x, y)), 5)["conv1.weight"] for _ in range(2)]
    assert torch.equal(*found), "no dropout"
    assert torch.equal(model.norm1.running_mean, statistics)


def test_springs_of_many_tasks_pull_like_the_sum_of_each_task_s():
    """The two tensors that are kept against the penalty as published, a sum over tasks of F_t (w - w_t)^2."""
    method, fishers, weights = EWC(strength=7.0, samples=20), [], []
    torch.manual_seed(0)
    learner = Learner(chain(), method, example_input=VECTOR)
    for number, data in enumerate(tasks(VECTOR, 3)):
        before = {name: t.clone() for name, t in learner.core.memory.items()}
        learner.learn(Task(str(number), data), RECIPE)
        core = learner.core
        for name in core.shared:
            old = before.get(f"importance.{name}", torch.zeros_like(core.shared[name]))
            fishers.append((number, name, core.memory[f"importance.{name}"] - old))
            weights.append((number, name, core.shared[name].clone()))
    model = chain()
    published = torch.zeros(())
    for (_, name, fisher), (_, _, weight) in zip(fishers, weights):
        published = published + (fisher * (model.get_parameter(name) - weight).square()).sum()
    wanted = torch.autograd.grad(7.0 / 2 * published, [model.get_parameter(name) for name in core.shared])
    x, y = tasks(VECTOR, 1)[0]
    value = method._make_loss(model, core.memory, job_for(learner, (x, y)).loss)(model, x, y) - F.cross_entropy(model(x), y)
    got = torch.autograd.grad(value, [model.get_parameter(name) for name in core.shared])
    assert sum(float(fisher.sum()) for _, _, fisher in fishers) > 0
    for a, b in zip(got, wanted):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)


def test_without_strength_ewc_is_fine_tuning_and_with_more_weights_move_less():
    moved = {}
    plain = taught(FineTune())
    assert taught(EWC(strength=0)).verify() == plain.verify()
    for strength in (1, 100, 10_000):
        torch.manual_seed(0)
        learner = Learner(chain(), EWC(strength=strength), example_input=VECTOR)
        first, second = tasks(VECTOR, 2)
        learner.learn(Task("0", first), RECIPE)
        before = {name: tensor.clone() for name, tensor in learner.core.shared.items()}
        learner.learn(Task("1", second), RECIPE)
        moved[strength] = sum(float((learner.core.shared[n] - t).square().sum()) for n, t in before.items())
    assert moved[1] > moved[100] > moved[10_000]


def test_springs_too_stiff_for_the_learning_rate_are_named():
    with pytest.raises(TrainingError, match=r"diverged.*Lower the learning rate.*Or lower strength=1e\+30"):
        taught(EWC(strength=1e30), recipe=Recipe(epochs=10, optimizer="sgd", lr=0.1))


# -- LwF ----------------------------------------------------------------------------------------------------------


def test_the_divergence_is_that_of_softened_probabilities():
    torch.manual_seed(0)
    now, then = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4)
    wanted = kl_divergence(Categorical(logits=then / 2), Categorical(logits=now / 2)).mean()
    found = ANSWERS["classes"].divergence(now, then, 2.0)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert torch.allclose(torch.autograd.grad(found, now)[0], torch.autograd.grad(wanted, now)[0], atol=1e-6)
    assert float(ANSWERS["classes"].divergence(then, then, 2.0)) == pytest.approx(0, abs=1e-7)


def test_without_strength_and_warmup_lwf_learns_what_fine_tuning_learns():
    x = tasks(VECTOR, 1)[0][0]
    plain, learner = taught(FineTune()), taught(LwF(strength=0, warmup=0))
    assert torch.allclose(learner.logits(x, "1"), plain.logits(x, "1"), atol=1e-4)
    assert not torch.allclose(learner.logits(x, "0"), plain.logits(x, "1"), atol=1e-2)


def test_with_more_strength_old_heads_say_of_new_inputs_what_they_said():
    moved = {}
    for strength in (0.0, 1.0, 30.0):
        torch.manual_seed(0)
        learner = Learner(ConvNet(), LwF(strength=strength, warmup=1), example_input=IMAGE)
        first, second = tasks(IMAGE, 2)
        learner.learn(Task("0", first), Recipe(epochs=12, keep="last"))
        before = learner.logits(second[0], "0")
        learner.learn(Task("1", second), Recipe(epochs=12, lr=1e-3, keep="last"))
        moved[strength] = float(ANSWERS["classes"].divergence(learner.logits(second[0], "0"), before, 2.0))
    assert moved[0.0] > moved[1.0] > moved[30.0]


def test_the_new_head_is_trained_alone_at_first(monkeypatch):
    moved, fit = {}, Trainer.fit

    def watched(self, module, *args, **kwargs):
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        rows = fit(self, module, *args, **kwargs)
        moved[kwargs.get("phase", "train")] = {n for n, p in module.named_parameters() if not torch.equal(p, before[n])}
        return rows

    monkeypatch.setattr(Trainer, "fit", watched)
    taught(LwF(warmup=5), recipe=Recipe(epochs=6))
    assert moved["head"] == {"4.weight", "4.bias"}
    assert moved["train"] > moved["head"]


def test_the_new_head_has_a_warm_up_of_its_own():
    phases = []
    learner = Learner(chain(), LwF(warmup=5), example_input=VECTOR)
    first, second = tasks(VECTOR, 2)
    learner.learn(Task("0", first), Recipe(epochs=6))

    def look(row):
        phases.append((row["phase"], row["epoch"]))
        if row["phase"] == "train":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(Task("1", second), Recipe(epochs=6), on_epoch=look)
    assert phases == [("head", 1), ("head", 2), ("head", 3), ("train", 1)], "at most half of the epochs are for the head"
    assert [row["phase"] for row in learner.records["0"].history] == ["train"] * 6
    assert LwF(warmup=5).plan(Recipe(epochs=12), 1) == {"head": 5, "train": 7}


def test_the_teacher_stands_still(monkeypatch):
    """What old heads said is asked in eval mode: twice the same loss, though the network has dropout and batch norm."""
    caught, fit = {}, Trainer.fit

    def watched(self, module, *args, **kwargs):
        caught.update(module=module, make_loss=kwargs.get("make_loss"))
        return fit(self, module, *args, **kwargs)

    monkeypatch.setattr(Trainer, "fit", watched)
    learner = taught(LwF(warmup=0), 1, ConvNet(), IMAGE)
    before = learner.subnet("0")
    x, y = tasks(IMAGE, 2)[1]
    learner.learn(Task("1", (x, y)), RECIPE)
    module = caught["module"].eval()
    logits = module(x)
    wanted = F.cross_entropy(logits[:, 3:], y) + ANSWERS["classes"].divergence(logits[:, :3], before(x), 2.0)
    assert caught["make_loss"](module)(module, x, y).item() == pytest.approx(wanted.item(), rel=1e-5)


# -- HAT ----------------------------------------------------------------------------------------------------------


def gated_network(family="convnet", s_max=400.0, steps=5):
    make, example, _ = FAMILIES[family]
    torch.manual_seed(0)
    model = make()
    channels = Learner(model, HAT(), example_input=example).core.channels
    return Gated(model, channels, s_max, steps), channels, example


def test_the_scale_rises_from_its_inverse_to_the_largest_over_an_epoch():
    gated, _, example = gated_network()
    for _ in range(2):
        gated.train()
        scales = []
        for _ in range(5):
            gated(example.repeat(2, 1, 1, 1))
            scales.append(gated.scale)
        wanted = [1 / 400 + (400 - 1 / 400) * (b - 1) / (5 - 1) for b in range(1, 6)]  # equation 3
        assert scales == pytest.approx(wanted)
    gated.eval()
    assert gated.scale == 400


def test_the_embedding_s_gradient_is_compensated_as_published():
    gated, _, example = gated_network()
    gated.train()
    for _ in range(3):
        gated(example.repeat(2, 1, 1, 1))
    s, e = gated.scale, gated.embedding.detach().double()
    gated.embedding.grad = torch.full_like(gated.embedding, 0.5)
    gated.compensate_gradient()
    wanted = 0.5 * 400 * (torch.cosh((s * e).clamp(-50, 50)) + 1) / (s * (torch.cosh(e) + 1))  # equation 5
    assert torch.allclose(gated.embedding.grad.double(), wanted, rtol=1e-4)


@pytest.mark.parametrize("family", ["chain", "convnet", "resnet", "densenet", "mobilenet", "shuffle", "twice", "text"])
def test_gates_that_are_shut_do_what_narrowing_does(family):
    gated, channels, example = gated_network(family)
    gated.backbone.eval()
    gated.embedding.data = torch.where(gated.embedding > 0, 6.0, -6.0)
    keep = select_open_units(channels, gated.embedding.detach())
    gated.embedding.data[keep] = 6.0
    gated.eval()
    x = tasks(example, 1)[0][0][:4]
    learner = Learner(gated.backbone, HAT(), example_input=example)
    core = learner.core
    narrow = core.blueprint.build(channels.gather(core.blueprint.tensors(), keep))
    narrow.eval()
    with torch.no_grad():
        assert torch.allclose(gated(x), narrow(x), atol=1e-5)
    assert not bool(keep.all()), "some gate should be shut"


def test_a_higher_price_opens_fewer_units_and_a_layer_keeps_at_least_one():
    for recipe in (Recipe(epochs=20), Recipe(epochs=20, optimizer="sgd", lr=0.05)):
        sizes = [taught(HAT(compressibility=c), 3, recipe=recipe).size for c in (0.0, 0.1, 0.3)]
        assert sizes[0] > sizes[1] > sizes[2] > 0
    assert list(taught(HAT(compressibility=1e4), 1, recipe=recipe).records["0"].widths.values()) == [1, 1]


def test_the_price_is_the_mean_gate_of_units_that_no_earlier_task_has():
    gated, channels, _ = gated_network("chain")
    new = torch.zeros(channels.units)
    new[:4] = 1
    gated.eval()
    gated.embedding.data = torch.linspace(-0.01, 0.01, channels.units)
    wanted = torch.sigmoid(400 * gated.embedding[:4]).mean()
    assert gated.cost(new).item() == pytest.approx(wanted.item(), rel=1e-6)
    assert gated.cost(torch.zeros_like(new)).item() == 0, "when all units are taken, nothing is left to pay for"


def test_hat_holds_what_earlier_tasks_use_while_it_trains(monkeypatch):
    learner = taught(HAT(compressibility=0.1), 1, recipe=Recipe(epochs=10))
    held, before, fit, seen = learner.core.frozen_positions("subnet"), dict(learner.core.shared), Trainer.fit, []

    def watched(self, module, *args, **kwargs):
        rows = fit(self, module, *args, **kwargs)
        seen.extend((name, module.backbone.get_parameter(name).detach()) for name in before)
        return rows

    monkeypatch.setattr(Trainer, "fit", watched)
    learner.learn(Task("next", tasks(VECTOR, 2)[1]), Recipe(epochs=5, optimizer="sgd", lr=0.1, weight_decay=0.1))
    for name, tensor in seen:
        assert bool(held[name].any())
        assert torch.equal(tensor[held[name]], before[name][held[name]])
        assert not torch.equal(tensor[~held[name]], before[name][~held[name]])


def test_hat_pays_for_new_units_only_and_keeps_embeddings_within_bounds(monkeypatch):
    learner = taught(HAT(compressibility=0.1), 1, recipe=Recipe(epochs=10))
    free, fit, caught = ~learner.core.committed_units, Trainer.fit, {}
    assert bool(free.any())
    assert not bool(free.all())

    def watched(self, module, *args, **kwargs):
        caught.update(module=module, make_loss=kwargs["make_loss"], before_step=kwargs["before_step"])
        return fit(self, module, *args, **kwargs)

    monkeypatch.setattr(Trainer, "fit", watched)
    learner.method = HAT(compressibility=2.0, embedding_lr=1000.0)
    x, y = tasks(VECTOR, 2)[1]
    learner.learn(Task("next", (x, y)), Recipe(epochs=2))
    gated = caught["module"].eval()
    assert gated.embedding.abs().max().item() == 6
    gated.embedding.data = torch.linspace(-0.02, 0.02, len(free))
    wanted = F.cross_entropy(gated(x), y) + 2.0 * gated.gates()[free].mean()
    assert caught["make_loss"](gated)(gated, x, y).item() == pytest.approx(wanted.item(), rel=1e-5)
    for parameter in gated.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    gated.embedding.grad = None
    caught["before_step"]()
    assert math.sqrt(sum(float(p.grad.square().sum()) for p in gated.backbone.parameters())) == pytest.approx(10_000, rel=1e-3)


def test_without_training_hat_keeps_the_network_whole():
    learner = taught(HAT(), 1, recipe=Recipe(epochs=0))
    assert learner.records["0"].widths == learner.widths


def test_hat_s_tasks_choose_units_freely():
    learner = taught(HAT(compressibility=0.1), 3, recipe=Recipe(epochs=10))
    core = learner.core
    assert any(bool((core.tasks[0].units & ~core.tasks[n].units).any()) for n in (1, 2)), (
        "a later network need not contain an earlier one"
    )
    assert learner.size <= 1


# -- PackNet ------------------------------------------------------------------------------------------------------


def test_packnet_takes_its_share_of_every_layer_and_nobody_s_weight_twice():
    learner = taught(PackNet(prune=0.75), 3)
    core = learner.core
    for name in ("0.weight", "2.weight"):
        taken, count = core.ownership.owners[name], core.ownership.owners[name].numel()
        left = count
        for number in range(3):
            wanted = left - round(0.75 * left)
            assert int((taken == number).sum()) == wanted
            left -= wanted
        assert int((taken == 255).sum()) == left
        assert int(core.shared[name].count_nonzero()) <= count - left
        for number in range(3):
            network = learner.subnet(str(number)).get_parameter(name)
            assert int(network.count_nonzero()) <= int((taken <= number).sum())
    assert bool((core.ownership.owners["0.bias"] == 0).all()), "biases are the first task's"


def test_a_weight_that_was_taken_is_not_taken_again():
    core = taught(PackNet(prune=0.75), 1).core
    everything = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in core.shared.items()}
    after = core.commit(
        {name: torch.full(shape, 7.0) for name, shape in core.channels.shapes.items()}, core.channels.all_units(), everything
    )
    assert after.digest(0) == core.digest(0)
    assert int((after.ownership.owners["0.weight"] == 0).sum()) == int((core.ownership.owners["0.weight"] == 0).sum()) > 0


def test_packnet_removes_the_smallest_free_weights():
    weight = torch.tensor([[5.0, -1.0, 3.0], [-4.0, 2.0, 9.0]])
    free = torch.tensor([[True, True, True], [True, True, False]])
    kept = PackNet(prune=0.6)._select_largest(weight, free)  # three of five go
    assert kept.tolist() == [[True, False, False], [True, False, False]]


def test_packnet_s_size_is_what_the_paper_counts():
    """Pruning by 91 % ten times leaves 0.61 of the weights in use, by 78 % five times 0.71."""
    assert pytest.approx(0.61, abs=0.001) == 1 - 0.91**10
    model = nn.Sequential(nn.Linear(6, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 3))
    learner = taught(PackNet(prune=0.78), 5, model=model, recipe=Recipe(epochs=1, retrain_epochs=0))
    assert learner.size == pytest.approx(1 - 0.78**5, abs=0.005)


def test_packnet_leaves_frozen_layers_alone():
    model = chain()
    model[0].weight.requires_grad_(False)
    given = model[0].weight.detach().clone()
    learner = taught(PackNet(prune=0.9), 2, model=model)
    assert torch.equal(learner.subnet("1")[0].weight, given)


def test_packnet_leaves_every_layer_at_least_one_weight():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    learner = taught(PackNet(prune=0.999), 1, model, torch.zeros(1, 1, 4, 4))
    assert int((learner.core.ownership.owners["0.weight"] == 0).sum()) == 1


# -- UCB ----------------------------------------------------------------------------------------------------------


def test_the_divergence_from_the_prior_is_that_of_the_distributions():
    torch.manual_seed(0)
    method, network = UCB(samples=3, prior_narrow=0.1), Bayesian(chain(), ["0.weight", "4.bias"], -2.0, {}, 3)
    network.train()
    network(torch.randn(2, 6))
    shares = torch.tensor([0.25, 0.75])
    prior = MixtureSameFamily(Categorical(shares), Normal(torch.zeros(2), torch.tensor([1.0, 0.1])))
    wanted = 0.0
    for name in ("0.weight", "4.bias"):
        wanted -= Normal(network.mean(name), network.deviation(name)).entropy().sum().item()  # E log q
        wanted -= prior.log_prob(network.drawn[name]).sum().item() / 3
    assert method._divergence(network).item() == pytest.approx(wanted, rel=1e-4)


def test_means_learn_at_a_rate_scaled_by_the_deviation_that_earlier_tasks_left():
    """Under plain SGD a mean moves by lr * sigma * gradient after the first task, and by lr * gradient in it."""
    seen = []
    original = Bayesian.forward

    def forward(self, x):
        if self.training:
            seen.append((self, {n: m.detach().clone() for n, m in self.means.items()}))
        return original(self, x)

    recipe = Recipe(epochs=1, batch_size=1000, optimizer="sgd", momentum=0, lr=0.1, schedule="constant", keep="last")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bayesian, "forward", forward)
        grads = []
        step = torch.optim.SGD.step

        def noted(self, *args, **kwargs):
            grads.append([p.grad.clone() for group in self.param_groups for p in group["params"]])
            return step(self, *args, **kwargs)

        patch.setattr(torch.optim.SGD, "step", noted)
        learned = taught(UCB(samples=1), 1, recipe=recipe).core.memory
        seen.clear()
        grads.clear()
        taught(UCB(samples=1), 2, recipe=recipe)
    assert len(seen) == len(grads) == 2
    for number, (network, before) in enumerate(seen):
        names = list(network.means)
        for name, gradient in zip(names, grads[number]):
            sigma = F.softplus(learned.get(name, torch.zeros(())))
            scale = sigma if number and not name.startswith("4.") else torch.ones(())
            moved = network.means[name].detach() - before[name]
            assert torch.allclose(moved, -0.1 * scale * gradient, atol=1e-6), name


def test_the_loss_is_cross_entropy_and_a_share_of_the_divergence(monkeypatch):
    caught, fit = {}, Trainer.fit

    def watched(self, module, *args, **kwargs):
        caught.update(module=module, make_loss=kwargs["make_loss"])
        return fit(self, module, *args, **kwargs)

    monkeypatch.setattr(Trainer, "fit", watched)
    method = UCB(samples=2, kl=0.5)
    x, y = tasks(VECTOR, 1)[0]
    Learner(chain(), method, example_input=VECTOR).learn(Task("0", (x, y), valid=(x[:9], y[:9])), RECIPE)
    bayesian = caught["module"].train()
    found = caught["make_loss"](bayesian)(bayesian, x, y).item()
    draws = [
        torch.func.functional_call(bayesian.backbone, {n: w[s] for n, w in bayesian.drawn.items()}, (x,)) for s in range(2)
    ]
    wanted = sum(F.cross_entropy(logits, y) for logits in draws) / 2 + 0.5 / len(x) * method._divergence(bayesian)
    assert found == pytest.approx(wanted.item(), rel=1e-5)


def test_deviations_do_not_decay():
    """Weight decay would pull rho to nought, a deviation of 0.69, and let go of all that was learned."""
    recipe = Recipe(epochs=20, optimizer="sgd", lr=0.05, weight_decay=0.5)
    rho = taught(UCB(samples=1, kl=0), 1, recipe=recipe).core.memory["2.weight"]
    assert float(rho.max()) < -2.5


def test_deviations_learn_and_are_carried_on():
    learner = taught(UCB(samples=2), 1, recipe=Recipe(epochs=10))
    rho = learner.core.memory["0.weight"]
    assert not torch.allclose(rho, torch.full_like(rho, -3.0), atol=1e-3)
    before = rho.clone()
    learner.learn(Task("again", tasks(VECTOR, 1)[0]), Recipe(epochs=0))
    assert torch.equal(learner.core.memory["0.weight"], before)


# -- STL and joint ------------------------------------------------------------------------------------------------


def test_a_single_task_s_network_owes_nothing_to_the_tasks_before_it():
    first, second, third = tasks(VECTOR, 3)
    learners = [Learner(chain_with_seed(), STL(), example_input=VECTOR) for _ in range(2)]
    for learner, data in zip(learners, (first, third)):
        learner.learn(Task("before", data), RECIPE)
        learner.learn(Task("task", second), RECIPE)
    assert learners[0].verify()["task"] == learners[1].verify()["task"]
    assert learners[0].verify()["before"] != learners[1].verify()["before"]
    assert learners[0].size == pytest.approx(2)


def chain_with_seed():
    torch.manual_seed(5)
    return chain()


def test_joint_training_reads_all_tasks_with_labels_of_their_own():
    x, y = torch.arange(6.0)[:, None], torch.arange(6) % 2
    pool = Pool([Data((x, y), "a"), Data((x + 10, y), "b")], [Objective(), Objective()])
    batches = list(pool.batches(5, torch.Generator().manual_seed(0)))
    rows = [(float(v), *target.tolist()) for xs, ys in batches for v, target in zip(xs, ys)]
    assert pool.steps(5) == 3
    assert sorted(rows) == [(float(i), 0, i % 2) for i in range(6)] + [(float(i + 10), 1, i % 2) for i in range(6)]
    assert set(batches[0][1][:, 0].tolist()) == {0, 1}, "a batch mixes the tasks"


def test_joint_training_compares_classes_of_one_task_and_validates_on_all(monkeypatch):
    """Its loss on a batch is the mean over examples of the cross-entropy among the classes of each example's task."""
    caught, fit = {}, Trainer.fit

    def watched(self, module, train, valid, **kwargs):
        caught.update(module=module, train=train, **kwargs)
        return fit(self, module, train, valid, **kwargs)

    monkeypatch.setattr(Trainer, "fit", watched)
    (x, y), (x2, y2) = tasks(VECTOR, 2)
    learner = Learner(chain(), Joint(), example_input=VECTOR)
    learner.learn(Task("0", (x, y)), RECIPE)
    learner.learn(Task("1", (x2, y2.clamp(max=1)), classes=2), RECIPE)
    module = caught["module"].eval()
    batch = torch.cat([x[:4], x2[:3]])
    labels = torch.cat([y[:4], y2[:3].clamp(max=1)])
    targets = torch.stack([torch.tensor([0.0] * 4 + [1.0] * 3), labels], 1)  # the task, and the class
    logits = module(batch)
    assert logits.shape == (7, 5)
    wanted = (
        F.cross_entropy(logits[:4, :3], y[:4], reduction="sum") + F.cross_entropy(logits[4:, 3:], labels[4:], reduction="sum")
    ) / 7
    assert caught["make_loss"](module)(module, batch, targets).item() == pytest.approx(wanted.item(), rel=1e-5)
    parts = [learner._state.data["0"][1], learner._state.data["1"][1]]
    hits = 0
    for part, span in zip(parts, (slice(0, 3), slice(3, 5))):
        inputs, targets = part.tensors
        hits += int((module(inputs)[:, span].argmax(1) == targets).sum())
    assert caught["validate"](module)[0] == pytest.approx(hits / sum(len(part) for part in parts))


def test_joint_training_says_whose_data_it_needs(tmp_path):
    first, second = tasks(VECTOR, 2)
    learner = Learner(chain(), Joint(), example_input=VECTOR)
    learner.learn(Task("first", first), RECIPE)
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, chain())
    with pytest.raises(TaskError, match=r"Joint trains on the data of all tasks; those of 'first' are not available.*remember"):
        loaded.learn(Task("second", second), RECIPE)
    with pytest.raises(TaskError, match="No such task"):
        loaded.remember(Task("other", first))
    loaded.remember(Task("first", first))
    loaded.learn(Task("second", second), RECIPE)
    learner.learn(Task("second", second), RECIPE)
    assert loaded.verify() == learner.verify()
    loader = Task("third", DataLoader(TensorDataset(*first), batch_size=10), valid=first)
    with pytest.raises(DataError, match="which it cannot do with a DataLoader"):
        learner.learn(loader, RECIPE)


# -- against each other -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_methods_come_out_in_the_order_of_the_paper_s_table(tmp_path):
    """Permuted digits, five tasks: fine-tuning far below, LwF and EWC between, those that do not forget on top."""
    from spacecl.runs import run
    from spacecl.runs.resolve import resolve

    found = {}
    for method in ("finetune", "lwf", "ewc", "ucb", "hat", "packnet", "wsn", "space", "stl", "joint"):
        options = {"ucb": {"samples": 1}}.get(method, {})
        settings = resolve({"benchmark": "permuted-digits", "method": method, "options": options, "device": "cpu"})
        result = run.run(settings, tmp_path / method, print_line=lambda text: None)
        found[method] = result["average_accuracy"]
    top = min(found[name] for name in ("hat", "packnet", "wsn", "space", "stl", "joint"))
    between = [found[name] for name in ("lwf", "ewc", "ucb")]
    assert top > 0.94, found
    assert found["finetune"] < 0.86, found
    assert top > max(between) + 0.015, found
    assert min(between) > found["finetune"] + 0.005, found
    assert found["ewc"] > found["finetune"] + 0.05, found
    assert math.isclose(found["stl"], max(found.values()), abs_tol=0.01), found
