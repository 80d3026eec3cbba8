"""Queries of a learner: run the networks of tasks, and infer tasks, all on one state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.images import Preprocessing
from ..data.query_inputs import Query, read_batches, read_query
from ..errors import DataError, TaskError, first_line
from ..inference.task_inference import (
    Identified,
    Predictions,
    accept_features,
    add_confidence,
    compare_features,
    compute_scores,
    extract_features,
    score_features,
)
from ..structure.calling import Inputs, count_rows, list_tensors, select_rows, split_rows
from ..structure.memory_format import run_model
from ..structure.tensors import Tensors
from .objective import ANSWERS
from .state import State

_ROWS = 1024  # in one forward pass


@dataclass(frozen=True)
class Queries:
    """Answers queries from one state, whatever is learned meanwhile."""

    state: State
    device: torch.device
    channels_last: bool

    def read(self, x: Query, what: str, tasks: Sequence[str] | None = None) -> Inputs:
        """The inputs of a query about some tasks, by default all, checked; errors begin with `what`."""
        return read_query(x, self.state.core.blueprint.example, self._pictures(tasks), what)

    def _pictures(self, tasks: Sequence[str] | None) -> list[Preprocessing | None]:
        return [self.state.records[name].pictures for name in (self.state.records if tasks is None else tasks)]

    def logits(self, x: Query, task: str) -> Tensor:
        """The outputs of a task's network, (rows, outputs)."""
        network = self.state.network(task, self.device)
        batches = read_batches(x, self.state.core.blueprint.example, self._pictures([task]), f"Task {task!r}")
        parts = [self.run(network, batch) for batch in batches]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def run(self, network: nn.Module, x: Inputs) -> Tensor:
        """The outputs of a network, on the device of the inputs."""
        try:
            with torch.no_grad():
                parts = [run_model(network, part, self.channels_last) for part in split_rows(x, _ROWS)]
                return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(list_tensors(x)[0].device)
        except (IndexError, RuntimeError) as error:  # above all, tokens outside of its vocabulary
            raise DataError(f"The network cannot read these inputs: {first_line(error)}") from error

    def predict(self, x: Query, task: str) -> Tensor:
        """The class of every row, its labels as zeros and ones, or its values, in the shape that the task was learned with."""
        return self._to_predictions(self.logits(x, task), task)

    def predict_each(self, x: Inputs, tasks: Sequence[str | None]) -> Predictions:
        """The prediction for every row by the network of its task.

        One tensor if all tasks predict the same kind and number of things, with -1 for rows without a task, or NaN among
        values. Otherwise a list with a tensor for every row, and None without a task.
        """
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(tasks):
            if name is not None:
                rows.setdefault(name, []).append(row)
        device, count = list_tensors(x)[0].device, count_rows(x)
        indices = {name: torch.tensor(numbers, device=device) for name, numbers in rows.items()}
        parts = {
            name: self._to_predictions(self.run(self.state.network(name, self.device), select_rows(x, index)), name)
            for name, index in indices.items()
        }
        if not parts:
            return torch.full((count,), -1, device=device)
        if len({(part.dtype, part.shape[1:]) for part in parts.values()}) > 1:
            single = {row: part[n] for name, part in parts.items() for n, row in enumerate(rows[name])}
            return [single.get(row) for row in range(count)]
        like = next(iter(parts.values()))
        missing = float("nan") if like.is_floating_point() else -1
        result = torch.full((count, *like.shape[1:]), missing, dtype=like.dtype, device=device)
        for name, part in parts.items():
            result[indices[name]] = part
        return result

    def _to_predictions(self, outputs: Tensor, task: str) -> Tensor:
        record = self.state.records[task]
        predictions = ANSWERS[record.target_kind].predict(outputs)
        return predictions[:, 0] if record.flat else predictions

    def identify(self, x: Inputs, together: bool) -> Identified:
        """The task of every row, or with `together` one task for all rows."""
        if not self.state.records:
            raise TaskError("No task has been learned yet, so none can be inferred.")
        if not count_rows(x):
            return Identified((), torch.zeros(0, len(self.state.records)))
        names = list(self.state.records)
        features, signatures = extract_features(x), self._signatures(names)
        compared = [compare_features(features, signature) for signature in signatures]
        scores, accepted = (torch.stack(columns, 1) for columns in zip(*compared))
        known = accepted.any(1) & torch.isfinite(scores).all(1)
        if bool(known.any()) and not self.state.method.forgets:  # outputs are those at the time of learning
            likelihoods = scores[known]

            def score(number: int) -> Tensor:
                return add_confidence(likelihoods[:, number], signatures[number], self._energy(x, names[number])[known])

            scores[known] = compute_scores(likelihoods, score, together)
            known &= torch.isfinite(scores).all(1)
        scores = scores.masked_fill(~known[:, None], 0.0)
        if together:  # rows that belong to no task do not count, unless they are the majority
            known = (known.float().mean() >= 0.5).expand(count_rows(x))
            scores = scores.sum(0, keepdim=True).expand_as(scores)
        shares = scores.softmax(1)
        best = zip(known.tolist(), shares.argmax(1).tolist())
        return Identified(tuple(names[number] if is_known else None for is_known, number in best), shares.float())

    def task_scores(self, x: Query, task: str | None) -> Tensor:
        """How well tasks explain inputs, (rows, tasks), or (rows,) of one task."""
        names = list(self.state.records) if task is None else [task]
        for name in names:
            self.state.number(name)
        x = self.read(x, "task_scores()", names)
        scores = self._score(x, names, extract_features(x))
        return scores if task is None else scores[:, 0]

    def accepts(self, x: Query, task: str) -> Tensor:
        """Whether each row lies within the bounds of a task's own inputs."""
        number = self.state.number(task)
        x = self.read(x, "accepts()", [task])
        return accept_features(extract_features(x), self.state.core.tasks[number].signature)

    def _score(self, x: Inputs, names: Sequence[str], features: Tensor) -> Tensor:
        if not names:
            raise TaskError("No task has been learned yet, so none can be scored.")
        energies = (None if self.state.method.forgets else self._energy(x, name) for name in names)
        return torch.stack([score_features(features, *pair) for pair in zip(self._signatures(names), energies)], 1)

    def _signatures(self, names: Sequence[str]) -> list[Tensors]:
        signatures = [self.state.core.tasks[self.state.number(name)].signature for name in names]
        missing = [name for name, signature in zip(names, signatures) if not signature]
        if missing:
            raise TaskError(
                f"Task {missing[0]!r} has no signature of its inputs: an older version of spacecl learned it, or they were not "
                "finite. Give the task's name."
            )
        return signatures

    def _energy(self, x: Inputs, name: str) -> Tensor:
        """How confident a task's network is of its outputs for each row."""
        return ANSWERS[self.state.records[name].target_kind].energy(self.logits(x, name))
