"""Benchmarks by their names: `register` your own, and `load` the tasks of any.

>>> [task.name for task in load("permuted-digits", tasks=2)]
['digits-1', 'digits-2']
"""

from .data.benchmarks.streams import load_stream as load
from .data.registry import register

__all__ = ["load", "register"]
