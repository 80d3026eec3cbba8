"""Which task an input is like: what a committed task remembers of its inputs, and how well it explains others.

A task's signature is the distribution of a few fixed features of its own training inputs, the same for all tasks, so that
likelihoods can be held against each other: class means and one covariance, with a Student t's heavy tails. To it comes how
sure the task's own network is (its energy), in deviations from what is usual on its own data. docs/deploying.md has the
other ways that were tried, and what each is worth.

An input may belong to no task at all. Likelihood does not tell: a blank image is so smooth that it is as likely as a usual
one. So a task also bounds how far its inputs lie from their class mean, in the few directions in which they vary most and
in all directions together, by what is usual on its validation data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import renamed
from ..structure.channels import Tensors

GRID = 4  # images are looked at in so many by so many parts
FEATURES = 128  # of inputs that are no images, at most
CLASSES = 32  # with more, one mean stands for all
SAMPLES = 5000  # training examples that a signature rests on, at most
_FAINT = 0.05  # below this, how strong an edge is matters little
_FREEDOM = 12.0  # of Student's t: 4 to 30 are alike
_SHRUNK = 0.05  # the least share of the identity in a covariance: tasks with few examples must stay in the running
LEADING = 2  # directions of the most variance that are looked at by themselves
LOST = 0.005  # share of a task's own inputs that each of its two bounds may take for unknown
_INDEPENDENT = 25.0  # features depend on each other: so many of them count as one, or the answers were far too sure


@dataclass(frozen=True)
class Identified:
    """The task of every row, by its name, or None where it belongs to none; and how much each task is to be believed.

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
    """Labels without a task's name given: of every row the label, the task that it is a label of, and how sure that is.

    A row that belongs to no task has the label -1, the task None and 0 for how sure it is.
    """

    labels: Tensor
    tasks: tuple[str | None, ...]
    confidence: Tensor

    sure = renamed("sure", "confidence")


def extract_features(x: Tensor) -> Tensor:
    """Inputs as a few numbers each, in float64: of images colours and edges of every part, of others a projection.

    >>> features(torch.zeros(2, 3, 32, 32)).shape, features(torch.zeros(2, 784)).shape, features(torch.zeros(2, 9)).shape
    (torch.Size([2, 112]), torch.Size([2, 128]), torch.Size([2, 9]))
    """
    if not x.is_floating_point():  # tokens: how often each occurs
        places = (x.flatten(1) % FEATURES).long()
        ones = torch.ones(places.shape, dtype=torch.float64, device=x.device)
        return torch.zeros(len(x), FEATURES, dtype=torch.float64, device=x.device).scatter_add(1, places, ones).sqrt()
    if x.dim() == 4 and min(x.shape[2:]) > GRID:
        a, b, c, d = x[:, :, :-1, :-1], x[:, :, :-1, 1:], x[:, :, 1:, :-1], x[:, :, 1:, 1:]
        strengths = [(one - other).abs().mean(1, keepdim=True) for one, other in ((a, b), (a, c), (a, d), (b, c))]
        edges = [(F.adaptive_avg_pool2d(strength, GRID) + _FAINT).log() for strength in strengths]
        return torch.cat([part.flatten(1) for part in (F.adaptive_avg_pool2d(x, GRID), *edges)], 1).double()
    x = x.flatten(1).double()
    if x.shape[1] <= FEATURES:
        return x
    return x @ _projection(x.shape[1]).to(x.device)


@lru_cache(maxsize=4)
def _projection(size: int) -> Tensor:
    """Directions at right angles, drawn at random and the same every time, (size, features)."""
    drawn = torch.randn(size, FEATURES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0]


def make_signature(examples: Iterable[tuple[Tensor, Tensor, Tensor]], classes: int) -> Tensors:
    """What is to be remembered of a task's inputs: triples of inputs, labels and the task's own logits."""
    found = [(extract_features(x), y, logits.double().logsumexp(1)) for x, y, logits in examples]
    rows, labels, energy = (torch.cat([part[place].cpu() for part in found]) for place in range(3))
    labels = labels.long() if classes <= CLASSES else torch.zeros_like(labels)
    present, labels = labels.unique(return_inverse=True)
    counts = torch.bincount(labels).double()
    means = torch.zeros(len(present), rows.shape[1], dtype=torch.float64).index_add(0, labels, rows) / counts[:, None]
    apart, free = rows - means[labels], max(1, len(rows) - len(present))
    spread = (apart.square().sum(0) / free).sqrt()
    spread = spread.clamp(min=max(1e-6, 1e-3 * float(spread.max())))
    apart = apart / spread
    covariance, identity = apart.mT @ apart / free, torch.eye(rows.shape[1], dtype=torch.float64)
    if not bool(torch.isfinite(covariance).all()):
        return {}  # numbers beyond all bounds: no reason to lose a trained task
    shrink = _shrinkage(apart, covariance)
    mean = covariance.diagonal().mean().clamp(min=1e-9)
    shrunk = (1 - shrink) * covariance + shrink * mean * identity
    root = torch.linalg.inv(torch.linalg.cholesky(shrunk))
    variances, directions = torch.linalg.eigh(shrunk)  # in ascending order
    leading = (directions / variances.clamp(min=1e-12).sqrt())[:, -LEADING:].mT  # (directions, features)
    volume = float(2 * (spread.log().sum() - root.diagonal().log().sum()))
    near = (apart @ root.mT).square().sum(1)
    # The same distances if a row had no part in the means and the covariance: how much better its own rows fit than others.
    weight = (1 - ((1 - shrink) * near / len(rows)).clamp(max=0.95)).reciprocal()
    far = near * weight * (counts / (counts - 1).clamp(min=1))[labels].square()
    flattered = float((_density(near, len(spread)) - _density(far, len(spread))).mean())
    deviation = float(energy.std()) if len(energy) > 1 else 0.0
    lower = torch.tril_indices(len(root), len(root))
    numbers = torch.tensor([volume, flattered, float(energy.mean()), max(deviation, 1e-6)], dtype=torch.float64)
    kept = {"means": means.float(), "spread": spread.float(), "root": root[lower[0], lower[1]].float(), "numbers": numbers}
    kept["leading"] = leading.float()
    return kept if all(bool(torch.isfinite(tensor).all()) for tensor in kept.values()) else {}


