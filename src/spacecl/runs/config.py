"""The settings of a run: a preset, then a TOML file, then the command line; every problem found is told at once."""

from __future__ import annotations

import difflib
import importlib
import json
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AliasChoices, ConfigDict, Field

from ..data.benchmarks.presets import BENCHMARKS, PICTURES, TASKS, Benchmark
from ..documents import parse_document, read_document
from ..errors import ConfigError, SpaceError, user_code_errors
from ..learning.recipe import Recipe

if sys.version_info >= (3, 11):
    pass
else:
    pass

if TYPE_CHECKING:
    from torch import nn

    from ..learner import Method

RECIPES = ("fast", "paper")
DEVICES = ("auto", "cpu", "cuda", "mps")
METHOD_ORDER = ("stl", "joint", "finetune", "lwf", "ewc", "ucb", "hat", "packnet", "space")  # the paper's Table 1, and beyond


@dataclass(frozen=True)
class Config:
    """All settings of a run, none left open. `later` has values of `train` for some task on, numbered from 1."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    benchmark: str
    method: str = "space"
    recipe: str = "fast"
    seed: Annotated[int, Field(ge=0, lt=2**40)] = 0
    tasks: Annotated[int, Field(ge=1)] | None = None
    limit: Annotated[int, Field(ge=2)] | None = None
    order: str | tuple[int, ...] = "given"
    model: str = ""
    image_size: Annotated[int, Field(ge=12, le=4096)] = 32
    device: str = "auto"
    head: str | None = None
    shared: tuple[str, ...] = ()
    train: Mapping[str, Any] = field(default_factory=dict)
    later: tuple[Mapping[str, Any], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    eval_split: Annotated[str, Field(validation_alias=AliasChoices("eval_split", "judge"))] = (
        "test"  # which data accuracy is measured on; "valid" leaves the test data alone
    )

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))

    @staticmethod
    def from_json(values: Mapping[str, Any], file: object = "config") -> Config:
        """Settings that were written as JSON; what cannot be used is told with the file that it stands in."""
        config = parse_document(json.dumps(values).encode(), Config, file)
        config._check(file)
        return config

    @staticmethod
    def from_file(file: Path) -> Config:
        config = read_document(file, Config)
        config._check(file)
        return config

    def _check(self, file: object) -> None:
        """Refuse names and values that this version of spacecl does not know."""
        wrong: list[str] = []
        _one_of(wrong, "recipe", self.recipe, RECIPES)
        _one_of(wrong, "method", self.method, tuple(get_methods()))
        _one_of(wrong, "device", self.device, DEVICES)
        _one_of(wrong, "eval_split", self.eval_split, ("test", "valid"))
        _order(self.order, wrong)
        checks = {"train": lambda: Recipe(**self.train), "options": self.make_method}
        for number, change in enumerate(self.later):
            if type(change.get("from")) is not int:
                wrong.append(f"later[{number}] does not say from which task on")
            values = {**self.train, **{key: value for key, value in change.items() if key != "from"}}
            checks[f"later[{number}]"] = partial(Recipe, **values)
        for name, make in checks.items() if not wrong else ():
            try:
                make()
            except (SpaceError, TypeError, ValueError) as error:
                wrong.append(f"{name}: {error}")
        if wrong:
            raise ConfigError(f"{file} cannot be used: {'; '.join(wrong)}")

    def find_user_code(self) -> list[str]:
        """What of these settings is code that is not spacecl's: a function that makes the network, a file of tasks."""
        from ..data.benchmarks.networks import NETWORKS

        found = [] if self.model in NETWORKS else [self.model]
        is_file = self.benchmark not in BENCHMARKS and not Path(self.benchmark).is_dir()  # as `stream` has it
        return found + ([self.benchmark] if is_file and ".py" in self.benchmark else [])

    def to_command(self) -> list[str]:
        """The command line that gives these settings: what the recipe leaves open, and what differs from it."""
        flags = {"method": "space", "recipe": None, "seed": None, "limit": None, "device": "auto"}
        found = ["spacecl", "run", self.benchmark]
        for name, default in flags.items():
            if getattr(self, name) != default:
                found += [f"--{name}", str(getattr(self, name))]
        kind = find_benchmark(self.benchmark)
        if self.tasks not in (None, kind.tasks):
            found += ["--tasks", str(self.tasks)]
        if self.model != kind.model:
            found += ["--model", self.model]
        preset = kind.recipes[self.recipe]
        train, own = json.loads(json.dumps(asdict(Recipe(**preset.train)))), {}
        for name in ("order", "image_size", "head", "shared", "eval_split"):
            if getattr(self, name) != next(entry.default for entry in fields(Config) if entry.name == name):
                own[name] = getattr(self, name)
        plain = self.to_json()
        own |= {f"train.{name}": value for name, value in plain["train"].items() if value != train.get(name, self)}
        usual = _usual(self.method, dict(preset.options.get(self.method, {})), _same_kind(self.model, kind))
        own |= {f"options.{name}": value for name, value in plain["options"].items() if value != usual.get(name, self)}
        changed = {name.removeprefix("train.") for name in own}
        later = [{key: value for key, value in change.items() if key not in changed} for change in preset.later]
        if plain["later"] != [change for change in later if len(change) > 1]:
            own["later"] = plain["later"]
        return found + [part for name, value in own.items() for part in ("--set", f"{name}={to_toml(value)}")]

    def make_recipe(self, number: int) -> Recipe:
        """How to train a task, numbered from 1. A method that does not retrain has those epochs for its training."""
        values = dict(self.train)
        for change in self.later:
            if number >= change["from"]:
                values |= {name: value for name, value in change.items() if name != "from"}
        recipe = Recipe(**values)
        if "retrain" in self.make_method().plan(recipe, number - 1):
            return recipe
        return recipe.over(recipe.epochs + recipe.for_retraining().epochs)

    def make_method(self) -> Method:
        return get_methods()[self.method](**self.options)

    def make_model(self, shape: Sequence[int], classes: int) -> nn.Module:
        """The network: one of ours for this shape of input, or the user's own."""
        from ..data.benchmarks.networks import NETWORKS

        if self.model not in NETWORKS:
            return build_model(self.model)
        if self.model.split("-")[0] in ("cnn", "resnet18") and (len(shape) != 3 or min(shape[1:]) < 12):
            raise ConfigError(
                f"The network {self.model} reads images of at least 12 x 12; the tasks' inputs have shape {tuple(shape)}."
            )
        return NETWORKS[self.model](shape, classes)


