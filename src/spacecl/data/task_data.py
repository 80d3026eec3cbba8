"""A task's data as batches, whatever its form, and the checks that it must pass before training."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, Subset, TensorDataset
from typing_extensions import NotRequired, TypedDict

from ..errors import DataError
from ..structure.blueprint import describe_unsupported
from ..structure.calling import Inputs, count_rows, list_tensors, select_rows, split_rows
from ..validation import show
from .datasets import BatchReader, Indexed, find_labels, replace_transform
from .images import Images
from .inputs import PICTURES, Keys, check_input, collate_examples, name_row, split_pair, to_batch, to_inputs, to_tensor
from .targets import TargetKind, Targets, find_misfit, find_target_problem, infer_kind
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
    """The number of classes, labels or values of a task, and of examples in each part of its data."""

    classes: int
    target_kind: NotRequired[TargetKind]  # classes, if it is missing
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
        self.kind: TargetKind | None = None  # of the targets, once that is known
        self.shape: torch.Size | None = None  # of one target, once that is known
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
    def recipe_values(self) -> dict[str, Any]:
        """What the form of the data decides of a recipe: a DataLoader keeps its batch size, and pictures can be shifted."""
        if self.loader is not None:
            return {"batch_size": max(1, -(-len(self) // max(1, len(self.loader))))}
        return {"augment": "shift"} if self.images is not None and self.images.can_be_shifted else {}

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
        kind = self.kind or self._infer_kind(y)
        problem = find_target_problem(y, kind, rows) or check_input(x, self.example, rows)
        if problem is None and self.images is None and count_rows(x) != len(y):  # of images, one stands for all
            problem = f"{count_rows(x)} inputs, but {len(y)} labels in one batch; give one label per input."
        if problem is None and len(y) and self.shape is not None and y.shape[1:] != self.shape:
            row = name_row(0, rows)
            problem = f"the targets of row {row} have the shape {tuple(y.shape[1:])}; those before have {tuple(self.shape)}."
        if problem is None and len(y) and kind == "classes":
            problem = self._find_label_problem(y)
        _refuse(problem, self.what)
        if len(y):
            self.kind, self.shape = kind, y.shape[1:]

    def _find_label_problem(self, y: Tensor) -> str | None:
        misfit = self.classes and find_misfit(Targets("classes", int(y.max()) + 1), Targets("classes", self.classes))
        if misfit:
            return f"{misfit} Number the task's own classes from 0, or give classes=..."
        return f"the label {int(y.min())} is negative; labels count from 0." if int(y.min()) < 0 else None

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

    def check(self, example: Inputs, least: int = 2, kind: TargetKind | None = None, classes: int | None = None) -> Targets:
        """Compare examples with what the model takes, and return what the targets are. At least `least` examples are needed.

        The `kind` of the targets is inferred if it is not given. Of classes there are as many as the largest label says.

        Of a dataset or a loader only some examples are read if the number of `classes` is given, if the labels are in an
        attribute, or if there are no classes: all others are checked when they are read. Otherwise every example is read.
        """
        self.example, self.kind, self.shape, self.classes = example, kind, None, classes
        if self.tensors is not None:
            counts = {len(tensor) if tensor.dim() else -1 for tensor in list_tensors(self.tensors[0])}
            if not self.tensors[1].dim() or counts != {len(self.tensors[1])}:
                inputs, shape = " or ".join(map(str, sorted(counts))).replace("-1", "no"), tuple(self.tensors[1].shape)
                raise DataError(f"{self.what}: {inputs} inputs, but labels of shape {shape}; give one label per input.")
        if len(self) < least:
            raise DataError(f"{self.what}: {len(self)} examples; at least {least} are needed.")
        if self.targets is not None:
            self.kind = kind or self._infer_kind(self.targets)
        if self.images is not None:
            self._check_batch((self.finish(self.images.batch([0])[0]), self.images.targets), 0)  # bytes cannot hold NaN
            return self._summarize(self.images.targets)
        known = None if classes is not None or kind not in (None, "classes") else self._find_labels()
        if classes is None and known is None:
            return self._summarize(self._read_targets(self.batches(_ROWS), least))
        rows, some = self._sample()
        read = self._read_targets(some, 1)
        if known is None or self.kind != "classes":
            return self._summarize(read)
        if not bool(torch.isin(read, known).all()) or (rows is not None and not torch.equal(read, known[rows])):
            return self._summarize(self._read_targets(self.batches(_ROWS), least))  # the attribute says something else
        return self._summarize(known)

    def _summarize(self, y: Tensor) -> Targets:
        """What the targets are, given those that were read."""
        if self.kind == "classes":
            return Targets(self.kind, int(y.max()) + 1)
        assert self.kind is not None
        assert self.shape is not None
        return Targets(self.kind, self.shape.numel(), flat=not self.shape)

    def _read_targets(self, batches: Iterator[Batch], least: int) -> Tensor:
        """Read the targets of at least so many examples, which are checked; all labels, if these are classes."""
        targets, count = [], 0
        with self._keep_generators():
            for x, y in batches:
                if self.tensors is not None:  # other data are checked as they are read
                    self._check_batch((x, y), count)
                if len(y):
                    targets.append(y.to("cpu", torch.int64) if self.kind == "classes" else y.cpu())
                count += len(y)
                if self.tensors is None and self.kind not in (None, "classes") and count >= least:
                    break  # the first examples say how many labels or values there are
        if count < least:
            raise DataError(f"{self.what}: {count} examples; at least {least} are needed.")
        return torch.cat(targets)

    @contextmanager
    def _keep_generators(self) -> Iterator[None]:
        """Let the generators of a user's DataLoader end as they began."""
        states = [(generator, generator.get_state()) for generator in self.generators()]
        yield
        for generator, state in states:
            generator.set_state(state)

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

    def _infer_kind(self, y: Any) -> TargetKind:
        if not isinstance(y, Tensor) or describe_unsupported(y):
            return "classes"  # which is refused for the right reason
        return self._explain(lambda: infer_kind(y))

    @property
    def targets(self) -> Tensor | None:
        """All targets, if they are at hand without reading every example."""
        return self.images.targets if self.images is not None else None if self.tensors is None else self.tensors[1]

    def sample_targets(self, count: int, generator: torch.Generator) -> Tensor:
        """All targets if they are at hand; otherwise those of `count` random examples."""
        if self.targets is not None:
            return self.targets
        parts: list[Tensor] = []
        with self._keep_generators():
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


