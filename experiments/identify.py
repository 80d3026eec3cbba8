"""Compare ways to infer the task of an input, on the validation data of a finished run; and detect inputs of no task.

    python experiments/identify.py runs/c10 --data ~/data

For each way: the share of rows whose task is inferred correctly, alone and in batches of 8 and 64 rows of one task. Every
task is scored with its own training data and network alone.

    python experiments/identify.py runs/c10 --data ~/data --unknown

The share of rows that `learner.identify` takes for inputs of no task: of every task's own test data, and of inputs that
belong to none. Datasets that are not available are left out.

    python experiments/identify.py runs/c10 --data ~/data --directions

The same for other numbers of leading directions, with a tenth of the training data in place of test data.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from spacecl import Images, Learner
from spacecl.data.prepare import prepare_data
from spacecl.data.sources import find_missing, load
from spacecl.data.task_data import Data
from spacecl.inference import task_inference
from spacecl.inference.task_inference import accept_features, estimate_bounds, extract_features, make_signature, score_features
from spacecl.methods.space.moments import Moments
from spacecl.runs.open_run import OpenRun, open_run
from spacecl.seeds import task_seed

ROWS = 2000  # the most that are used of each task's training data and of its validation data
Score = Callable[[Tensor], Tensor]  # inputs -> how well each fits a task


def first_rows(data: Data) -> tuple[Tensor, Tensor]:
    x, y = data.rows(torch.arange(min(ROWS, len(data))))
    return data.finish(x), y


def head_inputs(learner: Learner, task: str, x: Tensor) -> Tensor:
    """Return what the head of a task's network reads: the input of the layer that runs last."""
    network, inputs = learner.subnet(task), []
    for layer in network.modules():
        if not list(layer.children()):
            layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    with torch.no_grad():
        network(x)
    return inputs[-1].double()


def mahalanobis(rows: Tensor) -> Score:
    """Score by the distance from a Gaussian that is fitted to some rows, with a little shrinkage."""
    moments = Moments(rows.shape[1])
    moments.update(rows)
    covariance = moments.covariance
    covariance += 0.05 * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=covariance.dtype)
    inverse, mean = torch.linalg.inv(covariance), moments.mean
    return lambda x: -(((x.double() - mean) @ inverse) * (x.double() - mean)).sum(1)


def standardize(score: Score, rows: Tensor) -> Score:
    """Standardise a score by its mean and deviation on the task's own data."""
    known = score(rows)
    return lambda x: (score(x) - known.mean()) / known.std().clamp(min=1e-9)


def make_scores(learner: Learner, task: str, x: Tensor) -> dict[str, Score]:
    """Make every score for a task from some of its training examples."""
    logits = lambda rows: learner.logits(rows, task).double()  # noqa: E731
    signature = learner.core.tasks[learner.tasks.index(task)].signature
    highest: Score = lambda rows: logits(rows).softmax(1).amax(1)  # noqa: E731
    entropy: Score = lambda rows: -torch.distributions.Categorical(logits=logits(rows)).entropy()  # noqa: E731
    energy: Score = lambda rows: logits(rows).logsumexp(1)  # noqa: E731
    head, pixels = mahalanobis(head_inputs(learner, task, x)), x.flatten(1)
    deviation, mean = pixels.std(0).clamp(min=1e-3), pixels.mean(0)
    return {
        "largest probability": highest,
        "largest probability, standardised": standardize(highest, x),
        "entropy, standardised": standardize(entropy, x),
        "energy": energy,
        "energy, standardised": standardize(energy, x),
        "Mahalanobis distance of the head's inputs": standardize(lambda rows: head(head_inputs(learner, task, rows)), x),
        "inputs as independent Gaussians": lambda rows: (
            -(((rows.flatten(1) - mean) / deviation).square() / 2 + deviation.log()).sum(1)
        ),
        "signature": lambda rows: score_features(extract_features(rows), signature, None),
        "signature and energy: learner.task_scores": lambda rows: learner.task_scores(rows, task),
    }


