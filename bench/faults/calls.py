"""Odd calls of the public functions: every parameter of each of them with values that nobody should pass.

A call must return a result, or raise an error that spacecl raises on purpose, with a sentence; and the committed task of the
learner must keep its bits. Python's own errors about unknown or missing arguments count as refusals, and so do errors of a
user's own dataset or forward(), which are `UserCodeError`.
"""

from __future__ import annotations

import copy
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

import spacecl
from spacecl import Images, Learner, Recipe, Task, compress
from spacecl.errors import SpaceError

from .guard import run_guarded
from .odd_values import (
    PIXELS,
    UserCodeError,
    Values,
    X,
    Y,
    make_model,
    make_models,
    make_paths,
    make_plain_values,
    make_sources,
    make_tensors,
)
from .outcome import Outcome

QUICK = Recipe(epochs=1, batch_size=64, retrain_epochs=1)
Function = tuple[Callable[..., Any], dict[str, tuple[str, Any]]]  # parameter -> (kind of odd values, a good value)
METHODS = ("SPACE", "STL", "FineTune", "LwF", "EWC", "HAT", "PackNet", "WSN", "UCB", "Joint")


@dataclass(frozen=True)
class Call:
    """One call: the function's name, and the descriptions of odd values by parameter; the others get good values."""

    function: str
    odd: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(f'{name}={value}' for name, value in self.odd)})"


