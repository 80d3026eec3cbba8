"""A task's data: checked once, and the same bits whether or not it was checked before."""

import pytest
import torch
from models import VECTOR, chain, tasks
from torch.utils.data import Dataset

from spacecl import DataError, Learner, Recipe, Task
from spacecl.data.prepare import check_all_data, prepare_data

pytestmark = pytest.mark.filterwarnings("ignore:.*too few samples.*")


class Noisy(Dataset):
    """Examples with noise of torch's generator; it counts how often it is read."""

    def __init__(self, x, y):
        self.x, self.y, self.reads = x, y, 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.reads += 1
        return self.x[index] + 0.1 * torch.randn(6), int(self.y[index])


def make_task(valid=True):
    x, y = tasks(VECTOR, 1, 450)[0]
    return Task("one", Noisy(x[:300], y[:300]), Noisy(x[300:375], y[300:375]) if valid else None, test=Noisy(x[375:], y[375:]))


@pytest.mark.parametrize("valid", [True, False])
def test_data_that_was_checked_is_not_read_again_to_be_checked(valid):
    task = make_task(valid)
    checked, counts = check_all_data(task, VECTOR)
    assert counts == {"classes": 3, "train": 300 if valid else 270, "valid": 75 if valid else 30, "test": 75}
    assert task.train.reads == 300, "each example is read once, to find the number of classes"
    assert task.test.reads == 64, "then it is known"
    train, _, targets = prepare_data(checked, VECTOR, torch.Generator().manual_seed(0))
    assert (len(train), targets.outputs) == (counts["train"], 3)
    assert task.train.reads == 300 + 64


def test_a_learner_ends_with_the_same_bits_on_checked_data():
    digests = []
    for prepare in (lambda task: task, lambda task: check_all_data(task, VECTOR)[0]):
        torch.manual_seed(0)
        learner = Learner(chain(), example_input=VECTOR)
        learner.learn(prepare(make_task(valid=False)), Recipe(epochs=2))
        digests.append(learner.verify())
    assert digests[0] == digests[1]


def test_checked_data_is_checked_again_for_a_model_with_other_inputs():
    checked, _ = check_all_data(make_task(), VECTOR)
    with pytest.raises(DataError, match=r"inputs have shape \(6,\), but the model's example input has \(5,\)"):
        prepare_data(checked, torch.zeros(1, 5), torch.Generator())
