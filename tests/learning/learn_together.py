"""Run by test_processes.py: some processes learn two tasks together; each writes what it ended with.

python learn_together.py PROCESSES PRECISION FOLDER
"""

import json
import sys

import torch
from lightning_fabric import Fabric
from models import IMAGE, ConvNet, tasks

from spacecl import SPACE, Learner, Recipe, Task
from spacecl.methods.space.moments import Moments

if __name__ == "__main__":
    processes, precision, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=processes, strategy="ddp" if processes > 1 else "auto", precision=precision)
    fabric.launch()
    torch.manual_seed(0)
    learner = Learner(ConvNet(), SPACE(variance=0.9), example_input=IMAGE, fabric=fabric)
    x, before = torch.randn(5, 3, 8, 8), {}
    for number, data in enumerate(tasks(IMAGE, 2, examples=300)):
        learner.learn(Task(str(number), data), Recipe(epochs=2, retrain_epochs=1))
        before[str(number)] = learner.logits(x, str(number))
    learner.save(f"{folder}/model-{processes}-{precision}")
    loaded = Learner.load(f"{folder}/model-{processes}-{precision}", ConvNet())  # without this Fabric
    rows = torch.randn(90, 4, generator=torch.Generator().manual_seed(3)) + torch.arange(90)[:, None] / 9
    moments = Moments(4)
    moments.update(rows[fabric.global_rank * 60 : (fabric.global_rank + 1) * 60] if processes > 1 else rows)  # 60 rows and 30
    moments.reduce(fabric)
    found = {
        "moments": [moments.count, moments.mean.tolist(), moments.covariance.tolist()],
        "processes": fabric.world_size,
        "widths": [dict(record.widths) for record in learner.records.values()],
        "samples": [dict(record.samples) for record in learner.records.values()],
        "accuracy": [record.accuracy for record in learner.records.values()],
        "digests": learner.verify(),
        "unchanged": all(torch.equal(learner.logits(x, name), logits) for name, logits in before.items()),
        "unchanged_elsewhere": all(torch.equal(loaded.logits(x, name), logits) for name, logits in before.items()),
    }
    with open(f"{folder}/{processes}-{precision}-rank{fabric.global_rank}.json", "w") as file:
        json.dump(found, file)
