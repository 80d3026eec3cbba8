"""Recipes: what the optimiser and the learning rate really do."""

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from models import chain, tasks
from torch import nn

from spacecl import ConfigError, Recipe
from spacecl.data.task_data import Data
from spacecl.learning.optimizers import make_optimizer, make_schedule
from spacecl.learning.trainer import Trainer, evaluate


def rates(recipe, steps):
    """The learning rate of every step."""
    optimizer = make_optimizer(recipe, nn.Linear(2, 2))
    schedule = make_schedule(recipe, optimizer, steps)
    found = []
    for _ in range(recipe.epochs * steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_steps_divide_the_rate_by_ten_after_their_epochs():
    found = rates(Recipe(epochs=4, lr=0.1, schedule="steps", milestones=(1, 3)), 2)
    assert found == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.001, 0.001])


def test_one_cycle_rises_to_the_rate_and_falls_to_nothing():
    found = rates(Recipe(epochs=4, lr=0.1, schedule="one-cycle"), 10)
    assert max(found) == pytest.approx(0.1, rel=0.01)
    assert found.index(max(found)) in (9, 10)
    assert found[0] < 0.005
    assert found[-1] < 0.001


def test_cosine_falls_and_constant_stays():
    assert rates(Recipe(epochs=2, lr=0.1, schedule="constant", milestones=(1,)), 3) == [0.1] * 6
    falling = rates(Recipe(epochs=2, lr=0.1, schedule="cosine"), 3)
    assert falling == sorted(falling, reverse=True)
    assert falling[0] == 0.1


def test_the_optimiser_gets_the_recipes_values():
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    sgd = make_optimizer(Recipe(optimizer="sgd", lr=0.3, momentum=0.8, weight_decay=0.02), module)
    assert type(sgd) is torch.optim.SGD
    assert [sgd.param_groups[0][key] for key in ("lr", "momentum", "weight_decay")] == [0.3, 0.8, 0.02]
    assert sgd.param_groups[0]["params"] == [module.weight], "what the user froze stays frozen"
    for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        found = make_optimizer(Recipe(optimizer=name, lr=0.3, weight_decay=0.02), module)
        assert type(found) is kind
        assert [found.param_groups[0][key] for key in ("lr", "weight_decay")] == [0.3, 0.02]


def test_retraining_has_values_of_its_own_or_follows():
    recipe = Recipe(epochs=9, lr=0.1, schedule="steps", milestones=(3,), weight_decay=0.01)
    follows = recipe.for_retraining()
    assert (follows.epochs, follows.lr, follows.schedule, follows.milestones, follows.weight_decay) == (
        5,
        0.1,
        "steps",
        (3,),
        0.01,
    )
    own = Recipe(epochs=9, lr=0.1, retrain_epochs=0, retrain_lr=0.5, retrain_schedule="cosine", retrain_milestones=(7,))
    own = own.for_retraining()
    assert (own.epochs, own.lr, own.schedule, own.milestones) == (0, 0.5, "cosine", (7,))


def test_step_hooks_run_around_every_step_and_a_loss_can_be_given():
    x, y = tasks(torch.zeros(1, 6), 1)[0]
    calls = []
    module = chain()

    def before():
        assert all(parameter.grad is not None for parameter in module.parameters())
        calls.append("before")

    def loss(run, x, y):
        calls.append("loss")
        return run(x).square().mean()

    trainer = Trainer(Fabric(accelerator="cpu", devices=1), Recipe(epochs=2, batch_size=45), seed=0)
    data = Data((x, y), "data")
    rows = trainer.fit(
        module, data, data, make_loss=lambda _: loss, before_step=before, after_step=lambda: calls.append("after")
    )
    assert calls == ["loss", "before", "after"] * 4
    assert [row["epoch"] for row in rows] == [1, 2]


def test_evaluate_counts_every_example_once():
    class Parity(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return torch.stack([x[:, 0] % 2 == 0, x[:, 0] % 2 == 1], 1) * self.scale

    x = torch.arange(1001.0)[:, None]
    y = (torch.arange(1001) % 2) ^ (torch.arange(1001) < 10)
    assert evaluate(Parity(), Data((x, y), "data"), Fabric(accelerator="cpu", devices=1)) == pytest.approx(991 / 1001)


def test_a_plateau_divides_the_rate_when_the_validation_loss_has_not_fallen_and_ends_training():
    """The rate falls after `patience` epochs without a lower loss; below `stop_lr` training ends."""
    x, y = tasks(torch.zeros(1, 6), 1)[0]
    recipe = Recipe(
        epochs=40, batch_size=45, optimizer="sgd", lr=0.01, schedule="plateau", decay=3, patience=5, stop_lr=1e-3, keep="last"
    )
    losses = iter([3.0, 2.0, *([2.5] * 38)])
    trainer = Trainer(Fabric(accelerator="cpu", devices=1), recipe, seed=0)
    data = Data((x, y), "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spacecl.learning.trainer.evaluate_with_loss", lambda *_: (0.5, next(losses)))
        rows = trainer.fit(chain(), data, data)
    rates = [row["lr"] for row in rows]
    assert rates[:7] == [0.01] * 7
    assert rates[7:12] == pytest.approx([0.01 / 3] * 5)
    assert rates[12:] == pytest.approx([0.01 / 9] * 5)
    assert len(rows) == 17, "0.01 / 27 is below the rate to stop at"


def test_steps_divide_by_what_the_recipe_says():
    assert rates(Recipe(epochs=2, lr=0.9, schedule="steps", milestones=(1,), decay=3), 1) == pytest.approx([0.9, 0.3])


def test_the_score_is_accuracy_and_mean_cross_entropy():
    from spacecl.learning.trainer import evaluate_with_loss

    x, y = torch.randn(300, 6), torch.arange(300) % 3
    module = chain()
    logits = module.eval()(x).detach()
    accuracy, loss = evaluate_with_loss(module, Data((x, y), "data"), Fabric(accelerator="cpu", devices=1))
    assert accuracy == pytest.approx(float((logits.argmax(1) == y).float().mean()))
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y)), rel=1e-5)


def test_augmentation_of_what_is_no_image_is_refused():
    x, y = tasks(torch.zeros(1, 6), 1)[0]
    trainer = Trainer(Fabric(accelerator="cpu", devices=1), Recipe(epochs=1, augment="flip"), seed=0)
    data = Data((x, y), "data")
    with pytest.raises(ConfigError, match=r'augment="flip" is for images, but inputs have shape \(6,\)'):
        trainer.fit(chain(), data, data)


def test_inputs_of_any_shape_can_be_masked_unless_they_are_integers():
    x, y = tasks(torch.zeros(1, 6), 1)[0]
    trainer = Trainer(Fabric(accelerator="cpu", devices=1), Recipe(epochs=1, augment="mask"), seed=0)
    assert len(trainer.fit(chain(), Data((x, y), "data"), Data((x, y), "data"))) == 1
    data = Data((torch.randint(0, 20, (len(x), 5)), y), "data")
    model = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(8 * 5, 3))
    with pytest.raises(ConfigError, match=r'augment="mask" is for floating-point inputs; these are torch.int64'):
        trainer.fit(model, data, data)


def test_a_layer_with_sparse_gradients_is_trained_without_the_fused_optimiser():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(8 * 5, 3))
    recipe = Recipe(optimizer="sgd", momentum=0.0)
    optimizer = make_optimizer(recipe, model)
    F.cross_entropy(model(torch.randint(0, 20, (4, 5))), torch.tensor([0, 1, 2, 0])).backward()
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)
    assert make_optimizer(recipe, model[2]).param_groups[0]["fused"], "which others have"
