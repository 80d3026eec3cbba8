"""A task's data as batches, whatever its form, each of which is checked when it is read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from ..errors import DataError
from ..structure.blueprint import describe_unsupported
from ..structure.calling import Inputs, count_rows, select_rows, split_rows
from .datasets import BatchReader, Indexed, find_source_problem, replace_transform, suggest_source
from .images import Images
from .inputs import PICTURES, Keys, check_input, collate_examples, name_row, split_pair, to_batch, to_inputs, to_tensor
from .targets import TargetKind, Targets, find_misfit, find_target_problem, infer_kind
from .task import Batch, Source, Task


class Batches(Protocol):
    """What the training loop needs of data: `Data` has it, and methods may give their own."""

    def batches(self, size: int, order: torch.Generator | None = None) -> Iterator[Batch]: ...

    def finish(self, x: Inputs) -> Inputs: ...

    def steps(self, size: int) -> int: ...

    def generators(self) -> list[torch.Generator]: ...


class Data:
    """Examples as batches: tensors and images are indexed, datasets and loaders are read as they are needed.

    Errors begin with `what`, such as "Task 'birds', train". `keys` and `collate` are those of a `Task`.

    Every batch of a dataset or loader is checked when it is read, once `expect` has said what the model takes.
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
        refuse(find_source_problem(source), what)
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
            expected = "expected a pair (x, y), Images, a Dataset or a DataLoader"
            raise DataError(f"{what}: {expected}; got {type(source).__name__}.{suggest_source(source)}")

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
            self.check_batch(batch, part)
            yield batch

    def _read_loader(self) -> Iterator[Batch]:
        """Yield the batches of the user's loader, checked. Errors of the user's own dataset are not caught."""
        assert self.loader is not None
        count = 0
        try:
            for values in self.loader:
                batch = self._explain(lambda values=values: to_batch(values, self.keys))  # type: ignore[misc]
                self.check_batch(batch, count)
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

    def check_batch(self, batch: tuple[Any, Any], rows: int | Tensor) -> None:
        """Raise an error if a batch is not what the model takes, as far as that is known."""
        if self.example is None:
            return
        x, y = batch
        kind = self.kind or self.infer_kind(y)
        problem = find_target_problem(y, kind, rows) or check_input(x, self.example, rows)
        if problem is None and self.images is None and count_rows(x) != len(y):  # of images, one stands for all
            problem = f"{count_rows(x)} inputs, but {len(y)} labels in one batch; give one label per input."
        if problem is None and len(y) and self.shape is not None and y.shape[1:] != self.shape:
            row = name_row(0, rows)
            problem = f"the targets of row {row} have the shape {tuple(y.shape[1:])}; those before have {tuple(self.shape)}."
        if problem is None and len(y) and kind == "classes":
            problem = self._find_label_problem(y)
        refuse(problem, self.what)
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

    def expect(self, example: Inputs, kind: TargetKind | None, classes: int | None) -> None:
        """Say what the model takes. From now on, every batch is compared with it when it is read."""
        self.example, self.kind, self.shape, self.classes = example, kind, None, classes

    @contextmanager
    def keep_generators(self) -> Iterator[None]:
        """Let the generators of a user's DataLoader end as they began."""
        states = [(generator, generator.get_state()) for generator in self.generators()]
        yield
        for generator, state in states:
            generator.set_state(state)

    def infer_kind(self, y: Any) -> TargetKind:
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
        with self.keep_generators():
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


def refuse(problem: str | None, what: str) -> None:
    """Raise an error that begins with `what`, if there is a problem."""
    if problem:
        raise DataError(f"{what}: {problem}")
