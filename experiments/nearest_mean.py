"""A frozen trunk with nearest class means: what a pretrained network does for new tasks without any training."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from rows import Row
from torch import Tensor, nn

from spacecl import Task
from spacecl.data.task_data import Data

TITLE = "Frozen trunk, nearest class mean"
SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Euclidean": lambda features, means: -torch.cdist(features, means),
    "cosine": lambda features, means: F.normalize(features) @ F.normalize(means).T,
}


def find_means(features: Tensor, labels: Tensor) -> Tensor:
    """The mean features of every class.

    >>> find_means(torch.tensor([[0.0, 2.0], [4.0, 0.0], [2.0, 2.0]]), torch.tensor([0, 1, 0])).tolist()
    [[1.0, 2.0], [4.0, 0.0]]
    """
    return torch.stack([features[labels == label].mean(0) for label in range(int(labels.max()) + 1)])


def score(name: str, features: Tensor, labels: Tensor, means: Tensor) -> float:
    """The fraction of features whose nearest mean, by a similarity, is that of their class."""
    return float((SIMILARITIES[name](features, means).argmax(1) == labels).float().mean())


def choose_similarity(features: Tensor, labels: Tensor, valid: Tensor) -> str:
    """The similarity that classifies the rows in `valid` best by the means of the others; of equal ones, the first.

    >>> x = torch.tensor([[10.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    >>> choose_similarity(x, torch.tensor([0, 1, 0]), torch.tensor([2]))
    'cosine'
    """
    rest = torch.ones(len(labels), dtype=torch.bool).index_fill(0, valid, False)
    means = find_means(features[rest], labels[rest])
    return max(SIMILARITIES, key=lambda name: score(name, features[valid], labels[valid], means))


@torch.no_grad()
def extract_features(network: nn.Module, head: nn.Module, inputs: Tensor) -> Tensor:
    """What the head of a network reads."""
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    network.eval()
    for part in inputs.split(100):
        network(part)
    hook.remove()
    return torch.cat(seen)


def measure_means(network: nn.Module, head: nn.Module, tasks: Iterable[Task], seed: int, settings: dict[str, Any]) -> Row:
    """Classify the test data of every task by the means of its training data.

    Each task chooses its similarity on a tenth of its training data; the means are then those of all of them. The network is
    the same for all tasks, so that its size is 1; means take the place of a head and are not counted.
    """
    accuracy, seconds = {}, []
    for task in tasks:
        started = time.perf_counter()
        train, test = (Data(source, "data") for source in (task.train, task.test))
        (x, labels), (x_test, labels_test) = (data.rows(torch.arange(len(data))) for data in (train, test))
        features = extract_features(network, head, x)
        valid = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[: max(1, len(labels) // 10)]
        name = choose_similarity(features, labels, valid)
        means = find_means(features, labels)
        seconds.append(time.perf_counter() - started)
        accuracy[task.name] = score(name, extract_features(network, head, x_test), labels_test, means)
        print(f"{TITLE}, seed {seed}, {task.name}: {accuracy[task.name]:.2%}, {name}", file=sys.stderr, flush=True)
    return Row(TITLE, seed, accuracy, [1.0] * len(accuracy), seconds, settings)
