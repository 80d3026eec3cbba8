"""The methods: each a frozen dataclass of its hyperparameters with the functions of `learner.Method`."""

from .ewc import EWC
from .finetune import FineTune
from .hat import HAT
from .joint import Joint
from .lwf import LwF
from .packnet import PackNet
from .space.method import SPACE
from .stl import STL
from .ucb import UCB

METHODS = {method.__name__: method for method in (SPACE, STL, FineTune, LwF, EWC, HAT, PackNet, UCB, Joint)}
