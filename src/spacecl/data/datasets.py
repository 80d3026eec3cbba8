"""Datasets of users: whatever has a length and examples by number, read in batches, by several processes if need be."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from ..errors import DataError
from ..seeds import use_cpu_seed


@runtime_checkable
class Indexed(Protocol):
    """A dataset: it has a length, and examples by number from 0."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class BatchReader:
    """Reads batches of a dataset, each with a seed of its own: whoever reads it, random transforms draw the same numbers."""

    def __init__(self, dataset: Indexed, collate: Callable[[list[Any]], Any]):
        self.dataset, self.collate = dataset, collate

    def __getitem__(self, request: tuple[int, list[int]]) -> Any:
        """The batch of some examples; a DataError is returned, because a DataLoader would put its traceback into it."""
        seed, numbers = request
        with use_cpu_seed(seed):
            read_many = getattr(self.dataset, "__getitems__", None)
            examples = [self.dataset[number] for number in numbers] if read_many is None else read_many(numbers)
            try:
                return self.collate(examples)
            except DataError as error:
                return error

    def read(self, batches: Sequence[Tensor], workers: int) -> Iterator[Any]:
        """Yield the batches of these examples in order, read by so many processes; with 0, by this one.

        One number is drawn from torch's generator, however many processes there are, and the seeds follow from it.
        """
        first = int(torch.empty((), dtype=torch.int64).random_())
        requests = [((first + number) % 2**63, part.tolist()) for number, part in enumerate(batches)]
        if not workers:
            yield from map(self.__getitem__, requests)
            return
        yield from DataLoader(
            self,  # type: ignore[arg-type]
            batch_size=None,
            sampler=requests,  # type: ignore[arg-type]
            num_workers=min(workers, len(requests)),
            collate_fn=_return,
            generator=torch.Generator(),  # in place of torch's own
        )


def _return(batch: Any) -> Any:
    return batch


def find_source_problem(source: Any) -> str | None:
    """Say what to give in place of several datasets or loaders, or return None if these are not what there is.

    >>> find_source_problem({"train": Dataset(), "test": Dataset()})
    'there are several datasets: train, test. Give each by itself, such as Task(name, data["train"], ...).'
    """
    parts = source.values() if isinstance(source, Mapping) else source if isinstance(source, (list, tuple)) else ()
    if not any(isinstance(part, (Dataset, DataLoader)) or hasattr(part, "__getitems__") for part in parts):
        return None
    if isinstance(source, Mapping):  # such as a DatasetDict
        names = ", ".join(map(str, source))
        return f'there are several datasets: {names}. Give each by itself, such as Task(name, data["train"], ...).'
    return f"a {type(source).__name__} of datasets or loaders. Give one; torch.utils.data.ConcatDataset joins datasets."


def suggest_source(source: Any) -> str:
    """What to give in place of an object that is no data but has some: a sentence that begins with a space, or nothing."""
    if hasattr(source, "train_dataloader"):  # a data module of Lightning
        return " Give its train_dataloader(), and its val_dataloader() with valid=..."
    if isinstance(getattr(source, "loader", None), DataLoader):  # what timm wraps its loaders in
        return " Give the DataLoader that it wraps, without a prefetcher (in timm: create_loader(..., use_prefetcher=False))."
    return ""


def find_labels(dataset: Any) -> Tensor | None:
    """The labels of a dataset that has them in an attribute, as those of torchvision do, without reading any example.

    >>> from torch.utils.data import TensorDataset
    >>> dataset = TensorDataset(torch.zeros(3, 2))
    >>> dataset.targets = [0, 2, 1]
    >>> find_labels(Subset(dataset, [2, 1]))
    tensor([1, 2])
    """
    if isinstance(dataset, Subset):
        labels = find_labels(dataset.dataset)
        return None if labels is None else labels[torch.as_tensor(dataset.indices, dtype=torch.int64)]
    if getattr(dataset, "target_transform", None) is not None:
        return None
    for name in ("targets", "labels"):
        values = getattr(dataset, name, None)
        if isinstance(values, (list, tuple, np.ndarray, Tensor)) and len(values) == len(dataset):
            try:
                labels = torch.as_tensor(values)
            except (TypeError, ValueError, RuntimeError, OverflowError):
                continue
            if labels.dim() == 1 and labels.dtype in _INTEGERS:
                return labels.to(torch.int64)
    return None


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def replace_transform(dataset: Any, transform: Callable[[Any], Any]) -> Any:
    """The same dataset with another transform, as those of torchvision (an attribute) and Hugging Face (a function) have."""
    if isinstance(dataset, Subset):
        return Subset(replace_transform(dataset.dataset, transform), dataset.indices)
    if hasattr(dataset, "with_transform"):
        return dataset.with_transform(transform)
    if not hasattr(dataset, "transform"):
        raise DataError(
            f"valid_transform replaces the attribute `transform` of a dataset, but a {type(dataset).__name__} has none. "
            "Give the validation data as a dataset of its own: Task(..., valid=...)."
        )
    result = copy.copy(dataset)
    result.transform = transform
    if hasattr(getattr(result, "transforms", None), "transform"):  # torchvision has it there, too
        result.transforms = copy.copy(result.transforms)
        result.transforms.transform = transform
    return result
