"""One conformance suite for all methods, found by themselves."""

import pytest
import torch
from models import FAMILIES, tasks

from spacecl import Learner, Recipe, Task
from spacecl.methods import METHODS

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*", "ignore:.*finds no free channel.*")

QUICK = Recipe(epochs=1, retrain_epochs=1)
BACKBONES = ["chain", "convnet", "resnet"]


def taught(method, backbone):
    make, example, _ = FAMILIES[backbone]
    torch.manual_seed(0)
    learner = Learner(make(), method(), example_input=example)
    for number, data in enumerate(tasks(example, 3)):
        learner.learn(Task(str(number), data), QUICK)
    return learner, tasks(example, 1)[0][0]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_method_learns_predicts_saves_and_repeats_itself(method, backbone, tmp_path):
    learner, x = taught(method, backbone)
    answers = [learner.predict(x, task) for task in learner.tasks]
    assert all(answer.shape == (90,) and int(answer.max()) < 3 for answer in answers)
    assert learner.verify() == {name: record.digest for name, record in learner.records.items()}, "predicting changed something"
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, FAMILIES[backbone][0]())
    assert all(torch.equal(loaded.logits(x, task), learner.logits(x, task)) for task in learner.tasks)
    again, _ = taught(method, backbone)
    assert again.verify() == learner.verify(), "the same seed gave other bits"


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_method_says_truly_whether_it_forgets(method):
    make, example, _ = FAMILIES["convnet"]
    learner = Learner(make(), method(), example_input=example)
    first, second = tasks(example, 2)
    learner.learn(Task("0", first), QUICK)
    before = learner.logits(first[0], "0")
    learner.learn(Task("1", second), QUICK)
    assert torch.equal(learner.logits(first[0], "0"), before) is not method.forgets
    if method.forgets:
        assert learner.size == pytest.approx(1, abs=0.02)
