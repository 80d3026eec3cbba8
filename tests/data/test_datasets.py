"""Data as users have it: dictionaries, anything that can be indexed, pictures, their own loaders, and processes that read."""

import random
import re
import sys

import numpy as np
import pytest
import torch
from helpers import QUICK, ROOT
from models import VECTOR, chain, tasks
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from spacecl import ConfigError, DataError, Images, Learner, Recipe, Task
from spacecl.data.prepare import check_data
from spacecl.data.task_data import Data

pytestmark = pytest.mark.filterwarnings("ignore:.*(too few samples|validation examples).*")
X, Y = tasks(VECTOR, 1, 120)[0]


class Rows:
    """Not a torch Dataset: a length and examples by number, made by a function; it remembers which were read."""

    def __init__(self, make, count=120):
        self.make, self.count, self.read = make, count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        return self.make(index)


def learn(train, recipe=QUICK, **options):
    torch.manual_seed(0)
    learner = Learner(chain(), example_input=VECTOR)
    return learner, learner.learn(Task("one", train, **options), recipe)


@pytest.fixture(scope="module")
def plain():
    """The digest of what is learned from tensors."""
    return learn((X, Y), classes=3)[1].digest


FORMS = {
    "pairs": (lambda i: (X[i], Y[i]), {}),
    "arrays and numbers": (lambda i: (X[i].numpy(), int(Y[i])), {}),
    "two entries": (lambda i: {"features": X[i], "label": int(Y[i])}, {}),
    "lists and numbers": (lambda i: {"labels": int(Y[i]), "features": X[i].tolist()}, {}),
    "named entries": (
        lambda i: {"id": f"row {i}", "picture": None, "features": X[i].tolist(), "kind": int(Y[i])},
        {"keys": ("features", "kind")},
    ),
    "a function": (lambda i: i, {"collate": lambda numbers: {"x": X[numbers], "target": Y[numbers].numpy()}}),
}


@pytest.mark.parametrize(("make", "options"), FORMS.values(), ids=FORMS)
def test_whatever_the_form_the_same_network_is_learned(plain, make, options):
    learner, record = learn(Rows(make), classes=3, **options)
    assert record.digest == plain
    accuracy = learner.evaluate((X, Y), "one")
    assert learner.evaluate(Rows(make), "one", **options) == accuracy


def test_a_dictionary_of_arrays_is_data_too(plain):
    assert learn({"features": X.numpy(), "label": Y.numpy()}, classes=3)[1].digest == plain
    assert learn({"a": X, "b": X, "c": Y}, classes=3, keys=("a", "c"))[1].digest == plain
    assert learn([(X[i], int(Y[i])) for i in range(120)], classes=3)[1].digest == plain, "a list of pairs is a dataset"


BAD = {
    "no key": (lambda i: {"a": X[i], "b": 0}, {}, r"the entries are a, b\. Say which are the inputs.*keys="),
    "three entries": (lambda i: {"a": X[i], "b": X[i], "label": 0}, {}, "the entries are a, b, label"),
    "a wrong key": (lambda i: {"a": X[i], "y": 0}, {"keys": ("a", "z")}, "there is no entry 'z'; the entries are a, y"),
    "words": (lambda i: (X[i], "cat"), {}, r"the labels are text\. Number the classes from 0"),
    "words to read": (lambda i: {"text": "a cat", "label": 0}, {}, r"the inputs are text.*a tokenizer in a collate function"),
    "a class too many": (lambda i: (X[i], 3 if i == 77 else 0), {"classes": 3}, "the label 3 is outside its 3 classes"),
    "a NaN": (lambda i: (X[i] / (0 if i == 77 else 1), 0), {"classes": 3}, "the input in row 77 holds NaN or infinite"),
    "a row of another size": (lambda i: (X[i][: 5 if i == 77 else 6], 0), {"classes": 3}, "one batch: .*collate="),
}


