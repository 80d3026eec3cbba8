"""A task's data as batches, whatever its form, and the checks that it must pass before training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate
from typing_extensions import NotRequired, TypedDict

from ..errors import DataError, first_line
from ..structure.blueprint import describe_unsupported
from ..validation import show
from .images import Images
from .targets import TargetKind, Targets, find_misfit, find_target_problem, infer_kind
from .task import Batch, Source, Task


class Batches(Protocol):
    """What the training loop needs of data: `Data` has it, and methods may give their own."""

    def batches(self, size: int, order: torch.Generator | None = None) -> Iterator[Batch]: ...

    def finish(self, x: Tensor) -> Tensor: ...

    def steps(self, size: int) -> int: ...

    def generators(self) -> list[torch.Generator]: ...


class DataCounts(TypedDict):
    """The number of classes, labels or values of a task, and of examples in each part of its data."""

    classes: int
    target_kind: NotRequired[TargetKind]  # classes, if it is missing
    train: int
    valid: int
    test: int


class CheckedDataset(Dataset):
    """A user's dataset of which every example has been checked, so that it need not be read again for that."""

    def __init__(self, dataset: Dataset, shape: torch.Size, targets: Targets):
        self.dataset, self.shape, self.targets = dataset, shape, targets  # shape: of one input

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


