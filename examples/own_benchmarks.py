"""Register a benchmark of your own for `spacecl run`, `compare` and `tune`: tasks, a network and how to train, under a name.

    spacecl run examples/own_benchmarks.py:digit-questions
    spacecl compare examples/own_benchmarks.py:digit-questions --methods space,ewc,stl

A file may register several. In Python, `spacecl.benchmarks.load("digit-questions")` returns the tasks.
"""

from own_tasks import network, tasks

import spacecl

spacecl.benchmarks.register("digit-questions", tasks, network=network, recipe={"epochs": 10, "retrain_epochs": 5, "lr": 0.002})
