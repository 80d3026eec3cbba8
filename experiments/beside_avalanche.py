"""Fine-tuning and EWC of Avalanche and of spacecl, on the same network, data, batches' size and epochs of P-MNIST.

    python experiments/beside_avalanche.py --data DIR [--tasks 5] [--limit 500] [--epochs 3]

It needs avalanche-lib, which spacecl does not: install both into an environment of their own. Accuracy is the mean over all
tasks after the last one, with the task given. Seconds are processor
time of learning; spacecl's include validation after every epoch, and tracing the network.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress

import torch
from rows import parse_seeds
from torch import Tensor, nn

from spacecl import EWC, FineTune, Learner, Recipe, SpaceWarning, Task
from spacecl.data.benchmarks.networks import NETWORKS
from spacecl.data.benchmarks.streams import load_stream
from spacecl.data.task_data import Data

Part = tuple[Tensor, Tensor]
OPERATORS = (  # of torchvision, which Avalanche imports and which has no compiled part for every build of PyTorch
    *("nms", "qnms", "roi_align", "_roi_align_backward", "qroi_align", "ps_roi_align", "_ps_roi_align_backward"),
    *("roi_pool", "_roi_pool_backward", "ps_roi_pool", "_ps_roi_pool_backward", "deform_conv2d", "_deform_conv2d_backward"),
)


def load_parts(options: argparse.Namespace) -> list[tuple[Part, Part, Part]]:
    """Training, validation and test data of every task as tensors."""
    parts = []
    for task in load_stream("p-mnist", options.data, tasks=options.tasks, limit=options.limit):
        assert task.test is not None
        rest, valid = Data(task.train, "train").split(0.1, torch.Generator().manual_seed(0))
        pixels = [(data, *data.rows(torch.arange(len(data)))) for data in (rest, valid, Data(task.test, "test"))]
        train, valid_part, test = ((data.finish(x).flatten(1).float(), y.long()) for data, x, y in pixels)
        parts.append((train, valid_part, test))
    return parts


def run_spacecl(name: str, parts: Sequence[tuple[Part, Part, Part]], options: argparse.Namespace, seed: int) -> list[float]:
    method = FineTune() if name == "fine-tuning" else EWC(strength=options.strength)
    plain = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0, "schedule": "constant", "keep": "last"}
    recipe = Recipe(epochs=options.epochs, retrain_epochs=0, batch_size=128, **plain)
    torch.manual_seed(seed)
    started = time.process_time()
    learner = Learner(NETWORKS["mlp"]((784,), 10), method, example_input=torch.zeros(1, 784), seed=seed)
    for number, (train, valid, _) in enumerate(parts):
        learner.learn(Task(str(number), train, valid=valid), recipe)
    seconds = time.process_time() - started
    scores = [learner.evaluate(test, str(number)) for number, (_, _, test) in enumerate(parts)]
    return [100 * sum(scores) / len(scores), seconds]


def run_avalanche(name: str, parts: Sequence[tuple[Part, Part, Part]], options: argparse.Namespace, seed: int) -> list[float]:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in OPERATORS:
        with suppress(RuntimeError):  # it is there
            library.define(f"{operator}(Tensor x) -> Tensor")
    from avalanche.benchmarks import tensors_benchmark
    from avalanche.models import MultiHeadClassifier, MultiTaskModule
    from avalanche.training import supervised
    from avalanche.training.plugins import EvaluationPlugin

    class Network(MultiTaskModule):  # type: ignore[misc]
        """The same two hidden layers, with a head for every task."""

        def __init__(self) -> None:
            super().__init__()
            self.trunk = NETWORKS["mlp"]((784,), 10)
            self.trunk.head = nn.Identity()
            self.heads = MultiHeadClassifier(1000, initial_out_features=10)

        def forward(self, x: Tensor, task_labels: Tensor) -> Tensor:
            return self.heads(self.trunk(x), task_labels)

    torch.manual_seed(seed)
    numbers = list(range(len(parts)))
    benchmark = tensors_benchmark(
        train_tensors=[train for train, _, _ in parts], test_tensors=[test for _, _, test in parts], task_labels=numbers
    )
    network = Network()
    common = {
        "model": network,
        "optimizer": torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9),
        "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": 128,
        "train_epochs": options.epochs,
        "eval_mb_size": 256,
        "evaluator": EvaluationPlugin(),
    }
    # its penalty has no factor of a half
    strategy = (
        supervised.Naive(**common) if name == "fine-tuning" else supervised.EWC(ewc_lambda=options.strength / 2, **common)
    )
    started = time.process_time()
    for experience in benchmark.train_stream:
        strategy.train(experience)
    seconds = time.process_time() - started
    network.eval()
    with torch.no_grad():
        scores = [
            float((network(x, torch.full((len(x),), number)).argmax(1) == y).float().mean())
            for number, (_, _, (x, y)) in enumerate(parts)
        ]
    return [100 * sum(scores) / len(scores), seconds]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")
    parser.add_argument("--tasks", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--limit", type=int, default=500, help="images of each class (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--strength", type=float, default=100.0, help="of EWC (default: %(default)s)")
    parser.add_argument("--seeds", type=parse_seeds, default="0", help="such as 0,1,2")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", SpaceWarning)
    parts = load_parts(options)
    print("| method | seed | library | accuracy | seconds |\n|---|---|---|---|---|")
    for seed in options.seeds:
        for name in ("fine-tuning", "EWC"):
            for library, run in (("spacecl", run_spacecl), ("Avalanche", run_avalanche)):
                accuracy, seconds = run(name, parts, options, seed)
                print(f"| {name} | {seed} | {library} | {accuracy:.1f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
