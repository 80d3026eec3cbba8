"""The settings of a run: a preset, then a TOML file, then the command line; every problem found is told at once."""

from __future__ import annotations

import difflib
import importlib
import json
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field

from ..data.benchmarks.presets import BENCHMARKS, PICTURES, TASKS, Benchmark
from ..documents import parse_document, read_document
from ..errors import ConfigError, SpaceError, user_code_errors
from ..learning.recipe import Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
    judge: str = "test"  # which data accuracy is measured on; "valid" leaves the test data alone

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))

    @staticmethod
    def from_json(values: Mapping[str, Any], file: object = "config") -> Config:
        """Settings that were written as JSON; what cannot be used is told with the file that it stands in."""
        config = parse_document(json.dumps(values).encode(), Config, file)
        config.check(file)
        return config

    @staticmethod
    def from_file(file: Path) -> Config:
        config = read_document(file, Config)
        config.check(file)
        return config

    def check(self, file: object) -> None:
        """Refuse names and values that this version of spacecl does not know."""
        wrong: list[str] = []
        _one_of(wrong, "recipe", self.recipe, RECIPES)
        _one_of(wrong, "method", self.method, tuple(methods()))
        _one_of(wrong, "device", self.device, DEVICES)
        _one_of(wrong, "judge", self.judge, ("test", "valid"))
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

    def own_code(self) -> list[str]:
        """What of these settings is code that is not spacecl's: a function that makes the network, a file of tasks."""
        from ..data.benchmarks.networks import NETWORKS

        found = [] if self.model in NETWORKS else [self.model]
        is_file = self.benchmark not in BENCHMARKS and not Path(self.benchmark).is_dir()  # as `stream` has it
        return found + ([self.benchmark] if is_file and ".py" in self.benchmark else [])

    def command(self) -> list[str]:
        """The command line that gives these settings: what the recipe leaves open, and what differs from it."""
        flags = {"method": "space", "recipe": None, "seed": None, "limit": None, "device": "auto"}
        found = ["spacecl", "run", self.benchmark]
        for name, default in flags.items():
            if getattr(self, name) != default:
                found += [f"--{name}", str(getattr(self, name))]
        kind = kind_of(self.benchmark)
        if self.tasks not in (None, kind.tasks):
            found += ["--tasks", str(self.tasks)]
        if self.model != kind.model:
            found += ["--model", self.model]
        preset = kind.recipes[self.recipe]
        train, own = json.loads(json.dumps(asdict(Recipe(**preset.train)))), {}
        for name in ("order", "image_size", "head", "shared", "judge"):
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

    def recipe_for(self, number: int) -> Recipe:
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
        return methods()[self.method](**self.options)

    def make_model(self, shape: Sequence[int], classes: int) -> nn.Module:
        """The network: one of ours for this shape of input, or the user's own."""
        from ..data.benchmarks.networks import NETWORKS

        if self.model not in NETWORKS:
            return built(self.model)
        if self.model.split("-")[0] in ("cnn", "resnet18") and (len(shape) != 3 or min(shape[1:]) < 12):
            raise ConfigError(
                f"The network {self.model} reads images of at least 12 x 12; the tasks' inputs have shape {tuple(shape)}."
            )
        return NETWORKS[self.model](shape, classes)


def methods() -> dict[str, Callable[..., Any]]:
    """The methods by the names that the command line has for them."""
    from ..methods import METHODS

    return {name.lower(): method for name, method in METHODS.items()}


def read(file: str | Path) -> dict[str, Any]:
    """A TOML file's settings."""
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not TOML: it is not written in UTF-8.") from error
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of too many digits
        raise ConfigError(f"{file} cannot be read as settings: {error}.") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error


def assigned(texts: Iterable[str]) -> dict[str, Any]:
    """Settings written as KEY=VALUE, with values as in TOML; a bare word is text.

    >>> assigned(["train.lr=0.1", "order=random"])
    {'train': {'lr': 0.1}, 'order': 'random'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text} is not of the form KEY=VALUE, such as train.lr=0.01.")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = {"true": True, "false": False, "null": None}.get(value.strip().lower(), value.strip())
        place = found
        *outer, last = key.strip().split(".")
        for name in outer:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set {text}: {name} has been set to {place!r} already, which is no table.")
        place[last] = parsed
    return found


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings upon settings; tables are merged one level deep, everything else is replaced."""
    found: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
            found[key] = {**found[key], **value} if both else value
    return found


