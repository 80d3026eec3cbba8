"""A task's data as batches, whatever its form, and the checks that it must pass before training."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol, TypedDict

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset, TensorDataset

from ..errors import DataError
from ..structure.blueprint import describe_unsupported
from ..structure.calling import Inputs, count_rows, list_tensors, select_rows, split_rows
from .datasets import BatchReader, Indexed, find_labels, replace_transform
from .images import Images
from .inputs import PICTURES, Keys, check_input, collate_examples, split_pair, to_batch, to_inputs, to_tensor
from .task import Batch, Source, Task

_SAMPLE = 64  # examples of a dataset that are read before training, where the number of classes is known
_ROWS = 256  # of a dataset that are checked at a time


class Batches(Protocol):
    """What the training loop needs of data: `Data` has it, and methods may give their own."""

    def batches(self, size: int, order: torch.Generator | None = None) -> Iterator[Batch]: ...

    def finish(self, x: Inputs) -> Inputs: ...

    def steps(self, size: int) -> int: ...

    def generators(self) -> list[torch.Generator]: ...


class DataCounts(TypedDict):
    """The number of classes of a task, and of examples in each part of its data."""

    classes: int
    train: int
    valid: int
    test: int


class Data:
    """Examples as batches: tensors and images are indexed, datasets and loaders are read as they are needed.

    Errors begin with `what`, such as "Task 'birds', train". `keys` and `collate` are those of a `Task`.

    Every batch of a dataset or loader is checked when it is read, once `check` has said what the model takes.
    """

    def __init__(self, source: Source, what: str, keys: Keys | None = None, collate: Callable[[list[Any]], Any] | None = None):
        self.what, self.keys, self.collate = what, keys, collate
        self.tensors: Batch | None = None
        self.images: Images | None = None
        self.loader: DataLoader | None = None
        self.dataset: Indexed | None = None
        self.numbers = torch.arange(0)  # of the dataset's examples that these data have
        self.workers = 0  # processes that read a dataset
        self.example: Inputs | None = None  # what the model takes, once that is known
        self.classes: int | None = None  # how many there are, once that is known
        if isinstance(source, TensorDataset) and len(getattr(source, "tensors", ())) == 2:
            source = source.tensors  # type: ignore[assignment]
        kind = source.dataset if isinstance(source, DataLoader) else source
        if isinstance(kind, IterableDataset):
            raise DataError(f"{what}: a dataset that can only be iterated cannot be used. Give one that can be indexed.")
        if isinstance(source, Images):
            self.images = source
        elif isinstance(source, DataLoader):
            self.loader = source
        elif isinstance(source, Mapping) or (isinstance(source, (tuple, list)) and len(source) == 2):
            x, y = self._explain(lambda: split_pair(source, keys))
            self.tensors = to_inputs(x, f"{what}: the inputs"), to_tensor(y, f"{what}: the labels")
        elif isinstance(source, Indexed) and not isinstance(source, (str, bytes)) and not _is_table(source):
            self.dataset, self.numbers = source, torch.arange(self._count(source))
        elif hasattr(source, "__getitem__") and not hasattr(source, "__len__"):
            raise DataError(f"{what}: a dataset without a length cannot be used. Give one that can be indexed.")
        else:
            raise DataError(f"{what}: expected a pair (x, y), Images, a Dataset or a DataLoader; got {type(source).__name__}.")

    def _count(self, dataset: Any) -> int:
        try:
            return len(dataset)
        except TypeError as error:  # torch's own datasets have a __len__ that says that they have none
            raise DataError(f"{self.what}: a dataset without a length cannot be used. Give one that can be indexed.") from error

    def _explain(self, convert: Callable[[], Any]) -> Any:
        """The result of a function, whose errors then say which data they are about."""
        try:
            return convert()
        except DataError as error:
            raise DataError(f"{self.what}: {error}") from error

    def __len__(self) -> int:
        if self.tensors is not None:
            return count_rows(self.tensors[0])
        if self.images is not None:
            return len(self.images)
        return len(self.numbers) if self.loader is None else self._count(self.loader.dataset)

    @property
    def batch_size(self) -> int | None:
        """The examples in a batch of a DataLoader, which keeps its own; None for other data."""
        return None if self.loader is None else max(1, -(-len(self) // max(1, len(self.loader))))

    @property
    def source(self) -> Source:
        """The examples in a form that a `Task` takes."""
        if self.dataset is not None and len(self.numbers) < len(self.dataset):
            return Subset(self.dataset, self.numbers.tolist())  # type: ignore[arg-type]
        sources = (self.tensors, self.images, self.loader, self.dataset)
        return next(source for source in sources if source is not None)

    def batches(self, size: int, order: torch.Generator | None = None) -> Iterator[Batch]:
        """Yield all examples in batches of `size`, shuffled by `order` if given. A DataLoader keeps its own size and order.

        Images are bytes: move them to the device first, then convert them with `finish`.
        """
        if self.loader is not None:
            yield from self._read_loader()
            return
        count = len(self)
        if not count:
            return
        indices = torch.arange(count) if order is None else torch.randperm(count, generator=order)
        if self.dataset is not None:
            yield from self._read_dataset(indices.split(size), self.workers)
        elif self.tensors is not None and order is None:
            yield from zip(split_rows(self.tensors[0], size), self.tensors[1].split(size))
        else:
            yield from (self.rows(part) for part in indices.split(size))

    def rows(self, indices: Tensor) -> Batch:
        """Return some examples by number. A DataLoader does not have this."""
        if self.images is not None:
            return self.images.batch(indices)
        if self.tensors is not None:
            return select_rows(self.tensors[0], indices), self.tensors[1][indices]
        return next(self._read_dataset([indices]))

    def _read_dataset(self, parts: Sequence[Tensor], workers: int = 0) -> Iterator[Batch]:
        """Yield batches of some examples of the dataset, checked."""
        assert self.dataset is not None
        numbers = [self.numbers[part] for part in parts]
        for part, batch in zip(numbers, BatchReader(self.dataset, self._collate).read(numbers, workers)):
            if isinstance(batch, DataError):
                raise DataError(f"{self.what}: {batch}")
            self._check_batch(batch, part)
            yield batch

    def _read_loader(self) -> Iterator[Batch]:
        """Yield the batches of the user's loader, checked. Errors of the user's own dataset are not caught."""
        assert self.loader is not None
        count = 0
        try:
            for values in self.loader:
                batch = self._explain(lambda values=values: to_batch(values, self.keys))  # type: ignore[misc]
                self._check_batch(batch, count)
                yield batch
                count += len(batch[1])
        except TypeError as error:
            if "PIL." not in str(error):  # as default_collate names them
                raise
            raise DataError(f"{self.what}: {PICTURES}") from error

    def _collate(self, examples: list[Any]) -> Any:
        """Put single examples into a batch, by the user's function if there is one."""
        if self.collate is None:
            return collate_examples(examples, self.keys)
        return to_batch(self.collate(examples), self.keys)

    def _check_batch(self, batch: tuple[Any, Any], rows: int | Tensor) -> None:
        """Raise an error if a batch is not what the model takes, as far as that is known."""
        if self.example is None:
            return
        x, y = batch
        problem = _find_problem(x, y, self.example, rows)
        if problem is None and self.images is None and count_rows(x) != len(y):  # of images, one stands for all
            problem = f"{count_rows(x)} inputs, but {len(y)} labels in one batch; give one label per input."
        if problem is None and self.classes is not None and len(y) and int(y.max()) >= self.classes:
            problem = (
                f"the label {int(y.max())} is outside its {self.classes} classes, 0 to {self.classes - 1}. "
                "Number the task's own classes from 0, or give classes=..."
            )
        if problem is None and len(y) and int(y.min()) < 0:
            problem = f"the label {int(y.min())} is negative; labels count from 0."
        if problem:
            raise DataError(f"{self.what}: {problem}")

    def finish(self, x: Inputs) -> Inputs:
        """Convert the inputs of a batch to what the network reads."""
        if self.images is None:
            return x
        assert isinstance(x, Tensor)
        return self.images.finish(x)

    def steps(self, size: int) -> int:
        """Return the number of batches of `size` in one epoch."""
        return len(self.loader) if self.loader is not None else -(-len(self) // size)

    def split(self, share: float, generator: torch.Generator, transform: Any = None) -> tuple[Data, Data]:
        """Split the data at random into the rest and a `share` of it, which is read with another `transform`, if given."""
        if self.loader is not None:
            raise DataError(f"{self.what}: a DataLoader cannot be split. Give validation data with valid=...")
        order = torch.randperm(len(self), generator=generator)
        cut = max(1, round(share * len(order)))
        rest, part = self._select(order[cut:].sort().values), self._select(order[:cut].sort().values)
        if transform is not None:
            if self.dataset is None:
                raise DataError(f"{self.what}: valid_transform is for datasets with a transform of their own. Leave it out.")
            part.dataset = self._explain(lambda: replace_transform(self.dataset, transform))
        return rest, part

    def _select(self, rows: Tensor) -> Data:
        """Some of the examples, by number."""
        part = copy.copy(self)
        if self.images is not None:
            part.images = self.images.subset(rows)
        elif self.tensors is not None:
            part.tensors = self.rows(rows)
        else:
            part.numbers = self.numbers[rows]
        return part

    def check(self, example: Inputs, least: int = 2, classes: int | None = None) -> int:
        """Compare examples with what the model takes, and return the largest label. At least `least` examples are needed.

        Of a dataset or a loader only some examples are read if the number of `classes` is given, or if the labels are in an
        attribute: all others are checked when they are read. Otherwise every example is read.
        """
        self.example, self.classes = example, classes
        if self.tensors is not None:
            counts = {len(tensor) if tensor.dim() else -1 for tensor in list_tensors(self.tensors[0])}
            if self.tensors[1].dim() != 1 or counts != {len(self.tensors[1])}:
                inputs, shape = " or ".join(map(str, sorted(counts))).replace("-1", "no"), tuple(self.tensors[1].shape)
                raise DataError(f"{self.what}: {inputs} inputs, but labels of shape {shape}; give one label per input.")
        if len(self) < least:
            raise DataError(f"{self.what}: {len(self)} examples; at least {least} are needed.")
        if self.images is not None:
            self._check_batch((self.finish(self.images.batch([0])[0]), self.images.targets), 0)  # bytes cannot hold NaN
            return int(self.images.targets.max())
        known = None if classes is not None else self._find_labels()
        if classes is None and known is None:
            return int(self._read_labels(self.batches(_ROWS), least).max())
        rows, some = self._sample()
        read = self._read_labels(some, 1)
        if known is None:
            return int(read.max())
        if not bool(torch.isin(read, known).all()) or (rows is not None and not torch.equal(read, known[rows])):
            return int(self._read_labels(self.batches(_ROWS), least).max())  # the attribute says something else
        return int(known.max())

    def _read_labels(self, batches: Iterator[Batch], least: int) -> Tensor:
        """Read the labels of at least so many examples, which are checked. The user's generators end as they began."""
        states = [(generator, generator.get_state()) for generator in self.generators()]
        labels, count = [torch.zeros(0, dtype=torch.int64)], 0
        for x, y in batches:
            if self.tensors is not None:  # other data are checked as they are read
                self._check_batch((x, y), count)
            labels.append(y.to("cpu", torch.int64))
            count += len(y)
        for generator, state in states:
            generator.set_state(state)
        if count < least:
            raise DataError(f"{self.what}: {count} examples; at least {least} are needed.")
        return torch.cat(labels)

    def _sample(self) -> tuple[Tensor | None, Iterator[Batch]]:
        """Some examples of a dataset, with their numbers, or the first batch of a loader; all tensors."""
        if self.tensors is not None:
            return None, self.batches(_ROWS)
        if self.loader is not None:
            return None, islice(self.batches(_ROWS), 1)
        rows = torch.linspace(0, len(self) - 1, min(_SAMPLE, len(self))).long()
        return rows, self._read_dataset([rows])

    def _find_labels(self) -> Tensor | None:
        """The labels of the examples as far as an attribute of the dataset has them."""
        if self.dataset is not None:
            labels = find_labels(self.dataset)
            labels = None if labels is None else labels[self.numbers]
            if labels is not None and int(labels.min()) < 0:
                raise DataError(f"{self.what}: the label {int(labels.min())} is negative; labels count from 0.")
            return labels
        if self.loader is not None and type(self.loader.sampler) in (RandomSampler, SequentialSampler):
            return find_labels(self.loader.dataset)
        return None

    def generators(self) -> list[torch.Generator]:
        """Return the random generators that a user's DataLoader draws from, in addition to torch's own."""
        parts = () if self.loader is None else (self.loader, self.loader.sampler, self.loader.batch_sampler)
        generators = [getattr(part, "generator", None) for part in parts]
        return list({id(generator): generator for generator in generators if isinstance(generator, torch.Generator)}.values())

    def first(self) -> Inputs:
        """Return the inputs of the first batch."""
        batch = next(self.batches(1), None)
        if batch is None:
            raise DataError(f"{self.what}: there are no examples.")
        x = batch[0]
        for tensor in x.values() if isinstance(x, Mapping) else x if isinstance(x, tuple) else (x,):
            if not isinstance(tensor, Tensor):
                raise DataError(f"{self.what}: inputs must be tensors; got {type(tensor).__name__}.")
        return x


def _is_table(source: Any) -> bool:
    """Whether something is a single array, or a data frame, whose rows have other names than their numbers."""
    return hasattr(source, "dtype") or hasattr(source, "iloc")


def open_data(task: Task, part: str) -> Data:
    """The training, validation or test data of a task: `part` is "train", "valid" or "test"."""
    return Data(getattr(task, part), f"Task {task.name!r}, {part}", task.keys, task.collate)


def prepare_data(task: Task, example: Inputs, generator: torch.Generator) -> tuple[Data, Data, int]:
    """Check a task's data, and return its training data, validation data and number of classes."""
    train, valid = open_data(task, "train"), None if task.valid is None else open_data(task, "valid")
    given = None if task.classes is None else task.class_count(0)
    largest = train.check(example, classes=given)
    if valid is None:
        train, valid = train.split(0.1, generator, task.valid_transform)
        if len(train) < 2:
            raise DataError(f"Task {task.name!r}: {len(train)} examples are left to train on. Give more, or validation data.")
        if task.valid_transform is not None:
            valid.check(example, least=1, classes=task.class_count(largest))
    else:
        largest = max(largest, valid.check(example, least=1, classes=given))
    classes, count = task.class_count(largest), len(train) + len(valid)
    if task.classes is None and classes > count:  # a single wrong label must not make a head of a million classes
        raise DataError(
            f"Task {task.name!r}: the label {largest} needs {classes:,} classes, but there are {count:,} examples, so most "
            "classes would have none. Number the task's own classes from 0, or give classes=..."
        )
    train.classes = valid.classes = classes
    return train, valid, classes


def check_all_data(task: Task, example: Inputs) -> tuple[Task, DataCounts]:
    """Check all of a task's data, test data included, and count its classes and examples.

    Returns the task with its number of classes, for which datasets need not be read again, and the counts.
    """
    train, valid, classes = prepare_data(task, example, torch.Generator().manual_seed(0))
    test = open_data(task, "test")
    test.check(example, least=1, classes=classes)
    counts: DataCounts = {"classes": classes, "train": len(train), "valid": len(valid), "test": len(test)}
    return replace(task, classes=task.class_names or classes), counts


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


def _find_problem(x: Any, y: Any, example: Inputs, rows: int | Tensor) -> str | None:
    kind = describe_unsupported(y) if isinstance(y, Tensor) else None
    if kind or not isinstance(y, Tensor) or y.is_floating_point() or y.dtype == torch.bool or y.dim() != 1:
        shape = f"{kind or y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        return f"labels must be whole numbers, one per example; got {shape}."
    return check_input(x, example, rows)
