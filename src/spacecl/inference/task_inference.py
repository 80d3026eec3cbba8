"""Task inference: what a committed task remembers of its inputs, and how well it explains others.

A task's *signature* is the distribution of a few fixed features of its own training inputs. The features are the same for all
tasks, so that likelihoods can be compared: class means and one covariance, with the heavy tails of Student's t. To the
likelihood comes the confidence of the task's own network (its energy), in standard deviations from the usual on its own
data. docs/deploying.md has the alternatives that were tried, with their results.

An input may belong to no task at all. Likelihood does not show it: a blank image is so smooth that it is as likely as a usual
one. So a task also bounds how far its inputs are from their class mean, in the few directions in which they vary most and
in all directions together. Both bounds are estimated on its validation data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import renamed
from ..structure.calling import Inputs, count_rows, list_tensors
from ..structure.tensors import Tensors

GRID = 4  # images are divided into GRID x GRID parts
FEATURES = 128  # at most, of inputs that are not images
CLASSES = 32  # with more classes, one mean is used for all
SAMPLES = 5000  # training examples, at most, that a signature is computed from
LEADING = 2  # directions of the most variance that are bounded separately
REJECTION_RATE = 0.005  # share of a task's own inputs that each of its two bounds may reject
_WEAK_EDGE = 0.05  # differences between edges weaker than this count little
_DEGREES_OF_FREEDOM = 12.0  # of Student's t: results are similar from 4 to 30
_MIN_SHRINKAGE = 0.05  # of a covariance towards the identity, so that tasks with few examples can compete
MAX_ENERGY = 3.0  # deviations; inputs of another scale make networks far more confident than their own, which is no evidence
MARGIN = 52.0  # between scores, in nats: what is this much less likely adds nothing to float64 shares of 100,000 tasks
_FEATURES_PER_INDEPENDENT = 25.0  # features depend on each other; without this, confidence would be far too high


Predictions = Tensor | list[Tensor | None]  # a row for each input


@dataclass(frozen=True)
class Identified:
    """The inferred task of every row, or None where it belongs to no task, and the scores of all tasks.

    `scores` has a row for each input and a column for each task, and every row adds up to 1: it compares the tasks with each
    other, whether or not the row belongs to one of them.
    """

    tasks: tuple[str | None, ...]
    scores: Tensor  # (rows, tasks)

    @property
    def unknown(self) -> Tensor:
        """For every row, whether it is unlike the inputs of all tasks."""
        return torch.tensor([task is None for task in self.tasks], dtype=torch.bool)

    @property
    def confidence(self) -> Tensor:
        """For every row, the score of its task, and 0 where it has none."""
        return self.scores.amax(1).masked_fill(self.unknown, 0.0)

    sure = renamed("sure", "confidence")


@dataclass(frozen=True)
class Inferred:
    """Predictions without a given task: that of every row, the task whose prediction it is, and the confidence in that task.

    A row that belongs to no task has the label -1 (NaN among values), the task None and the confidence 0. Where tasks predict
    different things, `labels` is a list with a tensor or None for each row.
    """

    labels: Predictions
    tasks: tuple[str | None, ...]
    confidence: Tensor

    sure = renamed("sure", "confidence")


@dataclass(frozen=True)
class Signature:
    """The distribution of a task's features, and the usual energy of its network's logits."""

    means: Tensor  # (classes, features)
    spread: Tensor  # (features,): the features' standard deviations around their class means
    root: Tensor  # (features, features), lower triangular: it turns the covariance of the scaled features into the identity
    volume: float  # log-determinant of the covariance
    optimism: float  # how much better the training rows fit than new rows would, in log-density
    energy_mean: float
    energy_deviation: float
    leading: Tensor | None = None  # (directions, features); None in learners of version 0.1
    bounds: Tensor | None = None  # (2,): the largest outlier scores of inputs that the task accepts

    def to_tensors(self) -> Tensors:
        """The tensors that are stored. All but a few numbers are float32."""
        lower = _lower_triangle(len(self.root))
        numbers = [self.volume, self.optimism, self.energy_mean, self.energy_deviation]
        tensors = {
            "means": self.means.float(),
            "spread": self.spread.float(),
            "root": self.root[lower[0], lower[1]].float(),
            "numbers": torch.tensor(numbers, dtype=torch.float64),
        }
        if self.leading is not None:
            tensors["leading"] = self.leading.float()
        return tensors

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Signature:
        """A signature from its stored tensors, in float64."""
        size = len(tensors["spread"])
        root = torch.zeros(size, size, dtype=torch.float64)
        lower = _lower_triangle(size)
        root[lower[0], lower[1]] = tensors["root"].double()
        volume, optimism, energy_mean, energy_deviation = tensors["numbers"].tolist()
        return Signature(
            means=tensors["means"].double(),
            spread=tensors["spread"].double(),
            root=root,
            volume=volume,
            optimism=optimism,
            energy_mean=energy_mean,
            energy_deviation=energy_deviation,
            leading=tensors["leading"].double() if "leading" in tensors else None,
            bounds=tensors.get("bounds"),
        )


def extract_features(inputs: Inputs) -> Tensor:
    """Reduce inputs to a few numbers each, in float64: colours and edges of an image's parts, a projection of other inputs.

    The features of several inputs stand side by side.

    >>> for shape in ((2, 3, 32, 32), (2, 784), (2, 9)):
    ...     print(extract_features(torch.zeros(shape)).shape)
    torch.Size([2, 112])
    torch.Size([2, 128])
    torch.Size([2, 9])
    >>> extract_features({"ids": torch.ones(2, 50, dtype=torch.int64), "pixels": torch.zeros(2, 784)}).shape
    torch.Size([2, 128])
    """
    tensors = list_tensors(inputs)
    return torch.cat([_extract(tensor, FEATURES // min(len(tensors), FEATURES)) for tensor in tensors], 1)


def _extract(x: Tensor, size: int) -> Tensor:
    """The features of one input: those of an image, or at most `size`."""
    if not x.is_floating_point():  # tokens: the root of how often each occurs
        columns = _flatten(x).long() % size
        ones = torch.ones(columns.shape, dtype=torch.float64, device=x.device)
        return torch.zeros(len(x), size, dtype=torch.float64, device=x.device).scatter_add(1, columns, ones).sqrt()
    if x.dim() == 4 and min(x.shape[2:]) > GRID:
        a, b, c, d = x[:, :, :-1, :-1], x[:, :, :-1, 1:], x[:, :, 1:, :-1], x[:, :, 1:, 1:]
        strengths = [(one - other).abs().mean(1, keepdim=True) for one, other in ((a, b), (a, c), (a, d), (b, c))]
        edges = [(F.adaptive_avg_pool2d(strength, GRID) + _WEAK_EDGE).log() for strength in strengths]
        return torch.cat([part.flatten(1) for part in (F.adaptive_avg_pool2d(x, GRID), *edges)], 1).double()
    x = _flatten(x).double()
    if x.shape[1] <= size:
        return x
    return x @ _projection(x.shape[1], size).to(x.device)


def _flatten(x: Tensor) -> Tensor:
    """The values of every row in one dimension, of which an input with a single number for each row has none."""
    return x.flatten(1) if x.dim() > 1 else x[:, None]


@lru_cache(maxsize=4)
def _lower_triangle(size: int) -> Tensor:
    """Rows and columns of the elements of a lower triangular matrix, (2, elements)."""
    return torch.tril_indices(size, size)


@lru_cache(maxsize=4)
def _projection(size: int, features: int) -> Tensor:
    """Random orthogonal directions, the same every time, (size, features)."""
    directions = torch.randn(size, features, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.linalg.qr(directions)[0]


def make_signature(examples: Iterable[tuple[Inputs, Tensor, Tensor]], classes: int) -> Tensors:
    """Compute a task's signature from triples of inputs, their classes and the energy of the network's outputs for each.

    Returns the tensors to store; empty if the inputs are so large that no covariance is finite.
    """
    parts = [(extract_features(x), y, energy.double()) for x, y, energy in examples]
    rows, labels, energy = (torch.cat([part[index].cpu() for part in parts]) for index in range(3))
    labels = labels.long() if classes <= CLASSES else torch.zeros_like(labels)
    present, labels = labels.unique(return_inverse=True)
    counts = torch.bincount(labels).double()
    means = torch.zeros(len(present), rows.shape[1], dtype=torch.float64).index_add(0, labels, rows) / counts[:, None]
    residuals, freedom = rows - means[labels], max(1, len(rows) - len(present))
    spread = (residuals.square().sum(0) / freedom).sqrt()
    spread = spread.clamp(min=max(1e-6, 1e-3 * float(spread.max())))
    residuals = residuals / spread
    covariance, identity = residuals.mT @ residuals / freedom, torch.eye(rows.shape[1], dtype=torch.float64)
    if not bool(torch.isfinite(covariance).all()):
        return {}  # which is no reason to lose a trained task
    shrinkage = _estimate_shrinkage(residuals, covariance)
    mean = covariance.diagonal().mean().clamp(min=1e-9)
    covariance = (1 - shrinkage) * covariance + shrinkage * mean * identity
    root = torch.linalg.inv(torch.linalg.cholesky(covariance))
    variances, directions = torch.linalg.eigh(covariance)  # in ascending order
    leading = (directions / variances.clamp(min=1e-12).sqrt())[:, -LEADING:].mT  # (directions, features)
    distances = (residuals @ root.mT).square().sum(1)
    # The same distances if each row were left out of the means and the covariance. The difference is the optimism.
    weight = (1 - ((1 - shrinkage) * distances / len(rows)).clamp(max=0.95)).reciprocal()
    left_out = distances * weight * (counts / (counts - 1).clamp(min=1))[labels].square()
    deviation = float(energy.std()) if len(energy) > 1 else 0.0
    tensors = Signature(
        means=means,
        spread=spread,
        root=root,
        volume=float(2 * (spread.log().sum() - root.diagonal().log().sum())),
        optimism=float((_log_density(distances, len(spread)) - _log_density(left_out, len(spread))).mean()),
        energy_mean=float(energy.mean()),
        energy_deviation=max(deviation, 1e-6),
        leading=leading,
    ).to_tensors()
    return tensors if all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()) else {}


def compare_features(features: Tensor, signature: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """How well a task's signature alone explains each row of features, and whether the row may belong to the task."""
    task = Signature.from_tensors(signature)
    distances = _squared_distances(features, task, task.root)
    return _compute_likelihood(distances, task), _is_within_bounds(features, task, distances)