@pytest.mark.parametrize(("make", "options", "message"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("workers", [0, 2])
def test_bad_examples_get_a_sentence_whoever_reads_them_and_nothing_is_committed(make, options, message, workers):
    learner = Learner(chain(), example_input=VECTOR)
    with pytest.raises(DataError, match=f"Task 't', (train|valid): .*{message}") as caught:
        learner.learn(Task("t", Rows(make), **options), Recipe(epochs=2, num_workers=workers))
    assert "Traceback" not in str(caught.value)
    assert learner.tasks == ()


class DataModule:
    """As one of Lightning: it has loaders, and is none."""

    def train_dataloader(self):
        return DataLoader(Rows(lambda i: (X[i], Y[i])))


NO_SOURCE = {
    "datasets by name": (
        {"train": Subset([], []), "test": Subset([], [])},
        r"several datasets: train, test\. Give each by itself",
    ),
    "a list of loaders": ([DataLoader([0])], "a list of datasets or loaders. Give one"),
    "two datasets": ((Subset([], []), Subset([], [])), "a tuple of datasets or loaders. Give one"),
    "a data module": (DataModule(), r"got DataModule\. Give its train_dataloader\(\)"),
    "text": ((["a cat", "a dog"], [0, 1]), r"train: the inputs are text"),
    "text labels": ((X[:2], np.array(["cat", "dog"]).tolist()), r"train: the labels are text"),
}


@pytest.mark.parametrize(("source", "message"), NO_SOURCE.values(), ids=NO_SOURCE)
def test_what_only_holds_data_is_refused_with_what_to_give(source, message):
    with pytest.raises(DataError, match=message):
        learn(source)


def test_a_picture_without_a_transform_gets_a_sentence():
    image = pytest.importorskip("PIL.Image").new("RGB", (8, 8))
    learner = Learner(nn.Sequential(nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(216, 2)), example_input=torch.zeros(1, 3, 8, 8))
    for item in ((image, 0), {"image": image, "label": 0}):
        for source in (Rows(lambda i, item=item: item), DataLoader(Rows(lambda i, item=item: item), 4)):
            with pytest.raises(DataError, match=r"Task 't', train: the inputs are pictures .*ToTensor.*spacecl\.Images"):
                learner.learn(Task("t", source, (torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64))), QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": "label"}, "keys='label' must name the inputs and the target"),
        ({"keys": ((), "label")}, "must name the inputs and the target"),
        ({"keys": ("a", 3)}, "must name the inputs and the target"),
        ({"collate": 3}, "collate=3 must be a function"),
        ({"valid_transform": 3}, "valid_transform is a function"),
        ({"valid_transform": len, "valid": (X, Y)}, "Give it, or validation data with valid="),
    ],
)
def test_options_of_a_task_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Task("t", (X, Y), **options)


class Augmented(Dataset):
    """Like torchvision's: `targets`, and a random `transform`, which draws from every generator."""

    def __init__(self, transform=None):
        self.targets, self.transform, self.reads = Y.tolist(), transform, 0

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        self.reads += 1
        return X[index] if self.transform is None else self.transform(X[index]), self.targets[index]


def add_noise(x):
    return x + 0.1 * torch.randn(6) + 0.1 * random.random() + 0.1 * np.random.rand()


@pytest.mark.parametrize("size", [16, 120])
def test_random_transforms_give_the_same_bits_with_any_number_of_processes(size):
    recipes = [Recipe(epochs=3, retrain_epochs=2, batch_size=size, num_workers=workers) for workers in (0, 1, 2)]
    records = [learn(Augmented(add_noise), recipe)[1] for recipe in recipes]
    assert len({record.digest for record in records}) == 1
    assert records[0].digest != learn(Augmented(), recipes[0])[1].digest, "there are random transforms"
    epochs = [torch.cat([x for x, _ in data.batches(50)]) for data in [Data(Augmented(add_noise), "data")] for _ in range(2)]
    assert not torch.equal(*epochs), "each epoch draws its own"


