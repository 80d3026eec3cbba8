"""Architectures of many kinds learn two real tasks each, without forgetting the first:

    python experiments/architectures.py --data DIR [--only "ViT,LSTM"] [--seed 0]

ResNeXt, ViT and Swin are timm's, and BERT is that of transformers, in small sizes and with random weights. The others are plain
PyTorch. Texts are the sources of Python's standard library, tables are scikit-learn's. Every model learns with `Recipe.auto`,
of 10 + 10 epochs where there are thousands of examples, with `SPACE(budget=2)` and with a full network per task (STL). Prints
test scores, the size of the network, whether the outputs of a task have the same bits at the end as when it was learned, and
how many answers of its ONNX file differ. Times are CPU seconds of learning and testing with SPACE.
Finished rows are saved, and the same command resumes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from library_text import LENGTH, VOCABULARY, load_kinds, load_packages
from rows import Row, RowFile, parse_names
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

from spacecl import SPACE, STL, Learner, Method, Recipe, SpaceWarning, Task
from spacecl.data.sources import load
from spacecl.structure.calling import count_rows, select_rows

sys.path.append(str(Path(__file__).parents[1] / "tests" / "zoo"))
from stand_ins import import_torchvision

PICTURES, TEXTS, TEST = 1500, 3000, 1000  # of a task
GARMENTS = ("t-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
METHODS: Mapping[str, Callable[[], Method]] = {"SPACE": partial(SPACE, budget=2), "STL": STL}  # of two tasks


@dataclass(frozen=True)
class Entry:
    """A model and its tasks, which are loaded from a data folder with a seed."""

    make: Callable[[], nn.Module]
    load: Callable[[str | None, int], list[Task]]
    epochs: int | None = 10  # of training, and as many of retraining; None: as many as the learner's own recipe has


# -- models ------------------------------------------------------------------------------------------------------------------


def make_timm(name: str, **options: Any) -> nn.Module:
    import_torchvision()
    import timm

    return timm.create_model(name, num_classes=2, **options)


def make_bert() -> nn.Module:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import_torchvision()
    from transformers import BertConfig, BertForSequenceClassification

    size = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    return BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **size))


class TextLSTM(nn.Module):
    """A layer in both directions, and the mean over the words that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.lstm = nn.LSTM(32, 48, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(96, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        present = (tokens > 0).unsqueeze(2).float()
        outputs, _ = self.lstm(self.embed(tokens))
        return self.fc((outputs * present).sum(1) / present.sum(1))


class NameAndPicture(nn.Module):
    """Says whether a name fits a picture: a small CNN beside letters, which meet in a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.pool, self.look = nn.MaxPool2d(2), nn.Linear(32 * 7 * 7, 64)
        self.letters, self.read = nn.Embedding(27, 8), nn.Linear(8 * 8, 64)
        self.mix, self.fc = nn.Linear(128, 64), nn.Linear(64, 2)

    def forward(self, picture: Tensor, name: Tensor) -> Tensor:
        x = self.pool(self.conv2(self.pool(self.conv1(picture).relu())).relu())
        both = torch.cat([self.look(x.flatten(1)), self.read(self.letters(name).flatten(1))], 1)
        return self.fc(self.mix(both.relu()).relu())


def make_mlp(inputs: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )  # the last layer is replaced by one for each task


# -- tasks -------------------------------------------------------------------------------------------------------------------


def choose_pictures(data: str | None, name: str, part: str, count: int, seed: int, classes: Sequence[int] | None = None) -> Any:
    """Draw normalized pictures of some classes, and their labels, counted from 0."""
    dataset = load(name, data)
    assert dataset.statistics is not None
    split, wanted = getattr(dataset, part), np.arange(len(dataset.classes)) if classes is None else np.array(classes)
    rows = np.flatnonzero(np.isin(split.labels, wanted))
    rows = np.random.default_rng([seed, part == "test"]).permutation(rows)[:count]
    mean, std = (torch.tensor(values)[:, None, None] for values in (dataset.statistics.mean, dataset.statistics.std))
    return (torch.from_numpy(split.pixels[rows]) - mean) / std, torch.from_numpy(np.searchsorted(wanted, split.labels[rows]))


def load_pictures(data: str | None, seed: int) -> list[Task]:
    """Traffic signs, and vehicles (airplane, automobile, ship, truck), of 32 x 32 pixels."""
    tasks = []
    for name, dataset, classes in (("signs", "gtsrb", None), ("vehicles", "cifar10", (0, 1, 8, 9))):
        train, test = (choose_pictures(data, dataset, *part, seed, classes) for part in (("train", PICTURES), ("test", TEST)))
        tasks.append(Task(name, train, test=test))
    return tasks


def load_texts(data: str | None, seed: int, *, names: tuple[str, str] | None = None) -> list[Task]:
    """Code, comment or docstring, and the package of code. With names, inputs are tokens and a mask."""
    tasks = []
    for name, read in (("kind of text", load_kinds), ("package of code", load_packages)):
        train, test = read(TEXTS, TEST, seed)
        if names is not None:
            train, test = (({names[0]: x, names[1]: (x > 0).long()}, y) for x, y in (train, test))
        tasks.append(Task(name, train, test=test))
    return tasks


def load_names(data: str | None, seed: int) -> list[Task]:
    """Does the name fit the picture? Of half of the pictures it does; the others get another name."""
    tasks = []
    for title, dataset, names in (("garment", "fashion-mnist", GARMENTS), ("number", "mnist", NUMBERS)):
        letters = torch.tensor([[ord(letter) - 96 if letter.isalpha() else 0 for letter in f"{name:8.8}"] for name in names])
        parts = []
        for part, count in (("train", 2 * PICTURES), ("test", TEST)):
            x, y = choose_pictures(data, dataset, part, count, seed)
            generator = torch.Generator().manual_seed(seed)
            fits = torch.randint(0, 2, (len(y),), generator=generator)
            other = (y + torch.randint(1, 10, (len(y),), generator=generator)) % 10
            parts.append(({"picture": x.float(), "name": letters[torch.where(fits == 1, y, other)]}, fits))
        tasks.append(Task(title, parts[0], classes=["no", "yes"], test=parts[1]))
    return tasks


def load_labels(data: str | None, seed: int) -> list[Task]:
    """What is true of a digit, and of its shape: several labels of each of scikit-learn's digits."""
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
    number = {"even": [0, 2, 4, 6, 8], "prime": [2, 3, 5, 7], "square": [0, 1, 4, 9], "greater than 4": [5, 6, 7, 8, 9]}
    shape = {"closed loop": [0, 6, 8, 9], "straight stroke": [1, 2, 4, 5, 7], "open to the left": [1, 2, 3, 5, 7, 9]}
    tasks = []
    for name, labels in (("number", number), ("shape", shape)):
        rows = torch.stack([torch.isin(y, torch.tensor(some)) for some in labels.values()], 1).long()
        tasks.append(split_rows(name, x, rows, seed, classes=list(labels)))
    return tasks


def load_values(data: str | None, seed: int) -> list[Task]:
    """Ten measurements to one value, and to ten: the progress of diabetes, and the worst cell of a tumour by its mean cell."""
    x, y = load_diabetes(return_X_y=True)
    cells = load_breast_cancer().data
    cells = torch.tensor((cells - cells.mean(0)) / cells.std(0), dtype=torch.float32)  # mean cell, errors, worst cell
    return [
        split_rows("diabetes", torch.tensor(20 * x, dtype=torch.float32), torch.tensor(y), seed),
        split_rows("worst cell", cells[:, :10], cells[:, 20:], seed),
    ]


def split_rows(name: str, x: Tensor, y: Tensor, seed: int, **options: Any) -> Task:
    """A task that is tested on a random quarter of the rows."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    test, train = order.tensor_split([len(x) // 4])
    return Task(name, (x[train], y[train]), test=(x[test], y[test]), **options)


RESNEXT = {"layers": (1, 1, 1, 1), "channels": (16, 32, 64, 128), "cardinality": 8, "stem_width": 16}
SWIN = {"img_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "num_heads": 4, "depth": 2}
ENTRIES = {
    "ResNeXt": Entry(partial(make_timm, "resnext50_32x4d", **RESNEXT), load_pictures),
    "ViT": Entry(partial(make_timm, "vit_tiny_patch16_224", **VIT), load_pictures),
    "Swin": Entry(partial(make_timm, "swin_tiny_patch4_window7_224", **SWIN), load_pictures),
    "BERT": Entry(make_bert, partial(load_texts, names=("input_ids", "attention_mask"))),
    "LSTM": Entry(TextLSTM, load_texts),
    "picture and name": Entry(NameAndPicture, load_names),
    "labels": Entry(partial(make_mlp, 64, 200), load_labels, None),
    "values": Entry(partial(make_mlp, 10, 64), load_values, None),
}


# -- measurements ------------------------------------------------------------------------------------------------------------


def compare_onnx(learner: Learner, task: Task, folder: str) -> tuple[int, float]:
    """Run a task's ONNX file on its test data: the answers that differ, and the largest difference of an output."""
    import onnxruntime

    file = Path(folder) / "network.onnx"
    learner.export(task.name, file)
    x, expected = task.test[0], learner.logits(task.test[0], task.name)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    inputs = x if isinstance(x, dict) else {session.get_inputs()[0].name: x}
    found = torch.from_numpy(session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})[0])
    difference = float((found - expected).abs().max())
    kind = learner.records[task.name].target_kind
    if kind == "values":
        changed = (found - expected).abs() > 1e-4 * expected.std()
    else:
        changed = found.argmax(1) != expected.argmax(1) if kind == "classes" else (found > 0) != (expected > 0)
    return int(changed.sum()), difference


