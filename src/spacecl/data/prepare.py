"""The checks that a task's data must pass before training, and what they find: what is predicted, and how many examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SequentialSampler
from typing_extensions import NotRequired, TypedDict

from ..errors import DataError
from ..structure.calling import Inputs, list_tensors, select_rows
from ..validation import show
from .datasets import find_labels
from .targets import TargetKind, Targets, find_misfit
from .task import Batch, Task
from .task_data import Data, open_data, refuse

_SAMPLE = 64  # examples of a dataset that are read before training, where the number of classes is known
_ROWS = 256  # of a dataset that are checked at a time


class DataCounts(TypedDict):
    """The number of classes, labels or values of a task, and of examples in each part of its data."""

    classes: int
    target_kind: NotRequired[TargetKind]  # classes, if it is missing
    train: int
    valid: int
    test: int


def check_data(
    data: Data, example: Inputs, least: int = 2, kind: TargetKind | None = None, classes: int | None = None
) -> Targets:
    """Compare examples with what the model takes, and return what the targets are. At least `least` examples are needed.

    The `kind` of the targets is inferred if it is not given. Of classes there are as many as the largest label says.

    Of a dataset or a loader only some examples are read if the number of `classes` is given, if the labels are in an
    attribute, or if there are no classes: all others are checked when they are read. Otherwise every example is read.
    """
    data.expect(example, kind, classes)
    if data.tensors is not None:
        counts = {len(tensor) if tensor.dim() else -1 for tensor in list_tensors(data.tensors[0])}
        if not data.tensors[1].dim() or counts != {len(data.tensors[1])}:
            inputs, shape = " or ".join(map(str, sorted(counts))).replace("-1", "no"), tuple(data.tensors[1].shape)
            raise DataError(f"{data.what}: {inputs} inputs, but labels of shape {shape}; give one label per input.")
    if len(data) < least:
        raise DataError(f"{data.what}: {len(data)} examples; at least {least} are needed.")
    if data.targets is not None:
        data.kind = kind or data.infer_kind(data.targets)
    if data.images is not None:
        data.check_batch((data.finish(data.images.batch([0])[0]), data.images.targets), 0)  # bytes cannot hold NaN
        return _summarize(data, data.images.targets)
    known = None if classes is not None or kind not in (None, "classes") else _find_labels(data)
    if classes is None and known is None:
        return _summarize(data, _read_targets(data, data.batches(_ROWS), least))
    rows, some = _sample(data)
    read = _read_targets(data, some, 1)
    if known is None or data.kind != "classes":
        return _summarize(data, read)
    if not bool(torch.isin(read, known).all()) or (rows is not None and not torch.equal(read, known[rows])):
        return _summarize(data, _read_targets(data, data.batches(_ROWS), least))  # the attribute says something else
    return _summarize(data, known)


def _summarize(data: Data, y: Tensor) -> Targets:
    """What the targets are, given those that were read."""
    if data.kind == "classes":
        return Targets(data.kind, int(y.max()) + 1)
    assert data.kind is not None
    assert data.shape is not None
    return Targets(data.kind, data.shape.numel(), flat=not data.shape)


def _read_targets(data: Data, batches: Iterator[Batch], least: int) -> Tensor:
    """Read the targets of at least so many examples, which are checked; all labels, if these are classes."""
    targets, count = [], 0
    with data.keep_generators():
        for x, y in batches:
            if data.tensors is not None:  # other data are checked as they are read
                data.check_batch((x, y), count)
            if len(y):
                targets.append(y.to("cpu", torch.int64) if data.kind == "classes" else y.cpu())
            count += len(y)
            if data.tensors is None and data.kind not in (None, "classes") and count >= least:
                break  # the first examples say how many labels or values there are
    if count < least:
        raise DataError(f"{data.what}: {count} examples; at least {least} are needed.")
    return torch.cat(targets)


def _sample(data: Data) -> tuple[Tensor | None, Iterator[Batch]]:
    """Some examples of a dataset, with their numbers, or the first batch of a loader; all tensors."""
    if data.tensors is not None:
        return None, data.batches(_ROWS)
    if data.loader is not None:
        return None, islice(data.batches(_ROWS), 1)
    rows = torch.linspace(0, len(data) - 1, min(_SAMPLE, len(data))).long()
    return rows, iter([data.rows(rows)])


def _find_labels(data: Data) -> Tensor | None:
    """The labels of the examples as far as an attribute of the dataset has them."""
    if data.dataset is not None:
        labels = find_labels(data.dataset)
        labels = None if labels is None else labels[data.numbers]
        if labels is not None and int(labels.min()) < 0:
            raise DataError(f"{data.what}: the label {int(labels.min())} is negative; labels count from 0.")
        return labels
    if data.loader is not None and type(data.loader.sampler) in (RandomSampler, SequentialSampler):
        return find_labels(data.loader.dataset)
    return None


def prepare_data(task: Task, example: Inputs, generator: torch.Generator) -> tuple[Data, Data, Targets]:
    """Check a task's data, and return its training data, its validation data and what it predicts."""
    train, valid = open_data(task, "train"), None if task.valid is None else open_data(task, "valid")
    given = None if task.classes is None else task.class_count(0)
    seen = check_data(train, example, kind=task.target, classes=given)
    if valid is None:
        train, valid = train.split(0.1, generator, task.valid_transform)
        if len(train) < 2:
            raise DataError(f"Task {task.name!r}: {len(train)} examples are left to train on. Give more, or validation data.")
        if task.valid_transform is not None:
            check_data(valid, example, least=1, kind=seen.kind, classes=task.class_count(seen.outputs - 1))
    else:
        others = check_data(valid, example, least=1, kind=seen.kind, classes=given)
        if seen.kind != "classes":
            refuse(find_misfit(others, seen), valid.what)
        seen = replace(seen, outputs=max(seen.outputs, others.outputs))
    if seen.kind != "classes":
        if task.class_count(seen.outputs - 1) != seen.outputs:
            raise DataError(f"Task {task.name!r}: classes={show(task.classes)}, but there are {seen.outputs} {seen.kind}.")
        return train, valid, seen
    largest = seen.outputs - 1
    classes, count = task.class_count(largest), len(train) + len(valid)
    if task.classes is None and classes > count:  # a single wrong label must not make a head of a million classes
        raise DataError(
            f"Task {task.name!r}: the label {largest} needs {classes:,} classes, but there are {count:,} examples, so most "
            "classes would have none. Number the task's own classes from 0, or give classes=..."
        )
    train.classes = valid.classes = classes
    return train, valid, Targets("classes", classes)