def test_a_run_can_be_resumed_with_another_number_of_processes(tmp_path):
    class StopError(Exception):
        pass

    def stop(row):
        if row["epoch"] == 2:
            raise StopError

    task, recipe = Task("one", Augmented(add_noise)), Recipe(epochs=3, retrain_epochs=1)
    torch.manual_seed(0)
    learner = Learner(chain(), example_input=VECTOR)
    with pytest.raises(StopError):
        learner.learn(task, recipe, checkpoint=tmp_path, on_epoch=stop)
    faster = Recipe(epochs=3, retrain_epochs=1, num_workers=2)
    assert learner.learn(task, faster, checkpoint=tmp_path).digest == learn(Augmented(add_noise), recipe)[1].digest


def test_validation_data_that_are_split_off_use_their_own_transform():
    used = []

    def keep(x):
        used.append("valid")
        return x

    dataset = Augmented(lambda x: used.append("train") or add_noise(x))
    learner, _ = learn(Subset(dataset, range(100)), valid_transform=keep)
    assert {"train", "valid"} == set(used)
    assert dataset.transform is not keep, "the user's dataset is not changed"
    used.clear()
    learner.evaluate(dataset, "one")
    assert set(used) == {"train"}
    for source in (Rows(lambda i: (X[i], 0)), (X, Y)):
        with pytest.raises(DataError, match="valid_transform"):
            learn(source, valid_transform=keep)


def test_a_dataset_with_labels_or_known_classes_is_not_read_to_be_checked(monkeypatch):
    monkeypatch.setattr("spacecl.learning.trainer.Trainer.fit", lambda *a, **k: pytest.fail("training began"))
    for source, options, reads in (
        (Augmented(), {}, 64),
        (Augmented(), {"classes": 3}, 64),
        (Rows(lambda i: (X[i], Y[i])), {"classes": 3}, 64),
        (Rows(lambda i: (X[i], Y[i])), {}, 120),
    ):
        with pytest.raises(pytest.fail.Exception, match="training began"):
            learn(source, **options)
        assert (source.reads if isinstance(source, Augmented) else len(source.read)) == reads


def test_labels_and_loaders_that_leave_nothing_to_learn_are_refused_before_training(monkeypatch):
    monkeypatch.setattr("spacecl.learning.trainer.Trainer.fit", lambda *a, **k: pytest.fail("training began"))
    unlabelled = Augmented()
    unlabelled.targets[77] = -1
    with pytest.raises(DataError, match="Task 'one', train: the label -1 is negative"):
        learn(unlabelled)
    for options in ({}, {"classes": 3}):
        with pytest.raises(DataError, match=r"Task 'one', train: 0 examples; at least [12] are needed"):
            learn(DataLoader(Augmented(), 200, drop_last=True), valid=(X, Y), **options)


def test_labels_that_an_attribute_tells_wrongly_are_not_believed():
    dataset = Augmented()
    dataset.targets = [0] * 120
    dataset.__class__ = type("Relabelled", (Augmented,), {"__getitem__": lambda self, i: (X[i], int(Y[i]))})
    assert learn(dataset)[1].classes == 3


def test_checking_a_loader_does_not_change_what_it_draws_later():
    for source, classes in ((Augmented(), None), (Rows(lambda i: (X[i], Y[i])), None), (Augmented(), 3)):
        generator = torch.Generator().manual_seed(4)
        data = Data(DataLoader(source, 20, shuffle=True, generator=generator), "data")
        assert check_data(data, VECTOR, classes=classes).outputs == 3
        assert torch.equal(generator.get_state(), torch.Generator().manual_seed(4).get_state())