def prepare_data(task: Task, example: Inputs, generator: torch.Generator) -> tuple[Data, Data, Targets]:
    """Check a task's data, and return its training data, its validation data and what it predicts."""
    train, valid = open_data(task, "train"), None if task.valid is None else open_data(task, "valid")
    given = None if task.classes is None else task.class_count(0)
    seen = train.check(example, kind=task.target, classes=given)
    if valid is None:
        train, valid = train.split(0.1, generator, task.valid_transform)
        if len(train) < 2:
            raise DataError(f"Task {task.name!r}: {len(train)} examples are left to train on. Give more, or validation data.")
        if task.valid_transform is not None:
            valid.check(example, least=1, kind=seen.kind, classes=task.class_count(seen.outputs - 1))
    else:
        others = valid.check(example, least=1, kind=seen.kind, classes=given)
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
    train.classes = valid.classes = classes
    return train, valid, Targets("classes", classes)


def check_targets(data: Data, example: Inputs, known: Targets) -> None:
    """Check data that a network for `known` targets is to be evaluated on."""
    classes = known.outputs if known.kind == "classes" else None
    _refuse(find_misfit(data.check(example, least=1, kind=known.kind, classes=classes), known), data.what)


def _refuse(problem: str | None, what: str) -> None:
    if problem:
        raise DataError(f"{what}: {problem}")


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
