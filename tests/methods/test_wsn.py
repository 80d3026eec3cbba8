"""WSN against a plain transcription of its algorithm, and what single weights that tasks select mean for a core."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import teach
from models import VECTOR, chain, tasks
from torch import nn

from spacecl import WSN, Learner, Recipe, StoreError, Task, store
from spacecl.learning.ownership import SubnetOwnership, pack_bits, unpack_bits
from spacecl.learning.saved import SavedLearner, from_files
from spacecl.methods.wsn import Subnet, select_highest

PLAIN = Recipe(epochs=5, batch_size=1000, optimizer="sgd", momentum=0, lr=0.5, schedule="constant", keep="last")


def transcribe(model, scores, used, x, y, density, recipe):
    """Algorithm 1 of the paper for one task with whole batches, weight by weight: new parameters, scores, and masks."""
    values, scores = {n: p.detach().clone() for n, p in model.named_parameters()}, {n: s.clone() for n, s in scores.items()}

    def find_masks():
        masks = {}
        for name, score in scores.items():
            magnitudes = sorted(score.abs().flatten().tolist(), reverse=True)
            lowest = magnitudes[len(magnitudes) - 1 - round((1 - density) * (len(magnitudes) - 1))]
            masks[name] = score.abs() >= lowest
        return masks

    for _ in range(recipe.epochs):
        masks = find_masks()
        effective = {n: (v * masks[n] if n in masks else v).requires_grad_() for n, v in values.items()}
        loss = F.cross_entropy(torch.func.functional_call(model, effective, (x,)), y)
        slopes = dict(zip(effective, torch.autograd.grad(loss, list(effective.values()))))
        for name, slope in slopes.items():
            if name in scores:
                of_score = slope * values[name] * scores[name].sign()  # straight through the mask, which is of |s|
                slope = slope * masks[name]
            moved = values[name] - recipe.lr * slope
            values[name] = torch.where(used[name], values[name], moved) if name in used else moved
            if name in scores:
                scores[name] = scores[name] - recipe.lr * of_score
    return {n: v.detach() for n, v in values.items()}, {n: s.detach() for n, s in scores.items()}, find_masks()


def test_two_tasks_are_learned_as_the_algorithm_says():
    torch.manual_seed(0)
    model = chain().double()
    data = [(x.double(), y) for x, y in tasks(VECTOR, 2)]
    learner = Learner(model, WSN(density=0.4), example_input=VECTOR.double(), seed=0)
    scores = {n: p.detach().abs() for n, p in model.named_parameters() if n in ("0.weight", "2.weight")}
    used, start = {}, {n: p.detach() for n, p in model.named_parameters()}
    for number, (x, y) in enumerate(data):
        caught = {}
        build = type(learner.core.blueprint).build

        def catch(self, tensors, caught=caught, build=build):
            return build(self, caught.setdefault("tensors", {n: t.clone() for n, t in tensors.items()}))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(learner.core.blueprint), "build", catch)
            learner.learn(Task(str(number), (x, y), valid=(x[:9], y[:9])), PLAIN)
        begun = copy.deepcopy(model)
        begun[4] = nn.Linear(begun[4].in_features, 3).double()
        start |= {name: caught["tensors"][name] for name in ("4.weight", "4.bias")}  # a new head, drawn by the learner
        begun.load_state_dict(start)
        found, scores, masks = transcribe(begun, scores, used, x, y, 0.4, PLAIN)
        network = learner.subnet(str(number))
        for name, value in found.items():
            wanted = value * masks[name] if name in masks else value
            assert torch.allclose(network.get_parameter(name), wanted, atol=1e-12), name
        for name, score in scores.items():
            assert torch.allclose(learner.core.memory[name], score, atol=1e-12), name
        given = {n: p.detach() for n, p in model.named_parameters()}
        for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
            selected = masks.get(name, torch.ones_like(found[name], dtype=torch.bool))
            used[name] = used.get(name, torch.zeros_like(selected)) | selected
            start[name] = torch.where(used[name], found[name], given[name])
    first, second = (unpack_bits(learner.core.ownership.selected["2.weight"][n], (10, 12)) for n in (0, 1))
    for what, part in (("shares", first & second), ("adds", second & ~first), ("leaves out", first & ~second)):
        assert bool(part.any()), f"the second network {what} no weights: the test shows less than it should"


@pytest.mark.parametrize(("count", "density", "kept"), [(10, 0.3, 4), (10, 0.5, 6), (10, 1.0, 10), (10, 0.001, 1), (1, 0.5, 1)])
def test_the_fraction_of_the_highest_scores_is_selected_whatever_their_sign(count, density, kept):
    scores = torch.arange(1.0, count + 1) * torch.tensor([1.0, -1.0]).repeat(5)[:count]
    wanted = torch.arange(count) >= count - kept
    assert kept == count - round((1 - density) * (count - 1))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert torch.equal(select_highest(scores.to(dtype), density), wanted)


def test_scores_that_are_not_selected_learn_and_their_weights_do_not():
    torch.manual_seed(0)
    network = chain()
    subnet = Subnet(network, {"2.weight": torch.randn_like(network[2].weight)}, 0.3)
    x, selected = torch.randn(8, 6), select_highest(subnet.scores["0"], 0.3)
    subnet(x).square().sum().backward()
    effective = (network[2].weight * selected).detach().requires_grad_()
    torch.func.functional_call(network, {"2.weight": effective}, (x,)).square().sum().backward()
    slope = effective.grad * network[2].weight.detach()
    assert torch.allclose(subnet.scores["0"].grad, torch.where(subnet.scores["0"] > 0, slope, -slope), atol=1e-6)
    assert not bool(network[2].weight.grad[~selected].any())
    assert bool(subnet.scores["0"].grad[~selected].any())


def test_scores_begin_with_the_magnitudes_of_the_weights_or_as_published():
    idle = Recipe(epochs=0)
    scores = {
        how: teach(method=WSN(scores=how), count=1, recipe=idle).core.memory["2.weight"] for how in ("magnitude", "random")
    }
    torch.manual_seed(0)
    assert torch.equal(scores["magnitude"], chain()[2].weight.detach().abs())
    bound = 1 / math.sqrt(12)
    assert -bound <= float(scores["random"].min()) < 0 < float(scores["random"].max()) <= bound


def test_scores_do_not_decay():
    recipe = Recipe(epochs=20, optimizer="sgd", lr=0.05, weight_decay=0.5)
    learner = teach(method=WSN(), count=1, recipe=recipe)
    assert float(learner.core.memory["2.weight"].abs().mean()) > 0.1
    assert float(learner.core.shared["2.weight"].abs().mean()) < 0.1


def test_a_full_network_is_no_limit_for_more_tasks():
    learner = teach(method=WSN(density=1.0), count=3)
    assert learner.size == 1
    assert learner.capacity["2"] == {"of": 130, "taken": 130, "last": 0}


def test_the_size_is_that_of_the_union_of_the_masks():
    learner = teach(method=WSN(density=0.2), count=3, recipe=Recipe(epochs=5, lr=0.05))
    core, weights = learner.core, ("0.weight", "0.bias", "2.weight", "2.bias")
    networks = [learner.subnet(task) for task in learner.tasks]
    union = sum(int(sum(network.get_parameter(name) != 0 for network in networks).count_nonzero()) for name in weights)
    assert learner.size == pytest.approx(union / sum(core.shared[name].numel() for name in weights))
    assert 0.2 < learner.size < 0.7


def test_a_mask_takes_a_bit_for_every_weight_and_task():
    learner = teach(method=WSN(), count=3)
    core = learner.core
    bits = 3 * sum(math.ceil(tensor.numel() / 8) for tensor in core.shared.values())
    assert learner.storage["masks"] == bits + sum(len(task.units) for task in core.tasks)
    mask = torch.rand(3, 5, 7) > 0.5
    assert torch.equal(unpack_bits(pack_bits(mask), mask.shape), mask)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:1], r"selected.2.weight is uint8 \[1, 15\] instead of uint8 \[2, 15\]"),
        (lambda rows: rows[:, :3], r"selected.2.weight is uint8 \[2, 3\]"),
        (lambda rows: rows.float(), r"selected.2.weight is float32"),
        (None, "selected.2.weight is missing"),
    ],
)
def test_masks_of_a_saved_learner_are_validated(change, message, tmp_path):
    learner = teach(method=WSN())
    learner.save(tmp_path)
    body, files = store.load(tmp_path, SavedLearner)
    assert isinstance(from_files(learner.core, body, files, tmp_path)[0].ownership, SubnetOwnership)
    rows = files["core"].pop("selected.2.weight")
    if change is not None:
        files["core"]["selected.2.weight"] = change(rows)
    with pytest.raises(StoreError, match=message):
        from_files(learner.core, body, files, tmp_path)


def test_capacity_says_what_the_last_task_added():
    recipe = Recipe(epochs=5, lr=0.05)
    two, three = (teach(method=WSN(density=0.2), count=count, recipe=recipe).capacity for count in (2, 3))
    assert any(counts["last"] for counts in three.values())
    assert all(three[layer]["last"] == three[layer]["taken"] - two[layer]["taken"] for layer in two)
