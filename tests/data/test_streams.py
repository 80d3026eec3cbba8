"""Benchmarks as tasks: permutations, splits, order, limits, and the paper's networks."""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import REAL
from faults.datasets import write_cifar10, write_idx, write_pictures

from spacecl import SPACE, ConfigError, Learner
from spacecl.data import sources
from spacecl.data.benchmarks.networks import CNN, NETWORKS, ResNet18
from spacecl.data.benchmarks.presets import BENCHMARKS
from spacecl.data.benchmarks.streams import load_stream
from spacecl.data.prepare import check_all_data
from spacecl.data.task_data import Data
from spacecl.runs.costs import multiply_adds


def test_permutations_are_the_same_in_every_run_and_differ_between_tasks():
    first, again = load_stream("permuted-digits"), load_stream("permuted-digits", seed=5)
    orders = [task.train.order for task in first]
    assert len(first) == 5
    assert all(torch.equal(a.train.order, b.train.order) for a, b in zip(first, again))
    assert all(torch.equal(task.train.order, task.test.order) for task in first)
    assert all(sorted(order.tolist()) == list(range(64)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 5
    assert len(load_stream("permuted-digits", tasks=7)) == 7, "any number of permutations"


def test_p_mnist_has_ten_tasks_of_ten_classes(tmp_path):
    write_idx(tmp_path / "MNIST")
    tasks = load_stream("p-mnist", tmp_path)
    assert [task.name for task in tasks] == [f"mnist-{number}" for number in range(1, 11)]
    assert len(tasks[0].classes) == 10
    assert tasks[3].train.finish(tasks[3].train.batch([0])[0]).shape == (1, 784)


def test_split_cifar10_has_two_classes_per_task_and_uses_every_image_once(tmp_path):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    tasks = load_stream("split-cifar10", tmp_path)
    assert [task.classes for task in tasks][:2] == [("airplane", "automobile"), ("bird", "cat")]
    rows = np.concatenate([task.train.rows for task in tasks])
    assert sorted(rows) == list(range(100))
    dataset = sources.load("cifar10", tmp_path)
    assert all(part.mean == dataset.statistics.mean for task in tasks for part in (task.train, task.test)), (
        "of all training images"
    )
    for number, task in enumerate(tasks):
        assert set(dataset.train[1][task.train.rows]) == {2 * number, 2 * number + 1}
        assert set(task.train.targets.tolist()) == set(task.test.targets.tolist()) == {0, 1}


def test_order_tasks_and_limit_select_tasks_and_images():
    names = [task.name for task in load_stream("permuted-digits", order=[3, 1])]
    assert names == ["digits-3", "digits-1"]
    shuffled = [task.name for task in load_stream("permuted-digits", order="random", seed=3)]
    assert sorted(shuffled) == [f"digits-{number}" for number in range(1, 6)]
    assert shuffled == [task.name for task in load_stream("permuted-digits", order="random", seed=3)]
    assert shuffled != [task.name for task in load_stream("permuted-digits", order="random", seed=4)]
    task = load_stream("permuted-digits", tasks=1, limit=7)[0]
    assert torch.bincount(task.train.targets).tolist() == torch.bincount(task.test.targets).tolist() == [7] * 10
    for order in ([0, 1], [1, 1]):
        with pytest.raises(ConfigError, match="must name tasks from 1 to 5, none twice"):
            load_stream("permuted-digits", order=order)
    assert torch.equal(
        load_stream("permuted-digits", order=[7])[0].train.order, load_stream("permuted-digits", tasks=7)[6].train.order
    )


def write_eight(folder):
    """All eight datasets, a few images of each."""
    from scipy.io import savemat

    write_cifar10(folder / "cifar-10-batches-py")
    (folder / "cifar-100-python").mkdir()
    for part in ("train", "test"):
        data = {b"data": np.zeros((200, 3072), np.uint8), b"fine_labels": [n % 100 for n in range(200)]}
        (folder / "cifar-100-python" / part).write_bytes(pickle.dumps(data))
    names = {b"fine_label_names": [f"class {n}".encode() for n in range(100)]}
    (folder / "cifar-100-python" / "meta").write_bytes(pickle.dumps(names))
    (folder / "facescrub").mkdir()
    for part in ("train", "test"):
        faces = {"features": np.zeros((200, 3, 32, 32)), "labels": np.arange(200) % 100}
        (folder / "facescrub" / f"facescrub_{part}_100.pkl").write_bytes(pickle.dumps(faces))
        digits = {"X": np.zeros((32, 32, 3, 20), np.uint8), "y": np.arange(20)[:, None] % 10 + 1}
        savemat(folder / f"{part}_32x32.mat", digits)
    write_idx(folder / "MNIST")
    write_idx(folder / "fashion-mnist")
    signs = [f"{number:05}" for number in range(43)]
    write_pictures(folder / "GTSRB" / "Final_Training" / "Images", signs, 2, (40, 25), "RGB", ".ppm")
    write_pictures(folder / "GTSRB" / "Final_Test", ["Images"], 43, (15, 60), "RGB", ".ppm")
    rows = "".join(f"{number}.ppm;{number}\n" for number in range(43))
    (folder / "GTSRB" / "GT-final_test.csv").write_text(f"Filename;ClassId\n{rows}")
    write_pictures(folder / "notMNIST_small", "ABCDEFGHIJ", 5)


def test_eight_datasets_come_in_the_papers_order_as_small_colour_images_and_their_sizes_are_checked(tmp_path):
    write_eight(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tasks = load_stream("8-datasets", tmp_path)
    assert "CIFAR-10 has 100 + 20 images; in Table S1 there are 50,000 + 10,000." in [
        str(warning.message) for warning in caught
    ]
    assert len(caught) == 8
    assert [task.name for task in tasks] == list(BENCHMARKS["8-datasets"].datasets)
    assert [len(task.classes) for task in tasks] == [10, 100, 100, 10, 10, 10, 43, 10]
    for task in tasks:
        assert task.train.finish(task.train.batch([0, 1])[0]).shape == (2, 3, 32, 32)
    grey = tasks[3].train
    x = grey.finish(grey.batch(range(40))[0])
    assert torch.equal(x[:, 0], x[:, 2])
    assert float(x.mean()) == pytest.approx(0, abs=1e-4)
    assert float(x.std(unbiased=False)) == pytest.approx(1, abs=1e-4)


TABLE_S1 = {  # training, validation and test images
    "cifar10": (45_000, 5_000, 10_000),
    "cifar100": (45_000, 5_000, 10_000),
    "facescrub": (18_540, 2_060, 2_289),
    "mnist": (54_000, 6_000, 10_000),
    "svhn": (65_931, 7_326, 26_032),
    "fashion-mnist": (54_000, 6_000, 10_000),
    "gtsrb": (35_288, 3_921, 12_630),
    "notmnist": (15_168, 1_685, 1_873),
}


@pytest.mark.parametrize("name", TABLE_S1)
def test_published_counts_and_our_split_give_table_s1(name):
    train, test = sources.DATASETS[name].counts
    data = Data((torch.zeros(train, 1), torch.zeros(train, dtype=torch.int64)), name)
    rest, valid = data.split(0.1, torch.Generator().manual_seed(0))
    assert (len(rest), len(valid), test) == TABLE_S1[name]


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_networks_are_those_of_the_paper():
    mlp = NETWORKS["mlp"]((784,), 10)
    assert parameters(mlp) == 784 * 1000 + 1000 + 1000 * 1000 + 1000 + 10_010
    assert round(parameters(NETWORKS["mlp-small"]((784,), 10)) / 1e6, 1) == 0.1
    for name, filters in (("cnn", [32, 32, 64, 64, 128]), ("cnn-wide", [64, 64, 128, 128, 256])):
        convs = [layer for layer in NETWORKS[name]((3, 32, 32), 2).modules() if isinstance(layer, torch.nn.Conv2d)]
        assert [conv.out_channels for conv in convs] == filters
        assert [conv.kernel_size for conv in convs] == [(3, 3)] * 4 + [(2, 2)]
    dropped = CNN()
    shapes = []
    dropped.dropout.register_forward_hook(lambda layer, inputs, out: shapes.append((layer.p, *inputs[0].shape[1:])))
    dropped(torch.zeros(1, 3, 32, 32))
    assert shapes == [(0.15, 32, 16, 16), (0.15, 64, 8, 8)], "after the first and the second pooling"
    resnet = ResNet18()
    convs = [(name, layer) for name, layer in resnet.named_modules() if isinstance(layer, torch.nn.Conv2d)]
    assert len([name for name, _ in convs if "shortcut" not in name]) == 17
    assert [resnet.conv1.out_channels, *(layer.out_channels for name, layer in convs if name.endswith("1.conv2"))] == [
        *(40, 40, 80, 160, 320),
    ]
    assert [name for name, _ in convs if "shortcut" in name] == [f"conv{stage}_x.0.shortcut.0" for stage in (3, 4, 5)]
    sizes = []
    resnet.conv5_x.register_forward_hook(lambda layer, inputs, out: sizes.append((inputs[0].shape[2], out.shape[2])))
    resnet.eval()(torch.zeros(1, 3, 32, 32))
    assert sizes == [(8, 4)]


@pytest.mark.parametrize("name", ["cnn", "cnn-wide"])
def test_the_cnns_without_padding_have_the_same_layers_and_fewer_operations(name):
    """1.75 times fewer, counted by hand for 32 x 32 pixels, from the sizes of the maps."""
    ours, valid = (NETWORKS[model]((3, 32, 32), 2) for model in (name, f"{name}-valid"))
    sizes = []
    for network in (ours, valid):
        shapes = {n: tuple(p.shape) for n, p in network.named_parameters() if not n.startswith("head")}
        sizes.append((shapes, multiply_adds(network, torch.zeros(1, 3, 32, 32))))
    assert sizes[0][0] == sizes[1][0]
    a, b = (64, 128) if name == "cnn-wide" else (32, 64)
    kernels = (27 * a, 9 * a * a, 9 * a * b, 9 * b * b, 4 * b * 2 * b)
    counts = [
        sum(side**2 * kernel for side, kernel in zip(maps, kernels)) for maps in ((32, 32, 16, 16, 7), (30, 28, 12, 10, 4))
    ]
    assert [operations for _, operations in sizes] == [counts[0] + 2 * 9 * 2 * b, counts[1] + 2 * 4 * 2 * b]
    assert 1.7 < sizes[0][1] / sizes[1][1] < 1.8
    x = torch.randn(2, 3, 32, 32)
    pooled = valid.eval().last_pool(torch.relu(valid.conv5(torch.zeros(1, b, 5, 5))))
    assert pooled.shape[2:] == (2, 2)
    assert isinstance(valid.last_pool, torch.nn.AvgPool2d)
    assert valid(x).shape == ours.eval()(x).shape == (2, 2)
    assert NETWORKS[f"{name}-valid"]((3, 24, 24), 2)(torch.zeros(1, 3, 24, 24)).shape == (1, 2), "the smallest"


def test_the_small_resnet_is_the_paper_s_with_half_of_its_filters():
    small, whole = (NETWORKS[name]((3, 32, 32), 10) for name in ("resnet18-small", "resnet18"))
    assert [p.shape[0] for p in whole.parameters() if p.dim() == 4] == [
        2 * p.shape[0] for p in small.parameters() if p.dim() == 4
    ]
    assert round(parameters(small) / 1e6, 2) == 1.09


@pytest.mark.parametrize("model", sorted({benchmark.model for benchmark in BENCHMARKS.values()}))
def test_the_method_of_every_recipe_fits_the_benchmarks_network(model):
    shape = {"mlp": (784,), "mlp-small": (64,)}.get(model, (3, 32, 32))
    learner = Learner(NETWORKS[model](shape, 10), example_input=torch.zeros(1, *shape))
    presets = [preset for b in BENCHMARKS.values() if b.model == model for preset in b.recipes.values()]
    for preset in presets:
        learner.method = SPACE(**preset.options["space"], budget=10)  # raises an error if a layer has no threshold
        variance = preset.options["space"].get("variance")
        if variance is not None:
            assert learner.method.threshold("t", next(iter(learner.widths))) == next(iter(variance.values()))


@pytest.mark.parametrize("name", ["p-mnist", "split-cifar10", "split-cifar100", "p-fashion"])
def test_the_real_benchmark_has_its_tasks_and_loads_at_once_the_second_time(name, monkeypatch):
    import time

    monkeypatch.setattr(sources, "SYSTEM", (Path("/usr/share/datasets"),))
    dataset = sources.DATASETS[BENCHMARKS[name].datasets[0]]
    if dataset.find(sources.search_folders(REAL)) is None:
        pytest.skip(f"no {dataset.title}: set SPACECL_DATA to a folder that holds it")
    load_stream(name, REAL)
    started = time.perf_counter()
    tasks = load_stream(name, REAL)
    example = torch.zeros_like(tasks[0].train.finish(tasks[0].train.batch([0])[0]))
    counts = [check_all_data(task, example)[1] for task in tasks]
    assert time.perf_counter() - started < 1
    assert len(tasks) == BENCHMARKS[name].tasks
    assert sum(count["train"] + count["valid"] for count in counts) == {"p-mnist": 600_000, "p-fashion": 600_000}.get(
        name, 50_000
    )
    assert all(count["valid"] == round((count["train"] + count["valid"]) / 10) for count in counts)
