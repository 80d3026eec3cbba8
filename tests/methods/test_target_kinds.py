"""Every method learns classes, labels and values, one after another, and keeps its promises with each."""

from dataclasses import dataclass

import pytest
import torch
from models import FAMILIES
from sklearn.datasets import load_diabetes, load_digits
from torch import nn

import spacecl
from spacecl import SPACE, STL, ConfigError, FineTune, Learned, Learner, Method, Recipe, Task
from spacecl.methods import METHODS

QUICK = Recipe(epochs=2, retrain_epochs=1)
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")


def make_stream(example, examples=90):
    """A task of each kind, in which targets follow random directions of the inputs; values are in an odd unit."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(examples, *example.shape[1:], generator=generator)
    scores = x.flatten(1) @ torch.randn(x[0].numel(), 4, generator=generator)
    return [
        Task("labels", (x, (scores > 0).long())),
        Task("values", (x, 1e5 + 1e3 * scores[:, :2])),
        Task("classes", (x, scores.argmax(1))),
        Task("value", (x, 1e-4 * scores[:, 0])),
    ]


def teach(method, family="chain", count=4, **options):
    make, example, _ = FAMILIES[family]
    torch.manual_seed(0)
    learner = Learner(make(), method(**options), example_input=example)
    stream = make_stream(example)
    for task in stream[:count]:
        learner.learn(task, QUICK)
    return learner, stream


@every_method
@pytest.mark.parametrize("family", ["chain", "convnet"])
def test_a_method_learns_all_kinds_keeps_them_and_repeats_itself(method, family, tmp_path):
    learner, stream = teach(method, family)
    x = stream[0].train[0]
    metrics = {name: (record.target_kind, record.metric) for name, record in learner.records.items()}
    assert metrics == {
        "labels": ("labels", "mean average precision"),
        "values": ("values", "R²"),
        "classes": ("classes", "accuracy"),
        "value": ("values", "R²"),
    }
    assert [learner.records[name].accuracy is None for name in learner.tasks] == [True, True, False, True]
    assert [tuple(learner.predict(x, task).shape) for task in learner.tasks] == [(90, 4), (90, 2), (90,), (90,)]
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, FAMILIES[family][0]())
    for task in stream:
        assert torch.equal(loaded.logits(x, task.name), learner.logits(x, task.name))
        assert loaded.evaluate(task.train, task.name) == learner.evaluate(task.train, task.name)
    assert teach(method, family)[0].verify() == learner.verify(), "the same seed gave other bits"
    assert torch.equal(learner.subnet("values").eval()(x), learner.logits(x, "values")), "the network has the user's unit"


@every_method
def test_a_method_that_does_not_forget_keeps_the_bits_of_every_kind(method):
    learner, stream = teach(method, count=2)
    x = stream[0].train[0]
    before = [learner.logits(x, task) for task in ("labels", "values")]
    for task in stream[2:]:
        learner.learn(task, QUICK)
    same = [torch.equal(learner.logits(x, task), old) for task, old in zip(("labels", "values"), before)]
    assert all(same) is not method.forgets


@every_method
def test_values_are_learned_alike_in_every_unit(method):
    """Far from zero, tiny or huge: the same network up to the unit, so nothing needs to be tuned."""
    make, example, _ = FAMILIES["chain"]
    x, y = make_stream(example, 300)[3].train
    y = y / y.std()
    scores, predictions = [], []
    for scale, offset in ((1.0, 0.0), (1e6, -3e6), (1e-6, 2e-6)):
        torch.manual_seed(0)
        learner = Learner(make(), method(), example_input=example)
        scores.append(learner.learn(Task("y", (x, (y * scale + offset).double())), Recipe(epochs=12, lr=0.01)).score)
        predictions.append((learner.predict(x, "y").double() - offset) / scale)
    assert scores[0] > 0.4
    assert scores[1:] == pytest.approx([scores[0]] * 2, abs=0.02)
    assert all(float((other - predictions[0]).abs().mean()) < 0.02 for other in predictions[1:])


@every_method
def test_a_method_resumes_a_task_of_values_to_the_same_bits(method, tmp_path):
    undisturbed, stream = teach(method, count=2)
    learner, _ = teach(method, count=1)
    learner.save(tmp_path / "saved")
    for crash in (1, 2):
        learner = Learner.load(tmp_path / "saved", FAMILIES["chain"][0]())
        if method.needs_data:
            learner.remember(stream[0])
        seen = []

        def stop(row, seen=seen, crash=crash):
            seen.append(row)
            if len(seen) == crash:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            learner.learn(stream[1], QUICK, checkpoint=tmp_path / "kept", on_epoch=stop)
        assert learner.tasks == ("labels",)
    learner.learn(stream[1], QUICK, checkpoint=tmp_path / "kept")
    assert learner.verify() == undisturbed.verify()


def test_methods_that_protect_earlier_tasks_protect_their_values():
    """The distillation of LwF and the penalty of EWC hold values where plain fine-tuning loses them."""
    errors = {}
    for name, method in {"plain": FineTune(), "lwf": spacecl.LwF(strength=10.0), "ewc": spacecl.EWC(strength=1e4)}.items():
        make, example, _ = FAMILIES["chain"]
        torch.manual_seed(0)
        learner = Learner(make(), method, example_input=example)
        _, first, second, _ = make_stream(example, 300)
        learner.learn(first, Recipe(epochs=10, lr=0.01))
        before = learner.logits(first.train[0], "values")
        learner.learn(second, Recipe(epochs=10, lr=0.01))
        errors[name] = float((learner.logits(first.train[0], "values") - before).abs().mean())
    assert errors["lwf"] < 0.5 * errors["plain"]
    assert errors["ewc"] < 0.5 * errors["plain"]


@dataclass(frozen=True)
class OnlyClasses(Method):
    """A method from before there were other targets."""

    def learn(self, core, task):
        module = core.blueprint.build(core.initial_tensors(task.classes))
        history = task.trainer.fit(module, task.train, task.valid)
        return Learned(core.commit(core.blueprint.extract_tensors(module), core.channels.all_units()), history)


def test_a_method_that_does_not_declare_a_target_says_so_before_training():
    learner = Learner(FAMILIES["chain"][0](), OnlyClasses(), example_input=FAMILIES["chain"][1])
    labels, _, classes, _ = make_stream(FAMILIES["chain"][1])
    with pytest.raises(ConfigError, match="Task 'labels' predicts labels, but OnlyClasses learns tasks of classes"):
        learner.learn(labels, QUICK, on_epoch=pytest.fail)
    learner.learn(classes, QUICK)


def digit_labels():
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
    names = ["even", "prime", "closed loop", "greater than 4"]
    sets = [{0, 2, 4, 6, 8}, {2, 3, 5, 7}, {0, 6, 8, 9}, {5, 6, 7, 8, 9}]
    return x, torch.stack([torch.isin(y, torch.tensor(sorted(some))) for some in sets], 1), names


def test_space_learns_labels_of_real_digits_in_a_small_network():
    x, y, names = digit_labels()
    network = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 1))
    learner = Learner(network, SPACE(), example_input=x[:1])
    test = slice(1500, None)
    for number, labels in enumerate((slice(0, 2), slice(2, 4))):
        learner.learn(Task(f"part {number}", (x[:1500], y[:1500, labels]), classes=names[labels]), Recipe(epochs=15))
    before = learner.logits(x, "part 0")
    record = learner.learn(Task("all", (x[:1500], y[:1500]), classes=names), Recipe(epochs=15))
    assert learner.evaluate((x[test], y[test]), "all") > 0.9
    assert max(record.widths.values()) < 60, "much narrower than the full network"
    assert record.target["predicted"]["lost"] < 0.05, "the search judges labels by their own divergence"
    assert torch.equal(learner.logits(x, "part 0"), before)
    agreement = (learner.predict(x[test], "all") == y[test]).float().mean()
    assert agreement > 0.85


def test_space_learns_a_real_regression_as_well_as_a_full_network():
    x, y = (torch.tensor(values, dtype=torch.float32) for values in load_diabetes(return_X_y=True))
    x = 20 * x
    scores = {}
    for method in (SPACE(), STL()):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        learner = Learner(network, method, example_input=x[:1])
        learner.learn(Task("diabetes", (x[:340], y[:340]), valid=(x[340:380], y[340:380])), Recipe(epochs=10))
        scores[type(method).__name__] = learner.evaluate((x[380:], y[380:]), "diabetes")
        prediction = learner.predict(x[380:], "diabetes")
        assert 25 < float(prediction.mean()) < 346, "in the unit of the data"
    assert scores["STL"] > 0.3
    assert scores["SPACE"] > scores["STL"] - 0.1
