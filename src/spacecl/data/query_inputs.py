"""Inputs of queries in the forms that users have them: arrays, pictures, and batches of a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..errors import DataError
from ..structure.calling import Inputs, concatenate_rows
from .images import Preprocessing, preprocess
from .inputs import check_input, is_picture, split_pair, to_inputs
from .pictures import to_pixels

Query = Inputs | np.ndarray | Sequence[Any] | Mapping[str, Any] | DataLoader  # what users may give where inputs are expected


def read_query(x: Query, example: Inputs, pictures: Sequence[Preprocessing | None], what: str) -> Inputs:
    """All inputs of a query, checked, as a model reads them.

    Parameters
    ----------
    x : tensors, NumPy arrays, PIL images in a list, bytes of pictures, or a DataLoader.
    example : what the model takes.
    pictures : how pictures become inputs of each of the tasks that the query is about.
    what : what error messages begin with.
    """
    return concatenate_rows(list(read_batches(x, example, pictures, what)))


def read_batches(x: Query, example: Inputs, pictures: Sequence[Preprocessing | None], what: str) -> Iterator[Inputs]:
    """The inputs of a query as `read_query` returns them, one by one for each batch of a DataLoader."""
    batches = (_find_inputs(batch, example, what) for batch in x) if isinstance(x, DataLoader) else [x]
    count = 0
    for batch in batches:
        inputs = _convert(batch, example, pictures, what)
        problem = check_input(inputs, example)
        if problem:
            raise DataError(f"{what}: {problem}")
        count += 1
        yield inputs
    if not count:
        raise DataError(f"{what}: the DataLoader has no batches.")


def _convert(x: Any, example: Inputs, pictures: Sequence[Preprocessing | None], what: str) -> Any:
    """Tensors from arrays, and inputs from pictures; whatever else is wrong is found when the inputs are checked."""
    if is_picture(x):
        x = [x]
    if isinstance(x, list) and x and all(map(is_picture, x)):
        how = _find_preprocessing(pictures, what)
        return preprocess(how, np.stack([to_pixels(picture, how["pixels"]) for picture in x])).to(_floats(example))
    if isinstance(x, (np.ndarray, list)) or (isinstance(x, (tuple, Mapping)) and not isinstance(example, Tensor)):
        x = to_inputs(x, f"{what}: the inputs")
    if isinstance(x, Tensor) and x.dtype == torch.uint8 and any(pictures) and isinstance(example, Tensor):
        how = _find_preprocessing(pictures, what)
        if example.is_floating_point() and list(x.shape[1:]) == how["pixels"]:
            return preprocess(how, x.cpu().numpy()).to(x.device, _floats(example))
    return x


def _floats(example: Inputs) -> torch.dtype:
    return example.dtype if isinstance(example, Tensor) else torch.get_default_dtype()


def _find_preprocessing(pictures: Sequence[Preprocessing | None], what: str) -> Preprocessing:
    first = pictures[0] if pictures else None
    if first is None:
        raise DataError(
            f"{what}: these are pictures, but the task was not taught with spacecl.Images, so it is unknown how they become "
            "its inputs. Convert them as for training, and give tensors."
        )
    if any(other != first for other in pictures):
        raise DataError(f"{what}: the tasks make inputs of pictures in different ways. Name one task, or give tensors.")
    return first


def _find_inputs(batch: Any, example: Inputs, what: str) -> Any:
    """The inputs in a batch of a DataLoader, which may have labels, too."""
    if isinstance(batch, Mapping):
        if isinstance(example, Mapping):
            return {name: batch[name] for name in example if name in batch}
        try:
            return next(iter(batch.values())) if len(batch) == 1 else split_pair(batch)[0]
        except DataError:
            entries = ", ".join(map(str, batch))
            raise DataError(f"{what}: the batches have the entries {entries}. Give a DataLoader of the inputs alone.") from None
    if isinstance(batch, (tuple, list)) and batch:
        several = tuple(batch)
        if isinstance(example, tuple) and len(several) == len(example) and check_input(several, example) is None:
            return several
        x = batch[0]
        return tuple(x) if isinstance(x, list) and isinstance(example, tuple) else x
    return batch