def score_features(features: Tensor, signature: Mapping[str, Tensor], energy: Tensor | None) -> Tensor:
    """Score how well a task explains features, on a scale that all tasks share.

    With the energy of the task's network for each row, its confidence counts, too.
    """
    task = Signature.from_tensors(signature)
    likelihood = _compute_likelihood(_squared_distances(features, task, task.root), task)
    return likelihood if energy is None else add_confidence(likelihood, signature, energy)


def _compute_likelihood(distances: Tensor, task: Signature) -> Tensor:
    size = len(task.spread)
    log_densities = _log_density(distances, size) - task.volume / 2  # (rows, classes)
    likelihood = log_densities.logsumexp(1) - math.log(len(task.means))
    return (likelihood + task.optimism / 2) / max(1.0, size / _FEATURES_PER_INDEPENDENT)


def add_confidence(likelihood: Tensor, signature: Mapping[str, Tensor], energy: Tensor) -> Tensor:
    """The score of each row by the likelihood of its features and the energy of the task's network."""
    mean, deviation = signature["numbers"].tolist()[2:]
    return likelihood + ((energy.double().cpu() - mean) / deviation).clamp(max=MAX_ENERGY)


def compute_scores(likelihoods: Tensor, score: Callable[[int], Tensor], together: bool) -> Tensor:
    """The scores of rows and tasks, (rows, tasks), from their likelihoods, without running networks that cannot matter.

    `score(number)` runs the network of a task. No confidence adds more than MAX_ENERGY to a likelihood, so this much bounds a
    score. Where even this bound is MARGIN below the score of the likeliest task, of the row or `together` of the sum of all
    rows, the bound stands for the score: it is less than a part in 10^22 of any share. What a row gets does not depend on
    the other rows.
    """
    bounds = likelihoods + MAX_ENERGY
    scores, number_of_tasks = bounds.clone(), likelihoods.shape[1]
    pool = (lambda rows: rows.sum(0, keepdim=True)) if together else (lambda rows: rows)
    likeliest = pool(likelihoods).argmax(1)
    ran = likeliest.unique().tolist()
    for number in ran:
        scores[:, number] = score(number)
    best = pool(scores).gather(1, likeliest[:, None])
    matters = ~(pool(bounds) < best - MARGIN)  # what is not finite does
    matters[torch.arange(len(matters)), likeliest] = True
    if not bool(torch.isfinite(scores[:, ran]).all()):
        matters[:] = True
    for number in range(number_of_tasks):
        if bool(matters[:, number].any()) and number not in ran:
            scores[:, number] = score(number)
    return torch.where(matters, scores, bounds)