class World:
    """A learner with one committed task, and the functions and values for calls."""

    def __init__(self, folder: Path):
        warnings.simplefilter("ignore")
        self.folder = folder
        self.learner = Learner(make_model(), spacecl.SPACE(variance=0.8), example_input=X[:1], progress=False)
        self.learner.learn(Task("known", (X, Y)), QUICK)
        self.learner.save(folder / "saved")
        self.logits, self.digests = self.learner.logits(X, "known"), self.learner.verify()
        self.names = ("known",)
        plain, tensor = make_plain_values(), make_tensors()
        anything = plain | tensor
        self.values: Mapping[str, Values] = {
            "any": anything,
            "tensor": tensor | plain,
            "model": make_models() | anything,
            "source": make_sources() | anything,
            "path": make_paths(folder) | plain | {"a tensor": tensor["a tensor"]},
            "task": plain
            | {"a Task": lambda: Task("known", (X, Y)), "names": lambda: ["known", "x"], "a tensor": tensor["a tensor"]},
            "method": anything | {name: (lambda name=name: getattr(spacecl, name)()) for name in METHODS},
            "recipe": anything | {"a dict of epochs": lambda: {"epochs": 1}},
        }
        # Calls that would change the learner use a copy of it, so that the original can be compared.
        self.functions = self._list_functions()

    def _list_functions(self) -> dict[str, Function]:
        """Return every public function: how to call it, and for every parameter the kind of odd values and a good value."""
        learner, file = self.learner, self.folder / "out.safetensors"
        example, task = ("tensor", X[:1]), ("task", "known")
        construction = {
            "model": ("model", make_model()),
            "method": ("method", spacecl.SPACE()),
            "example_input": example,
            "head": ("any", None),
            "shared": ("any", ()),
            "seed": ("any", 0),
            "fabric": ("any", None),
            "progress": ("any", False),
        }
        data = {"train": ("source", (X, Y)), "valid": ("source", (X, Y)), "classes": ("any", None), "test": ("source", None)}
        functions: dict[str, Function] = {
            "Learner": (Learner, construction),
            "Learner.load": (
                Learner.load,
                {"folder": ("path", self.folder / "saved"), **{n: construction[n] for n in ("model", "fabric", "progress")}}
                | {"method": ("method", None), "verify": ("any", True)},
            ),
            "learn": (
                lambda name, recipe, checkpoint, on_epoch, **d: copy.copy(learner).learn(
                    Task(name, **d), recipe, checkpoint=checkpoint, on_epoch=on_epoch
                ),
                {
                    "name": ("any", "new"),
                    **data,
                    "recipe": ("recipe", QUICK),
                    "checkpoint": ("path", None),
                    "on_epoch": ("any", None),
                },
            ),
            "learn(task)": (lambda task: copy.copy(learner).learn(task, QUICK), {"task": ("source", Task("new", (X, Y)))}),
            "remember": (lambda task: copy.copy(learner).remember(task), {"task": ("any", Task("known", (X, Y)))}),
            "logits": (learner.logits, {"x": ("tensor", X), "task": task}),
            "predict": (learner.predict, {"x": ("tensor", X), "task": task, "together": ("any", False)}),
            "predict inferred": (
                lambda x, together: learner.predict(x, "infer", together=together),
                {"x": ("tensor", X), "together": ("any", True)},
            ),
            "identify": (learner.identify, {"x": ("tensor", X), "together": ("any", False)}),
            "task_scores": (learner.task_scores, {"x": ("tensor", X), "task": ("task", None)}),
            "has_signature": (learner.has_signature, {"task": task}),
            "evaluate": (learner.evaluate, {"data": ("source", (X, Y)), "task": task}),
            "subnet": (learner.subnet, {"task": task}),
            "export": (
                learner.export,
                {
                    "task": task,
                    "file": ("path", file),
                    "format": ("any", None),
                    "fold": ("any", True),
                    "int8": ("tensor", None),
                },
            ),
            "save": (learner.save, {"folder": ("path", self.folder / "out")}),
            "reload": (learner.reload, {"folder": ("path", self.folder / "saved")}),
            "dense": (learner.dense, {"classes": ("any", 3)}),
            "method": (
                lambda method: setattr(copy.copy(learner), "method", method),
                {"method": ("method", spacecl.SPACE())},
            ),
            "seed": (lambda seed: setattr(copy.copy(learner), "seed", seed), {"seed": ("any", 0)}),
            "progress": (lambda progress: setattr(copy.copy(learner), "progress", progress), {"progress": ("any", False)}),
            "Task": (Task, {"name": ("any", "new"), **data}),
            "Images": (
                lambda **arguments: read_images(Images(**arguments)),
                {"pixels": ("tensor", PIXELS), "labels": ("any", np.zeros(20, np.int64))}
                | dict.fromkeys(("mean", "std", "shape", "order", "rows"), ("any", None)),
            ),
            "Recipe": (Recipe, {field.name: ("any", getattr(Recipe(), field.name)) for field in fields(Recipe)}),
            "compress": (
                compress,
                {"data": ("source", (X, Y)), "variance": ("any", 0.9), "valid": ("source", None), "recipe": ("recipe", QUICK)}
                | {name: value for name, value in construction.items() if name != "method"},
            ),
        }
        for name in METHODS:
            method = getattr(spacecl, name)
            options = {field.name: ("any", getattr(method(), field.name)) for field in fields(method)}
            functions[name] = (method, options)
        return functions

    def draw_call(self, random: random.Random) -> Call:
        """Return a random call with one or two odd values."""
        name = random.choice([name for name, (_, parameters) in self.functions.items() if parameters])
        parameters = self.functions[name][1]
        chosen = random.sample(list(parameters), min(len(parameters), random.choice((1, 1, 1, 2))))
        return Call(name, tuple((p, random.choice(list(self.values[parameters[p][0]]))) for p in chosen))

    def run(self, call: Call) -> str:
        """Make a call; return a verdict, or raise AssertionError if it broke a promise."""
        os.chdir(self.folder)  # of this guarded process: some odd texts are used as file names
        function, parameters = self.functions[call.function]
        arguments = {name: good for name, (_, good) in parameters.items()}
        arguments |= {name: self.values[parameters[name][0]][value]() for name, value in call.odd}
        try:
            function(**arguments)
            verdict = "answered"
        except SpaceError as error:
            verdict = "refused"
            if len(str(error)) < 20:
                raise AssertionError(f"an error without a sentence: {error!r}") from error
        except UserCodeError:
            verdict = "the user's own error"
        except TypeError as error:
            if "unexpected keyword argument" not in str(error) and "required" not in str(error):
                raise
            verdict = "refused by Python"
        assert call.odd or verdict == "answered", "a call without an odd value was refused"
        assert self.learner.tasks == self.names, "the learner's tasks have changed"
        assert torch.equal(self.learner.logits(X, "known"), self.logits), "a committed task answers differently"
        assert self.learner.verify() == self.digests, "a committed task has changed"
        return verdict


def read_images(images: Images) -> Images:
    images.finish(images.batch(np.arange(min(2, len(images))))[0])
    return images


def run(count: int, seed: int) -> Outcome:
    """Make `count` odd calls, the same ones for the same seed."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        draw = random.Random(seed)
        calls = [Call(name, ()) for name in world.functions]  # without odd values, to see that they are the reason of refusals
        calls += [world.draw_call(draw) for _ in range(count)]
        return run_guarded("calls", calls, world.run, kind=lambda call: call.function)
