"""Data of other libraries as their users have them: Hugging Face datasets, torchvision, timm. Skipped where one is missing."""

import importlib.util

import numpy as np
import pytest
import torch
from models import VECTOR, chain, tasks
from torch import nn
from torch.utils.data import Subset
from zoo.stand_ins import import_torchvision

from spacecl import DataError, Learner, Recipe, Task

pytestmark = pytest.mark.filterwarnings("ignore:.*(too few samples|validation examples).*")
X, Y = tasks(VECTOR, 1, 60)[0]
SIZE = 8


def need(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")


def learn(source, example=VECTOR, **options):
    torch.manual_seed(0)
    pictures = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * (SIZE - 2) ** 2, 2))
    learner = Learner(chain() if example is VECTOR else pictures, example_input=example)
    return learner, learner.learn(Task("one", source, **options), Recipe(epochs=1, retrain_epochs=1))


@pytest.fixture(scope="module")
def table():
    need("datasets")
    from datasets import ClassLabel, Dataset

    rows = Dataset.from_dict({"features": X.tolist(), "label": Y.tolist()})
    return rows.cast_column("label", ClassLabel(names=["a", "b", "c"]))


@pytest.fixture(scope="module")
def pictures():
    need("datasets", "PIL")
    from datasets import Dataset
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (40, SIZE, SIZE, 3), dtype=np.uint8)
    return Dataset.from_dict({"image": [Image.fromarray(picture) for picture in pixels], "label": [0, 1] * 20})


def test_a_hugging_face_table_in_any_format_and_its_columns_give_what_tensors_give(table):
    digest = learn((X, Y), classes=3)[1].digest
    columns = table.with_format("torch")
    for source in (table, columns, table.with_format("numpy"), (columns["features"], columns["label"]), columns[:]):
        names = table.features["label"].names
        learner, record = learn(source, classes=names)
        assert (record.digest, record.class_names) == (digest, ("a", "b", "c"))
        assert learner.evaluate(source, "one") == learner.evaluate((X, Y), "one")
    numbered = table.add_column("id", list(range(60)))
    assert learn(numbered, classes=3, keys=("features", "label"))[1].digest == digest


def test_hugging_face_transforms_belong_to_the_part_that_is_trained_on(pictures):
    seen = []

    def convert(rows, name):
        seen.append(name)
        return {**rows, "image": [torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 for image in rows["image"]]}

    source = pictures.with_transform(lambda rows: convert(rows, "train"))
    learn(source, torch.zeros(1, 3, SIZE, SIZE), classes=2, valid_transform=lambda rows: convert(rows, "valid"))
    assert set(seen) == {"train", "valid"}
    with pytest.raises(DataError, match="the inputs are pictures"):
        learn(pictures, torch.zeros(1, 3, SIZE, SIZE))


def test_a_dictionary_of_hugging_face_datasets_is_refused_with_what_to_give(table):
    with pytest.raises(DataError, match=r"there are several datasets: train, test\. Give each by itself"):
        learn(table.train_test_split(0.2, seed=0))


@pytest.fixture
def folder(tmp_path):
    """Pictures of two classes, in folders."""
    image = pytest.importorskip("PIL.Image")
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (10, 12, 3), dtype=np.uint8)
        file = tmp_path / ("cat", "dog")[number % 2] / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        image.fromarray(pixels).save(file)
    return tmp_path


def test_torchvision_s_datasets_and_transforms_are_data(folder):
    need("torchvision")
    import_torchvision()
    from torchvision import datasets
    from torchvision.transforms import v2

    plain = v2.Compose([v2.ToImage(), v2.Resize((SIZE, SIZE)), v2.ToDtype(torch.float32, scale=True)])
    random = v2.Compose([v2.RandomHorizontalFlip(), plain])
    images = datasets.ImageFolder(folder, random)
    learner, record = learn(images, torch.zeros(1, 3, SIZE, SIZE), classes=images.classes, valid_transform=plain)
    assert record.class_names == ("cat", "dog")
    test = datasets.ImageFolder(folder, plain)
    x = torch.stack([test[number][0] for number in range(24)])
    assert learner.evaluate(test, "one") == learner.evaluate((x, torch.tensor(test.targets)), "one")
    assert learn(Subset(images, range(12)), torch.zeros(1, 3, SIZE, SIZE))[1].classes == 1, "cats alone"
    with pytest.raises(DataError, match=r"the inputs are pictures .*ToTensor"):
        learn(datasets.ImageFolder(folder), torch.zeros(1, 3, SIZE, SIZE))


def test_timm_s_pipeline_is_data_and_its_prefetcher_is_refused_with_what_to_do(folder):
    need("torchvision", "timm")
    import_torchvision()
    from timm.data import create_dataset, create_loader, create_transform

    size = (3, SIZE, SIZE)
    train = create_dataset("", root=str(folder), transform=create_transform(size, is_training=True))
    valid_transform = create_transform(size)
    learner, record = learn(train, torch.zeros(1, *size), valid_transform=valid_transform)
    assert record.classes == 2
    options = {"input_size": size, "batch_size": 6, "num_workers": 0, "device": torch.device("cpu")}
    loader = create_loader(create_dataset("", root=str(folder)), **options, use_prefetcher=False)
    assert 0 <= learner.evaluate(loader, "one") <= 1
    wrapped = create_loader(create_dataset("", root=str(folder)), **options, use_prefetcher=True)
    with pytest.raises(DataError, match=r"got PrefetchLoader\. Give the DataLoader that it wraps.*use_prefetcher=False"):
        learn(wrapped, torch.zeros(1, *size))
