"""What tasks predict follows from their targets; what is left open, or wrong, is said before training."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from spacecl import DataError, Images, Task
from spacecl.data.benchmarks.streams import _limit_task
from spacecl.data.prepare import check_all_data, check_data, prepare_data
from spacecl.data.targets import Scaling, Targets
from spacecl.data.task_data import Data

EXAMPLE = torch.zeros(1, 4)
X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, :3] > 0).long()


def prepare(task):
    return prepare_data(task, EXAMPLE, torch.Generator().manual_seed(0))[2]


@pytest.mark.parametrize(
    ("y", "targets"),
    [
        (torch.arange(60) % 3, Targets("classes", 3)),
        ((torch.arange(60) % 3).numpy().astype(np.uint8), Targets("classes", 3)),
        (LABELS, Targets("labels", 3)),
        (LABELS.bool(), Targets("labels", 3)),
        (LABELS.float(), Targets("labels", 3)),
        (LABELS[:, :1], Targets("labels", 1)),
        (X[:, 0], Targets("values", 1, flat=True)),
        (X[:, :1].double(), Targets("values", 1)),
        (X[:, :2], Targets("values", 2)),
        (torch.arange(60.0) + 25, Targets("values", 1, flat=True)),
    ],
    ids=str,
)
def test_the_kind_follows_from_type_and_shape(y, targets):
    assert prepare(Task("t", (X, y))) == targets


@pytest.mark.parametrize(
    ("target", "y", "targets"),
    [
        ("values", torch.arange(60) % 3, Targets("values", 1, flat=True)),
        ("values", LABELS, Targets("values", 3)),
        ("labels", torch.eye(3).repeat(20, 1), Targets("labels", 3)),
        ("values", (torch.arange(60) % 3).float(), Targets("values", 1, flat=True)),
        ("values", X[:, :3].softmax(1), Targets("values", 3)),
    ],
)
def test_what_is_left_open_can_be_said(target, y, targets):
    assert prepare(Task("t", (X, y), target=target)) == targets


class Rows(Dataset):
    def __init__(self, y):
        self.y = y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return X[index], self.y[index]


def test_datasets_loaders_and_images_have_kinds_too():
    assert prepare(Task("t", Rows(LABELS))) == Targets("labels", 3)
    assert prepare(Task("t", Rows(X[:, 0].tolist()))) == Targets("values", 1, flat=True)
    loader = DataLoader(Rows(X[:, :2]), batch_size=8)
    assert prepare(Task("t", loader, valid=(X[:8], X[:8, :2]))) == Targets("values", 2)
    images = Images(np.zeros((60, 1, 2, 2), np.uint8), LABELS.numpy())
    _, valid, targets = prepare_data(Task("t", images), images.finish(images.batch([0])[0]), torch.Generator())
    assert targets == Targets("labels", 3)
    assert valid.targets.shape == (6, 3)
    task, counts = check_all_data(Task("t", Rows(LABELS), test=(X, LABELS)), EXAMPLE)
    assert (counts["target_kind"], counts["classes"]) == ("labels", 3)
    assert prepare(task) == Targets("labels", 3)


REFUSED = {
    "one-hot": (Task("t", (X, torch.eye(3).repeat(20, 1).long())), 'say so with target="labels"'),
    "probabilities": (Task("t", (X, X[:, :3].softmax(1))), 'mixup makes such targets.*target="values"'),
    "floats that count": (Task("t", (X, (torch.arange(60) % 3).float())), 'say so with target="values"'),
    "whole numbers in rows": (Task("t", (X, 2 * LABELS)), 'say so with target="values"'),
    "a label of 2": (Task("t", (X, LABELS + LABELS), target="labels"), r"labels must be 0 or 1; row \d+ holds another"),
    "labels without rows": (Task("t", (X, LABELS[:, 0]), target="labels"), r"have the shape \(examples, labels\)"),
    "a value that is not finite": (Task("t", (X, X[:, 0].clone().index_fill(0, torch.tensor(7), torch.nan))), "row 7 is NaN"),
    "values in three dimensions": (Task("t", (X, X[:, None, :])), r"values have the shape \(examples,\) or"),
    "classes that are fractions": (Task("t", (X, X[:, 0]), target="classes"), "labels must be whole numbers"),
    "names for too few values": (Task("t", (X, X[:, :2]), classes=["one"]), "but there are 2 values"),
    "another width in validation": (
        Task("t", (X, LABELS), valid=(X, LABELS[:, :2])),
        "2 labels for each example; the task has 3",
    ),
    "fewer targets": (Task("t", (X, X[:50, 0])), r"60 inputs, but labels of shape \(50,\)"),
}


@pytest.mark.parametrize(("task", "message"), REFUSED.values(), ids=REFUSED)
def test_targets_that_cannot_be_used_are_refused(task, message):
    with pytest.raises(DataError, match=message):
        prepare(task)


def test_a_task_s_own_words_are_checked():
    with pytest.raises(DataError, match="target='numbers' must be one of classes, labels, values"):
        Task("t", (X, LABELS), target="numbers")
    with pytest.raises(DataError, match="loss='mse' must be a function"):
        Task("t", (X, LABELS), loss="mse")


def test_batches_of_another_shape_are_refused():
    class Uneven(Rows):
        def __getitem__(self, index):
            return X[index], X[index, : 2 if index < 30 else 3]

    data = Data(DataLoader(Uneven(X), batch_size=30), "data")
    assert check_data(data, EXAMPLE) == Targets("values", 2), "the first batch says what there is; others are checked when read"
    with pytest.raises(DataError, match=r"the targets of row 30 have the shape \(3,\); those before have \(2,\)"):
        list(data.batches(30))


def test_scaling_removes_and_restores_the_unit():
    y = 1e6 + 250 * X[:, :2].double()
    scaling = Scaling.measure(y)
    assert torch.allclose(scaling.remove(y).mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(scaling.remove(y).std(0, correction=0), torch.ones(2, dtype=torch.float64))
    assert torch.allclose(scaling.restore(scaling.remove(y)), y)
    assert Scaling.measure(torch.full((5, 1), 3.0)).scale.tolist() == [1.0], "a constant has no scale"
    assert Scaling.measure(y, centred=False).mean.tolist() == [0.0, 0.0]


def test_a_limit_is_of_each_class_or_in_all():
    kinds = {"classes": torch.arange(60) % 3, "labels": LABELS, "values": X[:, 0], "counts": torch.arange(60) % 3}
    for name, y in kinds.items():
        task = Task(name, (X, y), target="values" if name == "counts" else None)
        x, limited = _limit_task(task, 5, seed=0).train
        assert len(x) == len(limited) == (15 if name == "classes" else 5)