def get_methods() -> dict[str, Callable[..., Any]]:
    """The methods by the names that the command line has for them."""
    from ..methods import METHODS

    return {name.lower(): method for name, method in METHODS.items()}


def find_benchmark(name: str) -> Benchmark:
    """A benchmark, or what stands for users' own tasks or pictures, by its name."""
    return BENCHMARKS.get(name) or (TASKS if name.partition(":")[0].endswith(".py") else PICTURES)


def _same_kind(model: str, kind: Benchmark) -> bool:
    """Whether a network has the layers that a benchmark's presets name."""
    return model.split("-")[0] == kind.model.split("-")[0]


def _for_any_layer(preset: dict[str, Any], preset_model: bool) -> dict[str, Any]:
    """A preset names layers of its own network; of another all get what it has for the rest."""
    variance = preset.get("variance")
    if not preset_model and isinstance(variance, Mapping):
        return preset | {"variance": variance.get("*", min(variance.values()))}
    return preset


def _usual(method: str, preset: dict[str, Any], preset_model: bool) -> dict[str, Any]:
    """The options that a method has by a preset, none left open, as JSON has them."""
    return json.loads(json.dumps(asdict(get_methods()[method](**_for_any_layer(preset, preset_model)))))


def to_toml(value: Any) -> str:
    """A value as `--set` takes it.

    >>> to_toml({"conv1": 0.95, "*": [0.9, True]})
    '{"conv1"=0.95, "*"=[0.9, true]}'
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)}={to_toml(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(to_toml, value))}]"
    return json.dumps(value)


def load_function(name: str) -> Callable[[], Any]:
    """A function by `module:function` or `file.py:function`."""
    module, colon, function = name.rpartition(":")
    if not colon or not module or not function:
        from ..data.benchmarks.networks import NETWORKS

        raise ConfigError(f"model = {name!r} is none of {', '.join(NETWORKS)}, and not module:function or file.py:function")
    if module.endswith(".py") and not Path(module).is_file():
        raise ConfigError(f"model = {name!r}: {module} does not exist")
    with user_code_errors(f"model = {name!r}: {module} cannot be loaded"):
        if module.endswith(".py"):
            sys.path.insert(0, str(Path(module).absolute().parent))  # for what it imports from beside it
            space = runpy.run_path(module)
        else:
            if "" not in sys.path:
                sys.path.insert(0, "")  # the user's own module lies where the command is given
            space = vars(importlib.import_module(module))
    if not callable(space.get(function)):
        raise ConfigError(f"model = {name!r}: {module} has no function {function}()")
    return space[function]


def build_model(name: str) -> nn.Module:
    """What the user's function makes, which must be a network."""
    from torch import nn

    with user_code_errors(f"model = {name!r}: the function, called without arguments, failed"):
        found = load_function(name)()
    if not isinstance(found, nn.Module):
        raise ConfigError(f"model = {name!r}: the function returned a {type(found).__name__}, not a torch.nn.Module")
    return found


def find_differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What one set of settings has otherwise than another, in words."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += find_differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {before!r} and is {after!r}")
    return found


def _order(order: Any, wrong: list[str]) -> Any:
    """An order of tasks, checked; a list of numbers becomes a tuple."""
    if isinstance(order, (list, tuple)) and order and all(type(number) is int for number in order):
        return tuple(order)
    if not isinstance(order, str) or order not in ("given", "random"):
        wrong.append(f'order = {order!r} must be "given", "random" or a list of task numbers, from 1')
    return order


def _one_of(wrong: list[str], key: str, value: Any, names: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in names:
        close = difflib.get_close_matches(str(value), names, 1)
        wrong.append(f"{key} = {value!r} must be one of {', '.join(names)}{f'; did you mean {close[0]}?' if close else ''}")