def measure(name: str, entry: Entry, title: str, data: str | None, seed: int, settings: dict[str, Any]) -> Row:
    """Teach a model its tasks with a method, and check what was promised of each."""
    tasks = entry.load(data, seed)
    torch.manual_seed(seed)
    learner = Learner(
        entry.make(),
        METHODS[title](),
        example_input=select_rows(tasks[0].test[0], torch.tensor([0])),
        seed=seed,
        progress=False,
    )
    accuracy, size, seconds, checks, before = {}, [], [], {}, {}
    for task in tasks:
        started = time.process_time()
        count = count_rows(task.train[0])
        recipe = entry.epochs and Recipe.auto(count - count // 10, count // 10, epochs=entry.epochs)
        record = learner.learn(task, recipe)
        accuracy[task.name] = learner.evaluate(task.test, task.name)
        size.append(learner.size)
        seconds.append(time.process_time() - started)
        before[task.name] = learner.logits(task.test[0], task.name)
        checks[task.name] = {"metric": record.metric, "parameters": record.parameters, "classes": record.classes}
        line = (
            f"{name}, {title}, {task.name}: {record.metric} {accuracy[task.name]:.3f}, size {size[-1]:.3f}, {seconds[-1]:.0f} s"
        )
        print(line, file=sys.stderr, flush=True)
    learner.verify()
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            answers, difference = compare_onnx(learner, task, folder)
            same = torch.equal(learner.logits(task.test[0], task.name), before[task.name])
            checks[task.name] |= {"same bits": same, "other answers": answers, "difference": difference}
    parameters = sum(parameter.numel() for parameter in learner.full().parameters())
    return Row(title, seed, accuracy, size, seconds, settings, {"model": {"parameters": parameters}, **checks})


def format_rows(rows: Mapping[str, dict[str, Row]]) -> str:
    """Format a line for each task: scores of both methods, and what was checked with SPACE."""
    columns = ["model", "parameters", "task", "metric", "SPACE", "STL", "size", "bits at the end", "ONNX", "CPU seconds"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, methods in rows.items():
        own = methods["SPACE"]
        for number, task in enumerate(own.accuracy):
            check = own.checks[task]
            scores = [f"{methods[title].accuracy[task]:.3f}" if title in methods else "-" for title in METHODS]
            cells = [name, f"{own.checks['model']['parameters']:,}"] if not number else ["", ""]
            cells += [task, check["metric"], *scores, f"{own.size[number]:.3f}", "same" if check["same bits"] else "CHANGED"]
            cells += [f"{check['other answers']} others, {check['difference']:.0e}", f"{own.seconds[number]:.0f}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")
    parser.add_argument("--out", type=Path, default=Path("runs/architectures.jsonl"), help="default: %(default)s")
    parser.add_argument("--only", type=parse_names(ENTRIES), default=[*ENTRIES], help="such as ViT,LSTM")
    parser.add_argument("--methods", type=parse_names(METHODS), default=[*METHODS], help="default: SPACE,STL")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", SpaceWarning)
    file, rows = RowFile(options.out), {}
    for name in options.only:
        for title in options.methods:
            settings = {"model": name, "epochs": ENTRIES[name].epochs}
            row = file.find(title, options.seed, settings)
            if row is None:
                row = measure(name, ENTRIES[name], title, options.data, options.seed, settings)
                file.add(row)
            rows.setdefault(name, {})[title] = row
    print(format_rows(rows))


if __name__ == "__main__":
    main()
