"""Training that fits the data: the recipe that is chosen by their amount, clipped gradients and averaged weights."""

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from models import VECTOR, chain, tasks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spacecl import SPACE, STL, ConfigError, Images, Learner, Recipe, StoreError, Task
from spacecl.data.task_data import Data
from spacecl.learning.checkpoints import Checkpointer, PhaseState, random_state
from spacecl.learning.optimizers import clip_gradients
from spacecl.learning.trainer import Trainer
from spacecl.structure.tensors import named_tensors


def count_steps(recipe, examples):
    return recipe.epochs * -(-examples // recipe.batch_size)


def fit(module, recipe, **options):
    data = Data(tasks(VECTOR, 1)[0], "data")
    trainer = Trainer(Fabric(accelerator="cpu", devices=1), recipe, seed=0)
    return trainer.fit(module, data, data, **options)


# -- Recipe.auto -------------------------------------------------------------------------------------------------------


def test_few_examples_get_as_many_steps_as_many_do_and_many_do_not_take_forever():
    for examples in (2, 20, 65, 300, 1000, 3000, 10_000, 60_000):
        assert 600 <= count_steps(Recipe.auto(examples), examples) <= 2000, examples
    assert Recipe.auto(10_000_000).epochs == 1
    sizes = [Recipe.auto(examples).batch_size for examples in (10, 100, 1000, 10_000, 100_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_a_pretrained_network_has_fewer_epochs_of_many_examples_and_as_many_steps_with_few():
    for examples in (2, 65, 300, 1800, 10_000):
        steps = count_steps(Recipe.auto(examples, pretrained=True), examples)
        assert 600 <= steps <= count_steps(Recipe.auto(examples), examples), examples
    assert Recipe.auto(1800, pretrained=True).epochs < Recipe.auto(1800).epochs


def test_retraining_has_at_least_as_many_steps_as_training():
    for options in ({}, {"epochs": 3}, {"batch_size": 7}):
        recipe = Recipe.auto(500, **options)
        assert recipe.for_retraining().epochs >= recipe.epochs
    assert Recipe.auto(500, retrain_epochs=1).for_retraining().epochs == 1


def test_the_best_epoch_is_chosen_only_with_enough_validation_data():
    assert [Recipe.auto(1000, valid).keep for valid in (None, 0, 50, 200, 5000)] == ["average"] * 3 + ["best"] * 2


def test_values_that_are_given_are_not_chosen_and_the_number_of_epochs_follows_from_the_batch_size():
    assert Recipe.auto(100, lr=0.5, keep="last", epochs=0).epochs == 0
    recipe = Recipe.auto(100, lr=0.5, keep="last", clip=None, augment="flip")
    assert (recipe.lr, recipe.keep, recipe.clip, recipe.augment) == (0.5, "last", None, "flip")
    small, large = (Recipe.auto(1000, batch_size=size) for size in (8, 500))
    assert large.epochs > small.epochs


def test_numbers_of_examples_and_options_that_cannot_be_are_refused():
    for arguments, message in (
        ((-1,), "examples=-1 must be a number of examples, 0 or more"),
        ((10, 2.5), "valid=2.5 must be a number of examples, 0 or more"),
    ):
        with pytest.raises(ConfigError, match=message):
            Recipe.auto(*arguments)
    with pytest.raises(ConfigError, match="batch_size=0 must be a whole number, at least 1"):
        Recipe.auto(10, batch_size=0)
    with pytest.raises(TypeError, match="epoch"):
        Recipe.auto(10, epoch=3)


def test_a_task_without_a_recipe_is_learned_by_the_amount_of_its_data():
    x, y = tasks(VECTOR, 1)[0]
    learner = Learner(chain(), STL(), example_input=VECTOR)
    record = learner.learn(Task("split", (x, y)))
    assert len(record.history) == 2 * Recipe.auto(81, 9).epochs, "those of retraining, too, which STL does not have"
    record = learner.learn(Task("given", (x, y), (x[:5], y[:5])))
    assert len(record.history) == 2 * Recipe.auto(90, 5).epochs
    record = learner.learn(Task("loader", DataLoader(TensorDataset(x, y), batch_size=45), (x, y)))
    assert len(record.history) == 2 * Recipe.auto(90, 90, batch_size=45).epochs


def test_pictures_are_shifted_unless_they_are_tiny_or_their_pixels_permuted():
    def values_for(side: int, order: torch.Tensor | None = None, **options) -> dict:
        images = Images(np.zeros((4, 1, side, side), np.uint8), [0, 1, 0, 1], [0.0], [1.0], order=order, **options)
        return Data(images, "train").recipe_values

    assert values_for(28) == {"augment": "shift"}
    assert values_for(8) == values_for(28, torch.randperm(784)) == {}
    assert values_for(8, shape=(3, 32, 32)) == {"augment": "shift"}, "with borders"
    assert Data((torch.zeros(4, 1, 28, 28), torch.tensor([0, 1, 0, 1])), "train").recipe_values == {}, "may be anything"


def test_a_checkpoint_knows_the_recipe_that_was_chosen(tmp_path):
    x, y = tasks(VECTOR, 1)[0]

    def learn(recipe=None):
        torch.manual_seed(0)
        learner = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR)
        return learner.learn(Task("t", (x, y)), recipe, checkpoint=tmp_path)

    first = learn()
    assert learn(Recipe.auto(81, 9)).digest == first.digest
    assert [row["seconds"] for row in learn().history] == [row["seconds"] for row in first.history], "nothing is trained again"


def test_a_checkpoint_from_before_gradients_could_be_clipped_is_one_without_clipping(tmp_path):
    state = PhaseState((), 0.0, False, (0.1,), {}, random_state(torch.device("cpu"))[0])
    Checkpointer(tmp_path, {"recipe": {"epochs": 3}}).save("train", state, {"module": {"weight": torch.zeros(2)}})
    now = {"epochs": 3, "clip": None, "label_smoothing": 0.0, "class_weights": None}
    assert Checkpointer(tmp_path, {"recipe": now}).load("train") is not None
    for change in ({"clip": 1.0}, {"label_smoothing": 0.1}, {"class_weights": "balanced"}):
        with pytest.raises(StoreError, match="checkpoint of other work: recipe was"):
            Checkpointer(tmp_path, {"recipe": now | change}).load("train")


# -- clip --------------------------------------------------------------------------------------------------------------


def test_longer_gradients_are_shortened_and_others_are_as_they_were():
    norms = {}
    for clip in (None, 1e-3, 1e6):
        torch.manual_seed(0)
        module = chain()
        before = {name: tensor.clone() for name, tensor in named_tensors(module).items()}
        recipe = Recipe(epochs=1, batch_size=1000, optimizer="sgd", momentum=0.0, lr=1.0, schedule="constant", clip=clip)
        fit(module, recipe)
        steps = [tensor - before[name] for name, tensor in named_tensors(module).items()]
        norms[clip] = float(torch.cat([step.flatten() for step in steps]).norm())
    assert norms[1e-3] == pytest.approx(1e-3, rel=1e-3)
    assert norms[None] > 1e-2
    assert norms[1e6] == pytest.approx(norms[None], rel=1e-6)


def test_sparse_gradients_are_shortened_with_the_others():
    torch.manual_seed(0)
    words, labels = torch.randint(0, 20, (4, 5)), torch.tensor([0, 1, 2, 0])
    gradients = []
    for sparse in (True, False):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(20, 8, sparse=sparse), nn.Flatten(), nn.Linear(8 * 5, 3))
        nn.functional.cross_entropy(model(words), labels).backward()
        clip_gradients(model, 1e-2)
        gradients.append(torch.cat([parameter.grad.to_dense().flatten() for parameter in model.parameters()]))
    assert float(gradients[0].norm()) == pytest.approx(1e-2, rel=1e-3)
    assert torch.allclose(*gradients)


def test_gradients_are_clipped_after_a_methods_own_changes_of_them():
    """HAT takes the gradient of its gates for itself: it must not count."""
    torch.manual_seed(0)
    module = chain()
    first, *others = module.parameters()
    others[0].requires_grad_(True)
    before = [parameter.detach().clone() for parameter in module.parameters()]

    def take_first():
        first.grad.mul_(1e6)
        first.grad = None

    recipe = Recipe(epochs=1, batch_size=1000, optimizer="sgd", momentum=0.0, lr=1.0, schedule="constant", clip=1e-3)
    fit(module, recipe, before_step=take_first)
    steps = [parameter.detach() - old for parameter, old in zip(module.parameters(), before)]
    assert float(torch.cat([step.flatten() for step in steps]).norm()) == pytest.approx(1e-3, rel=1e-3)


# -- keep="average" ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "averaged"), [(1, 1), (3, 1), (8, 2), (12, 3)])
def test_the_average_is_the_mean_of_the_weights_after_each_epoch_of_the_last_quarter(epochs, averaged):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    rows = []

    def validate(module):
        rows.append({name: tensor.clone() for name, tensor in named_tensors(module).items()})
        return 0.5, 1.0

    fit(module, Recipe(epochs=epochs, lr=0.05, schedule="constant", keep="average"), validate=validate)
    assert len(rows) == epochs
    for name, tensor in named_tensors(module).items():
        last = torch.stack([row[name] for row in rows[-averaged:]])
        if tensor.is_floating_point():
            assert torch.allclose(tensor, last.double().mean(0).float(), atol=1e-5), name
        else:
            assert torch.equal(tensor, last[-1]), "counters have the last value"
    if averaged > 1:
        assert not torch.allclose(named_tensors(module)["0.weight"], rows[-1]["0.weight"], atol=1e-5)


def test_frozen_positions_have_the_same_bits_after_averaging():
    torch.manual_seed(0)
    module = chain()
    with torch.no_grad():
        module[0].weight[:, 0] = -0.0  # which becomes 0.0 when a mean is computed
    before = {name: tensor.clone() for name, tensor in named_tensors(module).items()}
    generator = torch.Generator().manual_seed(0)
    frozen = {name: torch.rand(tensor.shape, generator=generator) < 0.5 for name, tensor in before.items()}
    fit(module, Recipe(epochs=40, lr=0.05, keep="average"), freeze=frozen)
    for name, tensor in named_tensors(module).items():
        bits, bits_before = (values[frozen[name]].view(torch.int32) for values in (tensor, before[name]))
        assert torch.equal(bits, bits_before), name
        assert not torch.equal(tensor, before[name])


def test_committed_tasks_do_not_change_when_later_ones_are_averaged():
    learner = Learner(chain(), SPACE(variance=0.8), example_input=VECTOR)
    recipe = Recipe(epochs=4, keep="average", clip=1.0)
    outputs = {}
    for number, data in enumerate(tasks(VECTOR, 3)):
        learner.learn(Task(str(number), data), recipe)
        outputs[str(number)] = learner.logits(data[0], str(number))
    for (name, before), data in zip(outputs.items(), tasks(VECTOR, 3)):
        assert torch.equal(learner.logits(data[0], name), before)
    learner.verify()