class Data:
    """Examples as batches: tensors and images are indexed, datasets and loaders are read through a DataLoader.

    Errors begin with `what`, such as "Task 'birds', train".
    """

    def __init__(self, source: Source, what: str):
        self.what = what
        self.tensors: Batch | None = None
        self.images: Images | None = None
        self.loader: DataLoader | None = None
        self.dataset: Dataset | None = None
        self.checked: CheckedDataset | None = None
        if isinstance(source, TensorDataset) and len(getattr(source, "tensors", ())) == 2:
            source = source.tensors  # type: ignore[assignment]
        kind = source.dataset if isinstance(source, DataLoader) else source
        if isinstance(kind, IterableDataset):
            raise DataError(f"{what}: a dataset that can only be iterated cannot be used. Give one that can be indexed.")
        if isinstance(source, Images):
            self.images = source
        elif isinstance(source, DataLoader):
            self.loader = source
        elif isinstance(source, CheckedDataset):
            self.dataset, self.checked = source.dataset, source
        elif isinstance(source, Dataset):
            self.dataset = source
        elif isinstance(source, (tuple, list)) and len(source) == 2:
            self.tensors = _to_tensor(source[0], f"{what}: the inputs").detach(), _to_tensor(source[1], f"{what}: the labels")
        else:
            raise DataError(f"{what}: expected a pair (x, y), Images, a Dataset or a DataLoader; got {type(source).__name__}.")

    def __len__(self) -> int:
        if self.tensors is not None:
            return len(self.tensors[0])
        if self.images is not None:
            return len(self.images)
        source = self.dataset if self.loader is None else self.loader.dataset
        if not hasattr(source, "__len__"):
            raise DataError(f"{self.what}: a dataset without a length cannot be used. Give one that can be indexed.")
        return len(source)  # type: ignore[arg-type]

    @property
    def batch_size(self) -> int | None:
        """The examples in a batch of a DataLoader, which keeps its own; None for other data."""
        return None if self.loader is None else max(1, -(-len(self) // max(1, len(self.loader))))

    @property
    def source(self) -> Source:
        """The examples in a form that a `Task` takes."""
        sources = (self.tensors, self.images, self.loader, self.dataset)
        return next(source for source in sources if source is not None)

    def batches(self, size: int, order: torch.Generator | None = None) -> Iterator[Batch]:
        """Yield all examples in batches of `size`, shuffled by `order` if given. A DataLoader keeps its own size and order.

        Images are bytes: move them to the device first, then convert them with `finish`.
        """
        if self.loader is not None:
            yield from self.loader
            return
        count = len(self)
        if not count:
            return
        indices = torch.arange(count) if order is None else torch.randperm(count, generator=order)
        if self.dataset is not None:
            yield from DataLoader(Subset(self.dataset, indices.tolist()), batch_size=size, collate_fn=self._collate)
        elif self.tensors is not None and order is None:
            yield from zip(*(tensor.split(size) for tensor in self.tensors))
        else:
            yield from (self.rows(part) for part in indices.split(size))

    def rows(self, indices: Tensor) -> Batch:
        """Return some examples by number. A DataLoader does not have this."""
        if self.images is not None:
            return self.images.batch(indices)
        if self.tensors is not None:
            return self.tensors[0][indices], self.tensors[1][indices]
        assert self.dataset is not None
        return self._collate([self.dataset[index] for index in indices.tolist()])

    def _collate(self, examples: list[Any]) -> Any:
        """Put single examples into a batch."""
        try:
            return default_collate(examples)
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            raise DataError(f"{self.what}: the examples cannot be put into one batch: {first_line(error)}") from error

    def finish(self, x: Tensor) -> Tensor:
        """Convert the inputs of a batch to what the network reads."""
        return x if self.images is None else self.images.finish(x)

    def steps(self, size: int) -> int:
        """Return the number of batches of `size` in one epoch."""
        return len(self.loader) if self.loader is not None else -(-len(self) // size)

    def split(self, share: float, generator: torch.Generator) -> tuple[Data, Data]:
        """Split the data at random into the rest and a `share` of it."""
        if self.loader is not None:
            raise DataError(f"{self.what}: a DataLoader cannot be split. Give validation data with valid=...")
        order = torch.randperm(len(self), generator=generator)
        cut = max(1, round(share * len(order)))
        parts = order[cut:].sort().values, order[:cut].sort().values
        rest: Data
        if self.images is not None:
            rest, part = (Data(self.images.subset(i), self.what) for i in parts)
        elif self.tensors is not None:
            x, y = self.tensors
            rest, part = (Data((x[i], y[i]), self.what) for i in parts)
        else:
            rest, part = (Data(Subset(self.dataset, i.tolist()), self.what) for i in parts)  # type: ignore[arg-type]
        return rest, part

    def check(self, example: Tensor, kind: TargetKind | None = None, least: int = 2) -> Targets:
        """Check every example, and return what the targets are; their `kind` is inferred if it is not known.

        Of classes there are as many as the largest label says. At least `least` examples are needed.
        """
        if self.checked is not None and self.checked.shape == example.shape[1:] and kind in (None, self.checked.targets.kind):
            return self.checked.targets
        if self.tensors is not None and self.tensors[0].shape[:1] != self.tensors[1].shape[:1]:
            inputs, shape = self.tensors[0].shape[0] if self.tensors[0].dim() else "no", tuple(self.tensors[1].shape)
            raise DataError(f"{self.what}: {inputs} inputs, but labels of shape {shape}; give one label per input.")
        kind = kind or self.infer_kind()
        largest, lowest, count, shape = -1, 0, 0, torch.Size()  # shape: of one target
        for x, y in self._read_pairs(self._batches_to_check()):
            kind = kind or self._infer_kind(y)
            problem = find_target_problem(y, kind, count) or check_input(x, example, count)
            if problem is None and self.images is None and len(x) != len(y):
                problem = f"{len(x)} inputs, but {len(y)} labels in one batch; give one label per input."
            if problem is None and count and y.shape[1:] != shape:
                problem = f"the targets of row {count} have the shape {tuple(y.shape[1:])}; those before have {tuple(shape)}."
            if problem:
                raise DataError(f"{self.what}: {problem}")
            if not len(y):
                continue
            shape, count = y.shape[1:], count + len(y)
            if kind == "classes":
                y = y.to(torch.int64)
                largest, lowest = max(largest, int(y.max())), min(lowest, int(y.min()))
        if count < least:
            raise DataError(f"{self.what}: {count} examples; at least {least} are needed.")
        if lowest < 0:
            raise DataError(f"{self.what}: the label {lowest} is negative; labels count from 0.")
        if kind == "classes":
            return Targets(kind, largest + 1)
        return Targets(kind or "values", shape.numel(), flat=not shape)

    def infer_kind(self) -> TargetKind | None:
        """What the targets are for, if they are at hand without reading every example."""
        return None if self.targets is None else self._infer_kind(self.targets)

    def _infer_kind(self, y: Any) -> TargetKind:
        if not isinstance(y, Tensor) or describe_unsupported(y):
            return "classes"  # which is refused for the right reason
        try:
            return infer_kind(y)
        except DataError as error:
            raise DataError(f"{self.what}: {error}") from None

    @property
    def targets(self) -> Tensor | None:
        """All targets, if they are at hand without reading every example."""
        return self.images.targets if self.images is not None else None if self.tensors is None else self.tensors[1]

    def sample_targets(self, count: int, generator: torch.Generator) -> Tensor:
        """All targets if they are at hand; otherwise those of `count` random examples."""
        if self.targets is not None:
            return self.targets
        parts: list[Tensor] = []
        for _, y in self.batches(500, generator):
            parts.append(y)
            if sum(map(len, parts)) >= count:
                break
        return torch.cat(parts)

    def generators(self) -> list[torch.Generator]:
        """Return the random generators that a user's DataLoader draws from, in addition to torch's own."""
        parts = () if self.loader is None else (self.loader, self.loader.sampler, self.loader.batch_sampler)
        generators = [getattr(part, "generator", None) for part in parts]
        return list({id(generator): generator for generator in generators if isinstance(generator, torch.Generator)}.values())

    def first(self) -> Tensor:
        """Return the inputs of the first batch."""
        batch = next(self._read_pairs(self.batches(1)), None)
        if batch is None:
            raise DataError(f"{self.what}: there are no examples.")
        if not isinstance(batch[0], Tensor):
            raise DataError(f"{self.what}: inputs must be tensors; got {type(batch[0]).__name__}.")
        return batch[0]

    def _batches_to_check(self) -> Iterator[Any]:
        """Yield all examples in batches. One input stands for all images: bytes cannot hold NaN."""
        if self.images is None:
            yield from self.batches(4096)
        elif len(self):
            yield self.finish(self.images.batch([0])[0]), self.images.targets

    def _read_pairs(self, batches: Iterator[Any]) -> Iterator[Batch]:
        """Yield batches that are pairs. Errors of the user's own dataset are not caught."""
        for batch in batches:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                count = f"{len(batch)} values" if isinstance(batch, (tuple, list)) else f"a {type(batch).__name__}"
                raise DataError(f"{self.what}: a batch holds {count}; expected a pair (x, y).")
            yield batch[0], batch[1]


def prepare_data(task: Task, example: Tensor, generator: torch.Generator) -> tuple[Data, Data, Targets]:
    """Check a task's data, and return its training data, its validation data and what it predicts."""
    train = Data(task.train, f"Task {task.name!r}, train")
    valid = None if task.valid is None else Data(task.valid, f"Task {task.name!r}, valid")
    seen = train.check(example, task.target)
    if valid is None:
        train, valid = train.split(0.1, generator)
        if len(train) < 2:
            raise DataError(f"Task {task.name!r}: {len(train)} examples are left to train on. Give more, or validation data.")
    else:
        others = valid.check(example, seen.kind, least=1)
        if seen.kind != "classes":
            _refuse(find_misfit(others, seen), valid.what)
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
    if largest >= classes:
        raise DataError(
            f"Task {task.name!r}: the label {largest} is outside its {classes} classes, 0 to {classes - 1}. "
            "Number the task's own classes from 0, or give classes=..."
        )
    return train, valid, Targets("classes", classes)


def check_targets(data: Data, example: Tensor, known: Targets) -> None:
    """Check data that a network for `known` targets is to be evaluated on."""
    _refuse(find_misfit(data.check(example, known.kind, least=1), known), data.what)


def _refuse(problem: str | None, what: str) -> None:
    if problem:
        raise DataError(f"{what}: {problem}")


def check_all_data(task: Task, example: Tensor) -> tuple[Task, DataCounts]:
    """Check all of a task's data, test data included, and count its classes and examples.

    Returns the task with datasets that need not be read again to be checked, and the counts.
    """
    parts = {"train": task.train} if task.valid is None else {"train": task.train, "valid": task.valid}
    checked, kind = {}, task.target
    for name, source in parts.items():
        data = Data(source, f"Task {task.name!r}, {name}")
        kind = kind or data.infer_kind()
        if data.dataset is not None and data.checked is None:
            targets = data.check(example, kind, least=2 if name == "train" else 1)
            kind = targets.kind
            checked[name] = CheckedDataset(data.dataset, example.shape[1:], targets)
    task = replace(task, **checked)  # type: ignore[arg-type]
    train, valid, targets = prepare_data(task, example, torch.Generator().manual_seed(0))
    test = Data(task.test, f"Task {task.name!r}, test")  # type: ignore[arg-type]
    check_targets(test, example, targets)
    counts: DataCounts = {"classes": targets.outputs, "train": len(train), "valid": len(valid), "test": len(test)}
    if targets.kind != "classes":
        counts["target_kind"] = targets.kind
    return task, counts


def fingerprint(source: Source | None) -> str | None:
    """Compute a short digest of some data, from all labels and 64 inputs.

    For a `Dataset` or `DataLoader` it is computed from the number of examples alone, because each would have to be read.
    """
    if source is None:
        return None
    data, digest = Data(source, "data"), hashlib.sha256()
    digest.update(str(len(data)).encode())
    rows = torch.linspace(0, max(0, len(data) - 1), min(64, len(data))).long()
    if data.images is not None:
        images = data.images
        digest.update(repr((images.mean, images.std, images.shape)).encode())
        tensors = [images.targets, images.batch(rows)[0], *([] if images.order is None else [images.order])]
    else:
        tensors = [] if data.tensors is None else [data.tensors[1], data.tensors[0][rows]]
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def check_input(x: Tensor, example: Tensor, first: int = 0) -> str | None:
    """Say what is wrong with a batch of inputs for a model that takes `example`, or return None.

    `first` is the number of the first row, for messages.
    """
    if not isinstance(x, Tensor):
        return f"inputs must be tensors; got {type(x).__name__}. Convert them, for instance with torch.as_tensor."
    kind = describe_unsupported(x)
    if kind:
        return f"inputs are {kind}. Give plain tensors of numbers."
    if x.shape[1:] != example.shape[1:]:
        return f"inputs have shape {tuple(x.shape[1:])}, but the model's example input has {tuple(example.shape[1:])}."
    if x.is_floating_point() != example.is_floating_point():
        return f"inputs are {x.dtype}, but the model's example input is {example.dtype}. Convert and scale them."
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        row = first + int((~torch.isfinite(x.flatten(1)).all(1)).nonzero()[0])
        return f"the input in row {row} holds NaN or infinite values. Remove or repair it."
    return None


def _to_tensor(values: Any, what: str) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DataError(f"{what} cannot be made a tensor: {error}") from error
    kind = describe_unsupported(tensor)
    if kind:
        raise DataError(f"{what} are {kind}. Give plain tensors of numbers.")
    return tensor