def check_targets(data: Data, example: Inputs, known: Targets) -> None:
    """Check data that a network for `known` targets is to be evaluated on."""
    classes = known.outputs if known.kind == "classes" else None
    refuse(find_misfit(check_data(data, example, least=1, kind=known.kind, classes=classes), known), data.what)


def check_all_data(task: Task, example: Inputs) -> tuple[Task, DataCounts]:
    """Check all of a task's data, test data included, and count its classes and examples.

    Returns the task with its number of classes and what it predicts, for which datasets need not be read again, and the counts.
    """
    train, valid, targets = prepare_data(task, example, torch.Generator().manual_seed(0))
    test = open_data(task, "test")
    check_targets(test, example, targets)
    counts: DataCounts = {"classes": targets.outputs, "train": len(train), "valid": len(valid), "test": len(test)}
    if targets.kind != "classes":
        counts["target_kind"] = targets.kind
    return replace(task, classes=task.class_names or targets.outputs, target=targets.kind), counts


def fingerprint(data: Data) -> str:
    """Compute a short digest of some data, from all labels and 64 inputs.

    For a dataset or `DataLoader` it is computed from the number of examples alone, because each would have to be read.
    """
    digest = hashlib.sha256()
    digest.update(str(len(data)).encode())
    rows = torch.linspace(0, max(0, len(data) - 1), min(64, len(data))).long()
    if data.images is not None:
        images = data.images
        digest.update(repr((images.mean, images.std, images.shape)).encode())
        tensors = [images.targets, images.batch(rows)[0], *([] if images.order is None else [images.order])]
    else:
        tensors = [] if data.tensors is None else [data.tensors[1], *list_tensors(select_rows(data.tensors[0], rows))]
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
