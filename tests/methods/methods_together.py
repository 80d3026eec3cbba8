"""Run by test_methods.py: two processes learn two tasks together with every method; each writes what it ended with.

python methods_together.py FOLDER
"""

import json
import sys
import warnings

import torch
from lightning_fabric import Fabric
from models import IMAGE, ConvNet, tasks

from spacecl import Learner, Recipe, SpaceWarning, Task
from spacecl.data.task_data import Data
from spacecl.learning.context import TaskContext
from spacecl.learning.core import digest_tensors
from spacecl.learning.trainer import Trainer
from spacecl.methods import METHODS

if __name__ == "__main__":
    warnings.simplefilter("ignore", SpaceWarning)
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    found = {}
    for name, method in METHODS.items():
        torch.manual_seed(0)
        learner = Learner(ConvNet(), method(), example_input=IMAGE, fabric=fabric)
        x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        first, second = tasks(IMAGE, 2, examples=200)
        learner.learn(Task("0", first), Recipe(epochs=2, retrain_epochs=1))
        before = learner.logits(x, "0")
        learner.learn(Task("1", second), Recipe(epochs=2, retrain_epochs=1))
        found[name] = {"digests": learner.verify(), "unchanged": torch.equal(learner.logits(x, "0"), before)}
        found[name]["memory"] = digest_tensors(learner.core.memory)
        job = TaskContext("task", Data(first, "train"), Data(first, "valid"), 3, Trainer(fabric, Recipe(), 0))
        found[name]["seen"] = float(torch.cat(list(job.examples(50))).sum())
    with open(f"{sys.argv[1]}/rank{fabric.global_rank}.json", "w") as file:
        json.dump(found, file)
