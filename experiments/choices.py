"""What each choice of SPACE brings: the paper's, then one change after another, on the same tasks, seed and recipe.

    SPACECL_DATA=... python experiments/choices.py split-cifar10
    SPACECL_DATA=... python experiments/choices.py p-mnist --tasks 10 --images 20000 --epochs 4 --retrain 8

Every row is printed when it is done and kept in --out, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from datasets import network, stream

import spacecl

PAPER = {"activations": "pre", "selection": "first", "freeze": "filters", "compensate": False}
ROWS = {  # name: (choices, whether the thresholds are those for activations after the ReLU)
    "paper": (PAPER, False),
    "+ pivoted": (PAPER | {"selection": "pivoted"}, False),
    "+ subnet": (PAPER | {"selection": "pivoted", "freeze": "subnet"}, False),
    "+ compensate": (PAPER | {"selection": "pivoted", "freeze": "subnet", "compensate": True}, False),
    "+ post (default)": ({}, True),
    "default, not compensated": ({"compensate": False}, True),
    "default, first filters": ({"selection": "first"}, True),
    "default, filters frozen": ({"freeze": "filters"}, True),
    "default, no projection": ({"projection": False}, True),
}
THRESHOLDS = {"split-cifar10": ((0.995, 0.95), (0.95, 0.85)), "p-mnist": ((0.999, 0.995), (0.92, 0.92))}


def run(benchmark: str, options: dict, variance: tuple[float, float], args: argparse.Namespace) -> dict:
    first = {"hidden1" if benchmark == "p-mnist" else "conv1": variance[0], "*": variance[1]}
    torch.manual_seed(args.seed)
    method = spacecl.SPACE(variance=first, samples=args.samples, **options)
    shape = (1, 3, 32, 32) if benchmark == "split-cifar10" else (1, 784)
    learner = spacecl.Learner(network(benchmark), method, example_input=torch.zeros(shape), seed=args.seed)
    recipe = spacecl.Recipe(
        epochs=args.epochs, batch_size=64, optimizer="sgd", lr=args.lr, retrain_epochs=args.retrain, weight_decay=args.decay
    )
    started, tests = time.perf_counter(), []
    for task, test in stream(benchmark, args.tasks, args.images, args.seed):
        learner.learn(task, recipe)
        tests.append((task.name, test))
    seconds = time.perf_counter() - started
    accuracy = [learner.evaluate(test, name) for name, test in tests]
    last = learner.records[tests[-1][0]]
    return {
        "accuracy": sum(accuracy) / len(accuracy),
        "last": accuracy[-1],
        "size": learner.size,
        "seconds": seconds,
        "widths": [list(record.widths.values()) for record in learner.records.values()],
        "explained": dict(last.explained),
        "per task": accuracy,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=list(THRESHOLDS))
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--images", type=int, default=3000, help="training images a task, validation included")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--retrain", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--decay", type=float, default=0.0)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", nargs="*", help="names of rows, or parts of them")
    parser.add_argument("--pre", type=float, nargs=2, help="thresholds of the first layer and the others, before the ReLU")
    parser.add_argument("--post", type=float, nargs=2, help="the same after the ReLU")
    parser.add_argument("--out", type=Path, default=Path("runs/choices.jsonl"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    pre, post = THRESHOLDS[args.benchmark]
    pre, post = tuple(args.pre or pre), tuple(args.post or post)
    print(
        f"{args.benchmark}: {args.tasks} tasks, {args.images} images, {args.epochs} + {args.retrain} epochs, seed {args.seed}"
    )
    print(f"{'choices':28} {'variance':>14} {'accuracy':>9} {'last':>7} {'size':>6} {'seconds':>8}  widths of the last task")
    for name, (options, after) in ROWS.items():
        if args.rows and not any(part in name for part in args.rows):
            continue
        variance = post if after else pre
        key = {k: v for k, v in vars(args).items() if k not in ("rows", "out", "pre", "post")} | {
            "row": name,
            "variance": list(variance),
        }
        row = next((entry for entry in done if entry["key"] == key), None)
        if row is None:
            row = {"key": key, "result": run(args.benchmark, options, variance, args)}
            with args.out.open("a") as stream_out:
                stream_out.write(json.dumps(row) + "\n")
        found = row["result"]
        print(
            f"{name:28} {variance[0]:6.3f}, {variance[1]:5.3f} {found['accuracy']:9.2%} {found['last']:7.2%} "
            f"{found['size']:6.3f} {found['seconds']:8.0f}  {'-'.join(map(str, found['widths'][-1]))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
