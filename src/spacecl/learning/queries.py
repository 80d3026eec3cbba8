"""Queries of a learner: run the networks of tasks, and infer tasks, all on one state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.task_data import check_input
from ..errors import DataError, TaskError, first_line
from ..inference.task_inference import Identified, Predictions, accept_features, extract_features, score_features
from ..structure.memory_format import run_model
from .objective import ANSWERS
from .state import State

_ROWS = 1024  # in one forward pass


@dataclass(frozen=True)
class Queries:
    """Answers queries from one state, whatever is learned meanwhile."""

    state: State
    device: torch.device
    channels_last: bool

    def check_input(self, x: Tensor, what: str) -> None:
        problem = check_input(x, self.state.core.blueprint.example)
        if problem:
            raise DataError(f"{what}: {problem}")

    def logits(self, x: Tensor, task: str) -> Tensor:
        """The outputs of a task's network, (rows, outputs)."""
        network = self.state.network(task, self.device)
        self.check_input(x, f"Task {task!r}")
        return self.run(network, x)

    def run(self, network: nn.Module, x: Tensor) -> Tensor:
        """The outputs of a network, on the device of the inputs."""
        try:
            with torch.no_grad():
                parts = [run_model(network, part, self.channels_last) for part in x.split(_ROWS)]
                return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(x.device)
        except (IndexError, RuntimeError) as error:  # above all, tokens outside of its vocabulary
            raise DataError(f"The network cannot read these inputs: {first_line(error)}") from error

    def predict(self, x: Tensor, task: str) -> Tensor:
        """The class of every row, its labels as zeros and ones, or its values, in the shape that the task was learned with."""
        return self._to_predictions(self.logits(x, task), task)

    def predict_each(self, x: Tensor, tasks: Sequence[str | None]) -> Predictions:
        """The prediction for every row by the network of its task.

        One tensor if all tasks predict the same kind and number of things, with -1 for rows without a task, or NaN among
        values. Otherwise a list with a tensor for every row, and None without a task.
        """
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(tasks):
            if name is not None:
                rows.setdefault(name, []).append(row)
        parts = {
            name: self._to_predictions(self.run(self.state.network(name, self.device), x[numbers]), name)
            for name, numbers in rows.items()
        }
        if not parts:
            return torch.full((len(x),), -1, device=x.device)
        if len({(part.dtype, part.shape[1:]) for part in parts.values()}) > 1:
            single = {row: part[n] for name, part in parts.items() for n, row in enumerate(rows[name])}
            return [single.get(row) for row in range(len(x))]
        like = next(iter(parts.values()))
        missing = float("nan") if like.is_floating_point() else -1
        result = torch.full((len(x), *like.shape[1:]), missing, dtype=like.dtype, device=x.device)
        for name, part in parts.items():
            result[rows[name]] = part
        return result

    def _to_predictions(self, outputs: Tensor, task: str) -> Tensor:
        record = self.state.records[task]
        predictions = ANSWERS[record.target_kind].predict(outputs)
        return predictions[:, 0] if record.flat else predictions

    def identify(self, x: Tensor, together: bool) -> Identified:
        """The task of every row, or with `together` one task for all rows."""
        if not self.state.records:
            raise TaskError("No task has been learned yet, so none can be inferred.")
        self.check_input(x, "identify()")
        if not len(x):
            return Identified((), torch.zeros(0, len(self.state.records)))
        names = list(self.state.records)
        features = extract_features(x)
        scores = self._score(x, names, features)
        accepted = torch.stack([accept_features(features, task.signature) for task in self.state.core.tasks], 1)
        known = accepted.any(1) & torch.isfinite(scores).all(1)
        scores = scores.masked_fill(~known[:, None], 0.0)
        if together:  # rows that belong to no task do not count, unless they are the majority
            known = (known.float().mean() >= 0.5).expand(len(x))
            scores = scores.sum(0, keepdim=True).expand_as(scores)
        shares = scores.softmax(1)
        best = zip(known.tolist(), shares.argmax(1).tolist())
        return Identified(tuple(names[number] if is_known else None for is_known, number in best), shares.float())

    def task_scores(self, x: Tensor, task: str | None) -> Tensor:
        """How well tasks explain inputs, (rows, tasks), or (rows,) of one task."""
        self.check_input(x, "task_scores()")
        scores = self._score(x, list(self.state.records) if task is None else [task], extract_features(x))
        return scores if task is None else scores[:, 0]

    def accepts(self, x: Tensor, task: str) -> Tensor:
        """Whether each row lies within the bounds of a task's own inputs."""
        number = self.state.number(task)
        self.check_input(x, "accepts()")
        return accept_features(extract_features(x), self.state.core.tasks[number].signature)

    def _score(self, x: Tensor, names: Sequence[str], features: Tensor) -> Tensor:
        if not names:
            raise TaskError("No task has been learned yet, so none can be scored.")
        numbers = [self.state.number(name) for name in names]
        signatures = [self.state.core.tasks[number].signature for number in numbers]
        missing = [name for name, signature in zip(names, signatures) if not signature]
        if missing:
            raise TaskError(
                f"Task {missing[0]!r} has no signature of its inputs: an older version of spacecl learned it, or they were not "
                "finite. Give the task's name."
            )
        scores = []
        for name, signature in zip(names, signatures):
            changed = self.state.method.forgets  # then outputs are not comparable with those at the time of learning
            answers = ANSWERS[self.state.records[name].target_kind]
            scores.append(score_features(features, signature, None if changed else answers.energy(self.logits(x, name))))
        return torch.stack(scores, 1)
