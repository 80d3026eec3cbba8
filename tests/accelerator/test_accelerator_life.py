"""Learning, queries, files and resuming on an accelerator: nothing may meet a tensor of another device."""

import copy
import functools
import runpy

import pytest
import torch
from helpers import ROOT
from models import FAMILIES
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerator.sham import install
from spacecl import SPACE, Images, Learner, Recipe, Task, compress
from spacecl.checks.models import FAMILIES as BASIC
from spacecl.checks.models import make_targets, make_tasks
from spacecl.methods import METHODS
from spacecl.runs.processes import count_devices

pytestmark = pytest.mark.filterwarnings("ignore::spacecl.errors.SpaceWarning")
RECIPE = Recipe(epochs=2, retrain_epochs=1)


def begin(fabric, family, method=None, **options):
    torch.manual_seed(0)
    return Learner(family.make(), method or SPACE(), example_input=family.example, fabric=fabric, progress=False, **options)


def teach(learner, stream, recipe=RECIPE):
    for number, data in enumerate(stream):
        learner.learn(Task(str(number), data), recipe)
    return learner


def query(learner, x):
    """Ask a learner of two tasks everything; returns the outputs of its first task."""
    logits = learner.logits(x, "0")
    assert logits.device.type == "cpu"
    assert learner.predict(x, ["0", "1"] * (len(x) // 2)).shape == (len(x),)
    assert len(learner.predict(x, task="infer").tasks) == len(x)
    assert learner.identify(x, together=True).tasks
    assert learner.accepts(x, "0").shape == (len(x),)
    assert learner.task_scores(x).shape == (len(x), 2)
    learner.verify()
    return logits


def test_the_accelerator_refuses_to_mix_devices_and_has_random_numbers_of_its_own():
    install()
    x = torch.randn(3, device="sham")
    for mix in (
        lambda: x + torch.ones(3),
        lambda: nn.functional.linear(x, torch.ones(2, 3)),
        lambda: torch.stack([x, x.cpu()]),
    ):
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
            mix()
    before = torch.get_rng_state()
    torch.rand(3, device="sham")
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(torch.rand(3, device="sham").cpu(), torch.rand(3, device="sham").cpu())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_of_the_accelerator_compute_what_those_of_the_cpu_do(kind, bias):
    """Their steps are kernels of the sham's own, with gradients of their own."""
    install()
    torch.manual_seed(0)
    here, x = kind(5, 4, 2, bias=bias, batch_first=True, bidirectional=True), torch.randn(3, 6, 5)
    there, found = copy.deepcopy(here).to("sham"), []
    for network, inputs in ((here, x), (there, x.to("sham"))):
        outputs, state = network(inputs)
        (outputs.square().sum() + (state[1] if kind is nn.LSTM else state).sum()).backward()
        found.append([outputs.detach().cpu(), *(parameter.grad.cpu() for parameter in network.parameters())])
    for expected, value in zip(*found):
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("family", BASIC)
def test_every_method_learns_answers_and_is_saved(fabric, tmp_path, name, family):
    family = BASIC[family]
    stream = make_tasks(family.example, 2)
    learner = teach(begin(fabric, family, METHODS[name]()), stream)
    x = stream[0][0][:6]
    logits = query(learner, x)
    learner.evaluate(stream[0], "0")
    learner.save(tmp_path)
    for device in (fabric, None):
        loaded = Learner.load(tmp_path, family.make(), fabric=device)
        torch.testing.assert_close(loaded.logits(x, "0"), logits)
    learner.export("0", tmp_path / "first.onnx", int8=x)
    learner.export("1", tmp_path / "second.pt2")
    network = learner.subnet("0")
    torch.testing.assert_close(network(x).detach(), logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_models_learns(fabric, family):
    make, example, shared = FAMILIES[family]
    stream = make_tasks(example, 2)
    torch.manual_seed(0)
    learner = Learner(make(), SPACE(), example_input=example, shared=shared, fabric=fabric, progress=False)
    query(teach(learner, stream, Recipe(epochs=1, retrain_epochs=1)), stream[0][0][:4])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["labels", "values"])
def test_labels_and_values_are_learned(fabric, name, kind):
    stream = make_targets(BASIC["chain"].example, kind)
    recipe = Recipe(epochs=2, retrain_epochs=1, class_weights="balanced" if kind == "labels" else None)
    learner = teach(begin(fabric, BASIC["chain"], METHODS[name]()), stream, recipe)
    learner.evaluate(stream[1], "1")
    assert learner.predict(stream[0][0][:4], "0").shape == (4, 2)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("keep", ["best", "average", "last"])
def test_every_recipe_trains(fabric, optimizer, keep):
    schedule = "plateau" if optimizer == "sgd" else "one-cycle"
    more = {"clip": 1.0, "augment": "flip-shift", "label_smoothing": 0.1, "weight_decay": 0.01, "schedule": schedule}
    recipe = Recipe(epochs=4, retrain_epochs=1, optimizer=optimizer, keep=keep, **more)
    teach(begin(fabric, BASIC["convnet"]), make_tasks(BASIC["convnet"].example, 2), recipe).verify()


def test_a_task_is_resumed_after_every_epoch_to_the_same_bits_with_dropout(fabric, tmp_path):
    """Dropout draws from the accelerator's own random numbers, so their state must come back, too."""
    family, recipe = BASIC["convnet"], Recipe(epochs=3, retrain_epochs=2, augment="flip")
    stream = make_tasks(family.example, 2)
    undisturbed = teach(begin(fabric, family), stream, recipe).verify()
    for crash in range(1, 6):
        learner, finished = teach(begin(fabric, family), stream[:1], recipe), []

        def stop(epoch, crash=crash, finished=finished):
            finished.append(epoch)
            if len(finished) == crash:
                raise InterruptedError

        learn = functools.partial(learner.learn, Task("1", stream[1]), recipe, checkpoint=tmp_path / str(crash))
        with pytest.raises(InterruptedError):
            learn(on_epoch=stop)
        install().manual_seed_all(crash)  # whatever the process has drawn since
        learn()
        assert learner.verify() == undisturbed


def test_learning_leaves_the_users_random_numbers_as_they_were(fabric):
    before = install().get_rng_state()
    teach(begin(fabric, BASIC["convnet"]), make_tasks(BASIC["convnet"].example, 1))
    assert torch.equal(install().get_rng_state(), before)


def test_a_pretrained_model_bytes_growth_and_a_loader(fabric):
    model = BASIC["resnet"].make()
    model(torch.randn(30, 3, 8, 8))  # its norms have seen data
    learner = Learner(model, SPACE(size=0.5, budget=3), example_input=BASIC["resnet"].example, fabric=fabric, progress=False)
    teach(learner, make_tasks(BASIC["resnet"].example, 3))
    family = BASIC["convnet"]
    learner = begin(fabric, family, SPACE(variance=0.999, on_full="grow"))
    for number, (x, y) in enumerate(make_tasks(family.example, 3)):
        loader = DataLoader(TensorDataset(x, y), batch_size=16)
        learner.learn(Task(f"loader {number}", loader, valid=(x, y), classes=3), Recipe(epochs=1, retrain_epochs=1))
    pixels = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8)
    learner.learn(Task("bytes", Images(pixels, torch.arange(60) % 3)), Recipe(epochs=1, retrain_epochs=1))
    learner.verify()


def test_few_examples_are_distilled_and_the_paper_and_a_method_of_ones_own_learn(fabric):
    family = BASIC["convnet"]
    stream = make_tasks(family.example, 2)
    own = runpy.run_path(str(ROOT / "examples" / "own_method.py"))["L2Anchor"]()
    for method in (SPACE(), SPACE.paper(), SPACE(size=0.5, budget=2), SPACE(variance=0.9), own):
        query(teach(begin(fabric, family, method), stream), stream[0][0][:4])


def test_a_single_model_is_compressed(fabric):
    family = BASIC["convnet"]
    data = make_tasks(family.example, 1)[0]
    compress(family.make(), data, tolerance=0.1, example_input=family.example, recipe=Recipe(epochs=1), fabric=fabric)


def test_devices_are_counted():
    install()
    assert (count_devices("auto", "auto"), count_devices("auto", "cpu"), count_devices("3", "cpu")) == (1, 1, 3)