def find_signature_problems(signature: Mapping[str, Tensor], example: Inputs) -> list[str]:
    """List why stored tensors cannot be a signature of inputs like an example. A task without a signature has no problem."""
    if not signature:
        return []
    size = extract_features(example).shape[1]
    shapes = {"spread": (size,), "root": (size * (size + 1) // 2,)}
    numbers, means = signature.get("numbers"), signature.get("means")
    fits = all(name in signature and tuple(signature[name].shape) == shape for name, shape in shapes.items())
    fits &= numbers is not None and tuple(numbers.shape) == (4,)
    fits &= means is not None and means.dim() == 2 and len(means) >= 1 and means.shape[1] == size
    fits &= ("leading" in signature) >= ("bounds" in signature)  # learners of version 0.1 have neither
    optional = {"leading": (min(LEADING, size), size), "bounds": (2,)}
    fits &= all(tuple(signature[name].shape) == shape for name, shape in optional.items() if name in signature)
    fits &= all(tensor.is_floating_point() and bool(torch.isfinite(tensor).all()) for tensor in signature.values())
    return [] if fits else ["its signature does not fit the model's inputs"]


def estimate_bounds(inputs: Iterable[Inputs], signature: Mapping[str, Tensor]) -> Tensors:
    """Estimate from validation inputs how far nearly all of a task's inputs are from their class means.

    Returns the tensor to add to the stored signature; nothing without inputs or from version 0.1.
    """
    if "leading" not in signature:
        return {}
    task = Signature.from_tensors(signature)
    rows = [extract_features(x) for x in inputs if count_rows(x)]
    scores = [_score_outliers(features, task, _squared_distances(features, task, task.root)) for features in rows]
    if not scores:
        return {}
    bounds = torch.tensor([estimate_quantile(column) for column in torch.cat(scores).unbind(1)], dtype=torch.float64)
    return {"bounds": bounds} if bool(torch.isfinite(bounds).all()) else {}


def accept_features(features: Tensor, signature: Mapping[str, Tensor]) -> Tensor:
    """Whether each row of features may belong to a task; always, if its signature is of version 0.1 and has no bounds."""
    if "bounds" not in signature:
        return torch.ones(len(features), dtype=torch.bool)
    task = Signature.from_tensors(signature)
    return _is_within_bounds(features, task, _squared_distances(features, task, task.root))


def _is_within_bounds(features: Tensor, task: Signature, distances: Tensor) -> Tensor:
    if task.bounds is None:
        return torch.ones(len(features), dtype=torch.bool)
    return (_score_outliers(features, task, distances) <= task.bounds).all(1)


def estimate_quantile(values: Tensor, share: float = REJECTION_RATE) -> float:
    """Estimate the level that a new value exceeds with probability `share`.

    With enough values, it is one of them, by its rank. With fewer, it is above the largest, by as much as the tail of an
    exponential distribution adds.
    """
    values = values.sort(descending=True).values
    rank = math.floor(share * (len(values) + 1))
    if rank:
        return float(values[rank - 1])
    deviation = max(float(values.quantile(0.84) - values.quantile(0.5)), len(values) ** -0.5)  # a few values may be too close
    return float(values[0]) + deviation * math.log(1 / (share * (len(values) + 1)))


def _score_outliers(features: Tensor, task: Signature, distances: Tensor) -> Tensor:
    """Distances of rows from the nearest class mean, in deviations, (rows, 2): in the leading directions and in all.

    `distances` are the squared ones from every class mean in all directions.
    """
    parts = [] if task.leading is None else [(_squared_distances(features, task, task.leading), len(task.leading))]
    return torch.stack([(part.amin(1) / size).sqrt() for part, size in [*parts, (distances, len(task.root))]], 1)


def _squared_distances(features: Tensor, task: Signature, root: Tensor) -> Tensor:
    """Squared distances of rows from every class mean, (rows, classes), in the directions of `root`."""
    return torch.cdist((features.double().cpu() / task.spread) @ root.mT, (task.means / task.spread) @ root.mT).square()


def _estimate_shrinkage(rows: Tensor, covariance: Tensor) -> float:
    """The share of the identity in a shrunk covariance, by Ledoit and Wolf (2004)."""
    # Not sklearn's ledoit_wolf_shrinkage(): it divides the covariance by n, not by the degrees of freedom; up to 7 % off here.
    distance = (covariance - covariance.diagonal().mean() * torch.eye(len(covariance), dtype=covariance.dtype)).square().sum()
    noise = (rows.square().sum(1).square().mean() - covariance.square().sum()) / len(rows)
    return min(1.0, max(_MIN_SHRINKAGE, float(noise / distance.clamp(min=1e-30))))


def _log_density(distances: Tensor, size: int) -> Tensor:
    """The log-density of Student's t at squared distances, without the constant that all tasks share."""
    return -(_DEGREES_OF_FREEDOM + size) / 2 * torch.log1p(distances / (_DEGREES_OF_FREEDOM - 2))