class TestQueries:
    """`logits`, `predict` and `evaluate` take what users have."""

    def test_arrays_and_loaders_give_what_tensors_give(self):
        learner, _ = learn((X, Y))
        expected = learner.logits(X, "one")
        assert torch.equal(learner.logits(X.numpy(), "one"), expected)
        assert torch.equal(learner.logits(X.numpy().astype(np.float64), "one"), expected)
        assert torch.equal(learner.predict(X.tolist(), "one"), expected.argmax(1))
        rows = [{"features": X[i], "label": Y[i]} for i in range(120)]
        for loader in (DataLoader(X, 50), DataLoader(list(zip(X, Y)), 50), DataLoader(rows, 50)):
            torch.testing.assert_close(learner.logits(loader, "one"), expected)
            assert torch.equal(learner.predict(loader, "one"), expected.argmax(1))
            assert learner.predict(loader, "infer").tasks == learner.predict(X, "infer").tasks
        accuracy = learner.evaluate((X, Y), "one")
        assert learner.evaluate((X.numpy(), Y.numpy()), "one") == accuracy
        assert learner.evaluate(DataLoader(rows, 50), "one") == accuracy
        assert learner.evaluate(Augmented(), "one", num_workers=2) == accuracy
        with pytest.raises(ConfigError, match="num_workers=-1 must be a number of processes"):
            learner.evaluate((X, Y), "one", num_workers=-1)
        with pytest.raises(DataError, match="Task 'one': inputs have shape"):
            learner.predict(np.zeros((3, 5), np.float32), "one")
        with pytest.raises(DataError, match="Task 'one': the DataLoader has no batches"):
            learner.predict(DataLoader([]), "one")

    def test_pictures_become_inputs_as_the_tasks_own_did(self):
        image = pytest.importorskip("PIL.Image")
        pixels = np.random.default_rng(0).integers(0, 256, (60, 3, 8, 8), np.uint8)
        images = Images(pixels, np.arange(60) % 2)
        model = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 36, 2))
        learner = Learner(model, example_input=torch.zeros(1, 3, 8, 8))
        learner.learn(Task("pictures", images), QUICK)
        expected = learner.logits(images.finish(torch.from_numpy(pixels)), "pictures")
        pictures = [image.fromarray(rows.transpose(1, 2, 0)) for rows in pixels]
        assert torch.equal(learner.logits(pictures, "pictures"), expected)
        assert torch.equal(learner.logits(pixels, "pictures"), expected)
        assert torch.equal(learner.predict(pictures[0], "pictures"), expected[:1].argmax(1)), "a single one is one row"
        assert learner.evaluate((pictures, images.labels), "pictures") == learner.evaluate(images, "pictures")
        assert len(learner.predict(pictures, "infer").labels) == 60
        other, _ = learn((X, Y))
        with pytest.raises(DataError, match=r"Task 'one': these are pictures, but the task was not taught with"):
            other.predict(pictures, "one")
        with pytest.raises(DataError, match=r"Task 'one', data: these are pictures"):
            other.evaluate((pictures, images.labels), "one")
        with pytest.raises(DataError, match=r"Task 't', train: the inputs are pictures"):
            other.learn(Task("t", (pictures, images.labels)), QUICK)
        x = torch.randn(60, 3, 8, 8)
        learner.learn(Task("tensors", (x, torch.arange(60) % 2)), QUICK)
        with pytest.raises(DataError, match="the tasks make inputs of pictures in different ways"):
            learner.predict(pictures, "infer")


@pytest.mark.filterwarnings("ignore:.*the network is right on.*")
def test_the_examples_of_the_docs_run_as_they_are_written(monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), re.DOTALL)
    blocks = [block for block in blocks if not block.startswith("# needs")]  # tests/test_docs.py runs those
    assert len(blocks) == 5
    namespace = {"__name__": "docs"}
    monkeypatch.setitem(sys.modules, "docs", type(sys)("docs"))
    for block in blocks:
        exec(compile(block, "data.md", "exec"), namespace)
    assert set(namespace["learner"].tasks) == {"digits", "odd or even"}
