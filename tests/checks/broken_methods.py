"""Methods with one fault each, which a check must find."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from spacecl import Learned, Method
from spacecl.options import option, options


def train(core, task, **settings):
    module = core.blueprint.build(core.initial_tensors(task.classes))
    return module, task.trainer.fit(module, task.train, task.valid, **settings)


def replace_weights(core, module, history):
    return Learned(core.replace_weights(core.blueprint.extract_tensors(module)), history)


@dataclass(frozen=True)
class Forgetful(Method):
    """Forgets, and does not say so."""

    def learn(self, core, task):
        return replace_weights(core, *train(core, task))


@dataclass(frozen=True)
class Pessimist(Method):
    """Says that it forgets, and does not."""

    forgets = True

    def learn(self, core, task):
        module, history = train(core, task, freeze=core.frozen_positions("subnet"))
        return Learned(core.commit(core.blueprint.extract_tensors(module), core.channels.all_units()), history)


@dataclass(frozen=True)
class Unseeded(Method):
    """Depends on the time."""

    forgets = True

    def learn(self, core, task):
        module, history = train(core, task)
        with torch.no_grad():
            next(module.parameters()).add_(time.time() % 1)
        return replace_weights(core, module, history)


@dataclass(frozen=True)
class Tireless(Method):
    """Trains twice, in two phases, and plans for one."""

    forgets = True

    def learn(self, core, task):
        module, history = train(core, task)
        history += task.trainer.fit(module, task.train, task.valid, phase="again")
        return replace_weights(core, module, history)


@dataclass(frozen=True)
class Repetitive(Method):
    """Has two phases of the same name, so that a checkpoint of one is taken for the other."""

    forgets = True

    def plan(self, recipe, tasks_before):
        return {"train": recipe.epochs, "again": recipe.epochs}

    def learn(self, core, task):
        module, history = train(core, task)
        history += task.trainer.fit(module, task.train, task.valid)
        return replace_weights(core, module, history)


@dataclass(frozen=True)
class Untrained(Method):
    """Commits what it began with."""

    forgets = True

    def learn(self, core, task):
        tensors = core.initial_tensors(task.classes)
        module = core.blueprint.build({name: tensor.clone() for name, tensor in tensors.items()})
        history = task.trainer.fit(module, task.train, task.valid)
        return Learned(core.replace_weights({name: tensor + 0.01 for name, tensor in tensors.items()}), history)


@dataclass(frozen=True)
class OneTrack(Method):
    """Says that it learns values, and has the loss of classes."""

    forgets = True
    target_kinds = ("classes", "values")

    def learn(self, core, task):
        return replace_weights(core, *train(core, task, make_loss=lambda module: one_track_loss))


def one_track_loss(module, x, y):
    return torch.nn.functional.cross_entropy(module(x), y.float() if y.dim() == 2 else y)


@dataclass(frozen=True)
class Boastful(Forgetful):
    """Says that it learns what nobody does."""

    target_kinds = ("classes", "boxes")


@dataclass(frozen=True)
class Thawing(Method):
    """Trains what the user froze."""

    forgets = True

    def learn(self, core, task):
        module = core.blueprint.build(core.initial_tensors(task.classes))
        module.requires_grad_(True)
        return replace_weights(core, module, task.trainer.fit(module, task.train, task.valid))


@dataclass(frozen=True)
class Lonely(Method):
    """Every process keeps something else."""

    forgets = True

    def learn(self, core, task):
        learned = replace_weights(core, *train(core, task))
        memory = {"rank": torch.tensor(float(task.trainer.fabric.global_rank))}
        return replace(learned, core=replace(learned.core, memory=memory))


@options
class Careless(Forgetful):
    """Takes anything as its option."""

    pace: Any = option(default=1.0, help="anything")


@options
class Silent(Forgetful):
    pace: float = option(default=1.0, help="")


@dataclass(frozen=True)
class Plain(Forgetful):
    """A plain dataclass, whose options Python does not check."""

    pace: float = 1.0


@dataclass(frozen=True)
class Crashing(Method):
    """Has a mistake in it."""

    def learn(self, core, task):
        return core.no_such_thing