def score_features(seen: Tensor, signed: Mapping[str, Tensor], logits: Tensor | None) -> Tensor:
    """How well a task explains features, on a scale that all tasks share; with its logits, how sure its network is, too."""
    size = len(signed["spread"])
    volume, flattered, energy, deviation = signed["numbers"].tolist()
    distances = _distances(seen, signed, _root(signed))
    likely = (_density(distances, size) - volume / 2).logsumexp(1) - math.log(len(signed["means"]))
    found = (likely + flattered / 2) / max(1.0, size / _INDEPENDENT)
    return found if logits is None else found + (logits.double().logsumexp(1).cpu() - energy) / deviation


def find_signature_problems(signed: Mapping[str, Tensor], example: Tensor) -> list[str]:
    """Why a signature, if there is one, cannot be that of inputs like an example, in words."""
    if not signed:
        return []
    size = extract_features(example[:1]).shape[1]
    shapes = {"spread": (size,), "root": (size * (size + 1) // 2,)}
    numbers, means = signed.get("numbers"), signed.get("means")
    fits = all(name in signed and tuple(signed[name].shape) == shape for name, shape in shapes.items())
    fits &= numbers is not None and tuple(numbers.shape) == (4,)
    fits &= means is not None and means.dim() == 2 and len(means) >= 1 and means.shape[1] == size
    fits &= ("leading" in signed) >= ("bounds" in signed)  # neither in learners of version 0.1
    later = {"leading": (min(LEADING, size), size), "bounds": (2,)}
    fits &= all(tuple(signed[name].shape) == shape for name, shape in later.items() if name in signed)
    fits &= all(tensor.is_floating_point() and bool(torch.isfinite(tensor).all()) for tensor in signed.values())
    return [] if fits else ["its signature does not fit the model's inputs"]


def estimate_bounds(inputs: Iterable[Tensor], signed: Mapping[str, Tensor]) -> Tensors:
    """How far nearly all of a task's own inputs lie from their class means, judged by its validation inputs."""
    far = [_strangeness(extract_features(x), signed) for x in inputs if len(x)]
    if not far or "leading" not in signed:
        return {}
    found = torch.tensor([upper_level(column) for column in torch.cat(far).unbind(1)], dtype=torch.float64)
    return {"bounds": found} if bool(torch.isfinite(found).all()) else {}


def accept_features(seen: Tensor, signed: Mapping[str, Tensor]) -> Tensor:
    """Which rows of features a task takes for its own; all of them, if it is of a version that kept no bounds."""
    if "bounds" not in signed:
        return torch.ones(len(seen), dtype=torch.bool)
    return (_strangeness(seen, signed) <= signed["bounds"]).all(1)


def upper_level(values: Tensor, share: float = LOST) -> float:
    """A level that a new value passes with probability `share`, judged by some values.

    Enough values say it themselves, by their rank. Of fewer, the level lies above the largest by what an exponential tail adds.
    """
    values = values.sort(descending=True).values
    rank = math.floor(share * (len(values) + 1))
    if rank:
        return float(values[rank - 1])
    deviation = max(float(values.quantile(0.84) - values.quantile(0.5)), len(values) ** -0.5)  # which a few values cannot tell
    return float(values[0]) + deviation * math.log(1 / (share * (len(values) + 1)))


def _strangeness(seen: Tensor, signed: Mapping[str, Tensor]) -> Tensor:
    """How far rows lie from the nearest class mean, in deviations, (rows, 2): in the leading directions, and in all."""
    roots = signed["leading"].double(), _root(signed)
    return torch.stack([(_distances(seen, signed, root).amin(1) / len(root)).sqrt() for root in roots], 1)


def _root(signed: Mapping[str, Tensor]) -> Tensor:
    """What makes the inputs' covariance the identity, (features, features), lower triangular."""
    size = len(signed["spread"])
    root = torch.zeros(size, size, dtype=torch.float64)
    lower = torch.tril_indices(size, size)
    root[lower[0], lower[1]] = signed["root"].double()
    return root


def _distances(seen: Tensor, signed: Mapping[str, Tensor], root: Tensor) -> Tensor:
    """Squared distances of rows from every class mean, (rows, classes), in the directions of a root of the covariance."""
    spread = signed["spread"].double()
    return torch.cdist((seen.double().cpu() / spread) @ root.mT, (signed["means"].double() / spread) @ root.mT).square()


def _shrinkage(rows: Tensor, covariance: Tensor) -> float:
    """The share of the identity in a covariance that Ledoit and Wolf (2004) ask for."""
    away = (covariance - covariance.diagonal().mean() * torch.eye(len(covariance), dtype=covariance.dtype)).square().sum()
    noise = (rows.square().sum(1).square().mean() - covariance.square().sum()) / len(rows)
    return min(1.0, max(_SHRUNK, float(noise / away.clamp(min=1e-30))))


def _density(distances: Tensor, size: int) -> Tensor:
    """The logarithm of Student's t at squared distances, but for what all tasks share."""
    return -(_FREEDOM + size) / 2 * torch.log1p(distances / (_FREEDOM - 2))