def resolve(given: Mapping[str, Any], data: str | None = None) -> Config:
    """Settings with all that was left open filled in from the benchmark's preset, checked whole before anything runs."""
    import torch

    from ..data.benchmarks.networks import NETWORKS
    from ..data.benchmarks.streams import choose_tasks
    from ..data.sources import find_missing

    wrong = _unknown(given, [entry.name for entry in fields(Config)], "")
    name, recipe, method = (str(given.get(key, default)) for key, default in _NAMES.items())
    benchmark = _benchmark(name, wrong)
    kind = benchmark or PICTURES
    _one_of(wrong, "recipe", recipe, RECIPES)
    _one_of(wrong, "method", method, tuple(methods()))
    for key, least in (("seed", 0), ("tasks", 1), ("limit", 2), ("image_size", 12)):
        value = given.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**40):
            wrong.append(
                f"{key} = {value!r} must be a whole number, at least {least}{' and below 2**40' if key == 'seed' else ''}"
            )
    _one_of(wrong, "device", given.get("device", "auto"), DEVICES)
    _one_of(wrong, "judge", given.get("judge", "test"), ("test", "valid"))
    device = given.get("device", "auto")
    if (device == "cuda" and not torch.cuda.is_available()) or (device == "mps" and not torch.backends.mps.is_available()):
        wrong.append(f"device = {device!r} is not to be had here; leave it out, or give cpu")
    if kind is not PICTURES and given.get("image_size", 32) != 32:
        wrong.append("image_size is for folders of pictures; other data have a size of their own")
    order = _order(given.get("order", "given"), wrong)
    preset = kind.recipes.get(recipe, kind.recipes["fast"])
    train, later = _recipes(given, preset.train, preset.later, wrong)
    model = str(given.get("model", kind.model))
    options = _options(given, method, dict(preset.options.get(method, {})), _same_kind(model, kind), wrong)
    if model not in NETWORKS:
        try:
            imported(model)
        except ConfigError as error:
            wrong.append(str(error))
    shared, head = given.get("shared", ()), given.get("head")
    if not isinstance(shared, (list, tuple)) or not all(isinstance(name, str) for name in shared):
        wrong.append(f"shared = {shared!r} must be a list of layer names")
    if head is not None and not isinstance(head, str):
        wrong.append(f"head = {head!r} must be a layer's name")
    needed: Sequence[str] = kind.datasets
    if kind.datasets and not any(text.startswith(("order", "tasks", "seed")) for text in wrong):
        try:
            numbers = choose_tasks(kind, given.get("tasks"), order, given.get("seed", 0))
            needed = [kind.datasets[n] for n in sorted(numbers)] if kind.kind == "datasets" else kind.datasets
        except ConfigError as error:
            wrong.append(str(error))
    wrong += find_missing(needed, data)
    if wrong:
        lines = "\n".join(f"  - {line if line[-1] in '.?' else f'{line}.'}" for line in wrong)
        raise ConfigError(f"This run cannot be started, for {len(wrong)} reason{'s' if len(wrong) > 1 else ''}:\n{lines}")
    plain = {
        key: given[key] for key in ("seed", "tasks", "limit", "image_size", "device", "judge") if given.get(key) is not None
    }
    if "tasks" not in plain and kind.tasks:
        plain["tasks"] = len(order) if isinstance(order, tuple) else kind.tasks
    if name not in BENCHMARKS:
        name = str(Path(name).absolute())
    if model.partition(":")[0].endswith(".py"):
        model = str(Path(model).absolute())
    fixed = {"order": order, "model": model, "head": head, "shared": tuple(shared)}
    return Config(name, method, recipe, train=train, later=later, options=options, **fixed, **plain)


def _order(order: Any, wrong: list[str]) -> Any:
    """An order of tasks, checked; a list of numbers becomes a tuple."""
    if isinstance(order, (list, tuple)) and order and all(type(number) is int for number in order):
        return tuple(order)
    if not isinstance(order, str) or order not in ("given", "random"):
        wrong.append(f'order = {order!r} must be "given", "random" or a list of task numbers, from 1')
    return order


_NAMES = {"benchmark": "", "recipe": "fast", "method": "space"}


def kind_of(name: str) -> Benchmark:
    """A benchmark, or what stands for users' own tasks or pictures, by its name."""
    return BENCHMARKS.get(name) or (TASKS if name.partition(":")[0].endswith(".py") else PICTURES)


