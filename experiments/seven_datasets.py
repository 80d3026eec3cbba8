"""8-Datasets without FaceScrub and with few images, so that a method takes about half an hour on one core.

    SPACECL_DATA=DIR spacecl run experiments/seven_datasets.py --config experiments/seven_datasets.toml --method space

A dataset with more classes has more images to train on: `--limit` would give all datasets as many of each class, and CIFAR-100
ten times as many as most others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spacecl import Task
from spacecl.data.benchmarks.streams import load_stream
from spacecl.data.images import Images

ORDER = (1, 2, 4, 5, 6, 7, 8)  # without FaceScrub
TRAIN = {"cifar100": 3000, "gtsrb": 2000}
OTHERS, TEST = 1200, 500


def tasks() -> list[Task]:
    """Load the datasets in $SPACECL_DATA, with at most TRAIN and TEST images each. The choice is always the same."""
    return [
        replace(task, train=choose_images(task.train, TRAIN.get(task.name, OTHERS)), test=choose_images(task.test, TEST))
        for task in load_stream("8-datasets", order=ORDER)
    ]


def choose_images(images: object, count: int) -> Images:
    assert isinstance(images, Images)
    return images.subset(np.sort(np.random.default_rng(0).permutation(len(images))[:count]))


if __name__ == "__main__":
    print(__doc__)
