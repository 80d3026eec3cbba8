"""The methods: each a frozen dataclass of its hyperparameters with the two functions of `learner.Method`."""

from .finetune import FineTune
from .space import SPACE

METHODS = {method.__name__: method for method in (SPACE, FineTune)}