def _benchmark(name: str, wrong: list[str]) -> Benchmark | None:
    script = name.partition(":")[0]
    if name in BENCHMARKS or (name and Path(name).is_dir()) or (script.endswith(".py") and Path(script).is_file()):
        return kind_of(name)
    if script.endswith(".py"):
        wrong.append(f"benchmark = {name!r}: the file {script} does not exist")
        return None
    close = difflib.get_close_matches(name, BENCHMARKS, 1)
    hint = f" Did you mean {close[0]}?" if close else f" The benchmarks are {', '.join(BENCHMARKS)}."
    wrong.append(f"benchmark = {name!r} is no benchmark, and no folder or Python file of tasks.{hint}")
    return None


def _recipes(
    given: Mapping[str, Any], train: Mapping[str, Any], later: Sequence[Mapping[str, Any]], wrong: list[str]
) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """The recipe's values and those from some task on. What a user sets for all tasks wins over the preset's later values."""
    own = _table(given, "train", wrong)
    names = [entry.name for entry in fields(Recipe)]
    wrong += _unknown(own, names, "train.")
    own = {key: value for key, value in own.items() if key in names}
    changes = [{key: value for key, value in change.items() if key not in own} for change in later]
    if "later" in given:
        listed = given["later"] if isinstance(given["later"], list) else [given["later"]]
        changes = [dict(change) if isinstance(change, Mapping) else {} for change in listed]
        for number, change in enumerate(changes):
            first = change.get("from")
            if not isinstance(first, int) or isinstance(first, bool) or first < 1:
                wrong.append(f"later[{number}] needs from = N, the number of the first task that it is for, from 1")
            wrong += _unknown(change, ["from", *names], f"later[{number}].")
            changes[number] = {key: value for key, value in change.items() if key in ("from", *names)}
    try:
        values = asdict(Recipe(**{**train, **own}))
        for number, change in enumerate(changes):
            try:
                Recipe(**{**values, **{key: value for key, value in change.items() if key != "from"}})
            except ConfigError as error:
                wrong.append(f"later[{number}]: {error}")
    except ConfigError as error:
        wrong.append(f"train: {error}")
        values = {}
    return values, tuple(change for change in changes if len(change) > 1)


def usual_variance(benchmark: str, recipe: str, model: str) -> Any:
    """The thresholds that a recipe has for a benchmark; those for single layers only where the network has these layers."""
    kind = kind_of(benchmark)
    return _for_any_layer(dict(kind.recipes[recipe].options["space"]), _same_kind(model, kind))["variance"]


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
    return json.loads(json.dumps(asdict(methods()[method](**_for_any_layer(preset, preset_model)))))


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


def _options(
    given: Mapping[str, Any], method: str, preset: dict[str, Any], preset_model: bool, wrong: list[str]
) -> dict[str, Any]:
    """The method's options: a preset's, and upon them the user's own."""
    own = _table(given, "options", wrong)
    if method not in methods():
        return own
    kind = methods()[method]
    names = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    wrong += _unknown(own, names, "options.")
    options = {**_for_any_layer(preset, preset_model), **{key: value for key, value in own.items() if key in names}}
    try:
        return asdict(kind(**options))
    except (SpaceError, TypeError, ValueError) as error:
        wrong.append(f"options: {error}")
        return options


def imported(name: str) -> Callable[[], Any]:
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


def built(name: str) -> nn.Module:
    """What the user's function makes, which must be a network."""
    from torch import nn

    with user_code_errors(f"model = {name!r}: the function, called without arguments, failed"):
        found = imported(name)()
    if not isinstance(found, nn.Module):
        raise ConfigError(f"model = {name!r}: the function returned a {type(found).__name__}, not a torch.nn.Module")
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What one set of settings has otherwise than another, in words."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {before!r} and is {after!r}")
    return found


def _table(given: Mapping[str, Any], name: str, wrong: list[str]) -> dict[str, Any]:
    value = given.get(name, {})
    if not isinstance(value, Mapping):
        wrong.append(f"{name} = {value!r} must be a table, such as [{name}]")
        return {}
    return dict(value)


def _unknown(given: Mapping[str, Any], names: Sequence[str], prefix: str) -> list[str]:
    found = []
    for key in given:
        if key not in names:
            close = difflib.get_close_matches(str(key), names, 1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"there are {', '.join(names) or 'none'}"
            found.append(f"{prefix}{key} is no setting; {hint}")
    return found


def _one_of(wrong: list[str], key: str, value: Any, names: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in names:
        close = difflib.get_close_matches(str(value), names, 1)
        wrong.append(f"{key} = {value!r} must be one of {', '.join(names)}{f'; did you mean {close[0]}?' if close else ''}")
