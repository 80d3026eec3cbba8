"""Make small folders of pictures from the training data of three datasets, to measure how well few pictures are learned.

    python experiments/few_pictures.py folder --data ~/data --count 40
    spacecl run folder --method stl --recipe auto

Each of the three tasks has `train`, with --count pictures a class, and `test`, with up to 300 others. Both are training
data, so that values can be chosen by the accuracy on `test`; the test data of the datasets are not used.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image

from spacecl.data.benchmarks.streams import load_stream

CLASSES = {8: ("letters", (0, 1, 2, 3)), 7: ("signs", (1, 2, 17)), 1: ("vehicles", (0, 1, 8))}  # of tasks of 8-datasets
HELD_OUT = 300  # pictures a class


def write_pictures(folder: Path, data: str | None, count: int) -> None:
    """Write the pictures of three tasks into a folder."""
    for task, (name, classes) in zip(load_stream("8-datasets", data, order=list(CLASSES)), CLASSES.values()):
        order = torch.Generator().manual_seed(0)
        for label in classes:
            rows = (task.train.targets == label).nonzero()[:, 0]
            rows = rows[torch.randperm(len(rows), generator=order)][: count + HELD_OUT]
            for number, picture in enumerate(task.train.batch(rows)[0]):
                file = folder / name / ("train" if number < count else "test") / str(label) / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture.expand(3, -1, -1).permute(1, 2, 0).numpy()).save(file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", help="folder with datasets (default: $SPACECL_DATA, else they are downloaded)")
    parser.add_argument("--count", type=int, default=40, help="pictures a class to train on")
    options = parser.parse_args()
    write_pictures(options.folder, options.data, options.count)