def make_unknown_inputs(learner: Learner, tests: Mapping[str, tuple[Data, Tensor]], data: str | None) -> dict[str, Tensor]:
    """Make inputs that belong to no task, by name; most from the tasks' own test inputs."""
    generator = torch.Generator().manual_seed(0)
    shape = learner.example.shape[1:]
    own = torch.cat([x for _, x in tests.values()])
    own = own[torch.randperm(len(own), generator=generator)[:ROWS]]
    shuffled = torch.randperm(own[0].numel(), generator=generator)
    low, high = float(own.min()), float(own.max())
    inputs = {
        "constant, every value between the least and the largest": torch.linspace(low, high, 100)
        .reshape(-1, *[1] * len(shape))
        .expand(-1, *shape),
        "constant, 1,000,000": torch.full((1, *shape), 1e6),
        "noise, normal": torch.randn(ROWS, *shape, generator=generator),
        "noise, uniform between the least and the largest": low + (high - low) * torch.rand(ROWS, *shape, generator=generator),
        "test inputs x 0.1": 0.1 * own,
        "test inputs x 10": 10 * own,
        "test inputs x 1,000": 1000 * own,
        "test inputs as bytes, not normalised": 255 * (own - low) / (high - low),
        "test inputs, pixels in another order": own.flatten(1)[:, shuffled].reshape(-1, *shape),
    }
    images = next(iter(tests.values()))[0].images
    if images is not None and shape == (3, 32, 32):
        for name in ("svhn", "mnist", "cifar10", "cifar100"):
            if not find_missing([name], data) and not any(task.startswith(name) for task in tests):
                pixels = load(name, data).test[0][:ROWS]
                pixels = np.ascontiguousarray(np.broadcast_to(pixels, (len(pixels), 3, *pixels.shape[2:])))  # grey as colours
                rows = np.zeros(len(pixels), np.int64)
                other = Images(pixels, rows, images.mean, images.std, tuple(shape))
                inputs[f"{name}, normalised as the first task"] = other.finish(other.batch(np.arange(len(pixels)))[0])
    return inputs


def print_unknown(run: OpenRun, data: str | None) -> None:
    learner, tests = run.learner(), {}
    for name, task in run.tasks(data).items():
        test = Data(task.test, name)  # type: ignore[arg-type]
        tests[name] = test, first_rows(test)[0]
    print(f"| inputs ({len(tests)} tasks) | rows | taken for unknown | by batches of 64 |\n|---|---|---|---|")
    rows = {f"{name}, test data": x for name, (_, x) in tests.items()} | make_unknown_inputs(learner, tests, data)
    for name, x in rows.items():
        alone = learner.identify(x).unknown.float().mean()
        parts = [learner.identify(part, together=True).unknown.float().mean() for part in x.split(64)]
        print(f"| {name} | {len(x)} | {float(alone):.3f} | {sum(map(float, parts)) / len(parts):.3f} |", flush=True)


def print_directions(run: OpenRun, data: str | None) -> None:
    """Print what other numbers of leading directions would refuse. A tenth of the training data stands for new inputs."""
    learner, parts = run.learner(), []
    for number, (name, task) in enumerate(run.tasks(data).items()):
        train = prepare_data(task, learner.example, torch.Generator().manual_seed(task_seed(learner.seed, number)))[0]
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
        cuts = order.tensor_split([int(0.8 * len(order)), int(0.9 * len(order))])
        fitting, bounding, new = [(train.finish(x), y) for x, y in map(train.rows, cuts)]
        parts.append((learner.logits(fitting[0], name), fitting, bounding[0], new[0]))
    rows = {"new inputs of the tasks": torch.cat([part[3] for part in parts])}
    rows |= make_unknown_inputs(
        learner, {name: (Data((x, x), name), x) for name, x in zip(learner.tasks, (part[3] for part in parts))}, None
    )
    print(f"| directions | {' | '.join(rows)} |\n|{'---|' * (len(rows) + 1)}")
    for task_inference.LEADING in (1, 2, 3, 4):
        signatures = []
        for logits, (x, y), bounding, _ in parts:
            signature = make_signature([(x, y, logits.double().logsumexp(1))], logits.shape[1])
            signatures.append(signature | estimate_bounds([bounding], signature))
        shares = []
        for x in rows.values():
            accepted = torch.stack([accept_features(extract_features(x), signature) for signature in signatures], 1)
            shares.append(f"{1 - float(accepted.any(1).float().mean()):.3f}")
        print(f"| {task_inference.LEADING} | {' | '.join(shares)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data")
    parser.add_argument("--unknown", action="store_true", help="inputs that belong to no task")
    parser.add_argument("--directions", action="store_true", help="other numbers of directions, on training data")
    options = parser.parse_args()
    run = open_run(options.run)
    if options.unknown or options.directions:
        (print_unknown if options.unknown else print_directions)(run, options.data)
        return
    learner, valid, scores = run.learner(), [], {}
    for number, (name, task) in enumerate(run.tasks(options.data).items()):
        seed = torch.Generator().manual_seed(task_seed(learner.seed, number))
        train_data, valid_data, _ = prepare_data(task, learner.example, seed)
        valid.append(first_rows(valid_data)[0])
        scores[name] = make_scores(learner, name, first_rows(train_data)[0])
    print(f"| way ({len(valid)} tasks, {sum(map(len, valid))} rows) | alone | by 8 | by 64 |\n|---|---|---|---|")
    for way in next(iter(scores.values())):
        results = [torch.stack([scores[name][way](x) for name in scores], 1) for x in valid]  # (rows, tasks) each
        shares = []
        for size in (1, 8, 64):
            correct = [part.sum(0).argmax() == number for number, rows in enumerate(results) for part in rows.split(size)]
            shares.append(f"{sum(map(int, correct)) / len(correct):.3f}")
        print(f"| {way} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
