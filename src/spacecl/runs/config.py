"""`Config`, all settings of a run, and the one way to check them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from ..data.benchmarks.presets import BENCHMARKS, PICTURES, TASKS, Benchmark
from ..data.registry import load_network
from ..documents import RESTORE, read_document
from ..errors import ConfigError, StoreError, user_code_errors, warn_user
from ..learning.recipe import SPEED_ONLY, Recipe
from ..options import Description, PositiveInt, add_former_values, describe_options, find_problems, option, options, suggest
from .methods import MethodName, get_methods, is_own, make_method

if TYPE_CHECKING:
    from torch import nn

    from ..learner import Method
    from ..structure.calling import Inputs

TaskOrder = Annotated[
    Literal["given", "random"] | Annotated[tuple[Annotated[int, Field(strict=True, ge=1)], ...], Field(strict=False)],
    Description("given, random or a list of task numbers, from 1"),
]
LayerNames = Annotated[
    tuple[Annotated[str, Field(strict=True)], ...], Field(strict=False), Description("a list of names of layers")
]
Changes = Annotated[
    tuple[dict[str, Any], ...], Field(strict=False), Description("a list of tables, such as [{from = 3, lr = 0.001}]")
]


@options
class Config:
    """All settings of a run, with nothing left to be filled in."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # for the JSON Schema
    renamed_options: ClassVar[Mapping[str, str]] = {"judge": "eval_split"}

    benchmark: str = option(default=MISSING, help="a benchmark, a folder of pictures, or a Python file with a function tasks()")
    method: MethodName = option(default="space", help="continual-learning method")
    recipe: Literal["auto", "fast", "best", "paper"] = option(
        default="fast",
        help="how to train: auto, by the number of examples; fast, a few minutes per task; best, up to five times as long; "
        "or paper, as published; your own data have auto, their default, and paper",
    )
    seed: Annotated[int, Field(ge=0, lt=2**40)] = option(default=0, help="random seed; the same seed gives the same result")
    tasks: PositiveInt | None = option(default=None, help="learn only the first N tasks")
    limit: Annotated[int, Field(ge=2)] | None = option(
        default=None, help="use at most N examples of each class; of labels or values, in all"
    )
    order: TaskOrder = option(
        default="given", help="order of the tasks: given, random, or the numbers of some tasks, such as 3,1,2"
    )
    model: str = option(
        default="",
        help="network: mlp, mlp-small, cnn, cnn-wide, cnn-valid, cnn-wide-valid, resnet18, resnet18-small, or your own as "
        "file.py:function; default: the benchmark's",
    )
    image_size: Annotated[int, Field(ge=12, le=4096)] = option(
        default=32, help="pixels to which the pictures of a folder are scaled"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = option(
        default="auto", help="auto (a GPU if there is one), cpu, cuda or mps"
    )
    precision: Literal["32-true", "bf16-mixed"] = option(
        default="32-true",
        help="of training steps: 32-true, as the parameters are, or bf16-mixed, which computes in bfloat16 what can be and is "
        "faster on most GPUs; networks are stored and queried in the precision of their parameters",
    )
    head: str | None = option(default=None, help="name of the classification layer, if it is not the model's last Linear layer")
    shared: LayerNames = option(default=(), help="layers that the first task trains and that all tasks share unpruned")
    train: Annotated[Mapping[str, Any], Description("a table, such as [train]")] = option(
        default={}, help="training; see spacecl.Recipe. With recipe=auto, only what is not to be chosen"
    )
    later: Changes = option(default=(), help="other training values from a task on, such as [{from=3, lr=0.001}]")
    options: Annotated[Mapping[str, Any], Description("a table, such as [options]")] = option(
        default={}, help="options of the method"
    )
    eval_split: Literal["test", "valid"] = option(
        default="test", help="data to measure accuracy on: test, or valid (validation data), which leaves the test data unread"
    )

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))

    @staticmethod
    def from_json(values: Mapping[str, Any], file: object = "config") -> Config:
        """Check settings that were read from JSON; `file` is what error messages call their source."""
        settings = _translate_own_data(rename_deprecated(values))
        method = get_methods().get(str(settings.get("method", "space")))
        if isinstance(settings.get("options"), Mapping):
            settings["options"] = add_former_values(method, settings["options"])
        train = settings.get("train")
        if isinstance(train, Mapping) and train and settings.get("recipe", "fast") != "auto":  # which has all values
            settings["train"] = add_former_values(Recipe, settings["train"])
        misfits = find_unknown(settings, Config) + ([] if "benchmark" in settings else ["benchmark is missing"])
        if misfits:
            raise StoreError(f"{file} is damaged: {'; '.join(misfits)}. {RESTORE}")
        problems = find_setting_problems(settings)
        if problems:
            raise ConfigError(f"{file} cannot be used: {'; '.join(problems)}.")
        return Config(**settings)

    @staticmethod
    def from_file(file: Path) -> Config:
        return Config.from_json(read_document(file, dict[str, Any]), file)

    def find_user_code(self) -> list[str]:
        """The settings that name code that is not spacecl's: the function of the network, the file of tasks, the method."""
        from ..data.benchmarks.networks import NETWORKS

        names = [] if self.model in NETWORKS else [self.model]
        names += [self.method] if is_own(self.method) else []
        is_file = self.benchmark not in BENCHMARKS and not Path(self.benchmark).is_dir()  # as in load_stream
        return names + ([self.benchmark] if is_file and ".py" in self.benchmark else [])

    def make_recipe(
        self, number: int, examples: int, valid: int, pretrained: bool = False, suggested: Mapping[str, Any] | None = None
    ) -> Recipe:
        """The recipe for a task. A method that does not retrain trains for the epochs of both phases.

        Parameters
        ----------
        number : the number of the task, from 1.
        examples, valid : the numbers of its training and validation examples, by which the recipe auto is chosen.
        pretrained : whether the network was trained before, by which the recipe auto is chosen, too.
        suggested : what the form of the data decides of the recipe auto, unless it is set (`Data.recipe_values`).
        """
        values = dict(self.train)
        for change in self.later:
            if number >= change["from"]:
                values |= {name: value for name, value in change.items() if name != "from"}
        if self.recipe == "auto":
            recipe = Recipe.auto(examples, valid, pretrained, **{**(suggested or {}), **values})
        else:
            recipe = Recipe(**values)
        return self.make_method().spend_all_epochs(recipe, number - 1)

    def make_method(self, tasks: int | None = None) -> Method:
        """The method, for a run of so many tasks: they are the budget of a size that has none."""
        options = dict(self.options)
        if self.method == "space" and options.get("size") is not None and options.get("budget") is None:
            options["budget"] = tasks
        return make_method(self.method, options, self.seed)

    def make_model(self, example: Inputs, classes: int) -> nn.Module:
        """The network: one of spacecl's for inputs like the example, or the user's own."""
        from ..data.benchmarks.networks import NETWORKS

        if self.model not in NETWORKS:
            return build_model(self.model)
        if isinstance(example, (tuple, Mapping)):
            raise ConfigError(
                f"The network {self.model} has one input, but the tasks have several. Name your own: --model my_net.py:network"
            )
        shape = tuple(example.shape[1:])
        least = 24 if self.model.endswith("valid") else 12  # pixels
        if self.model.split("-")[0] in ("cnn", "resnet18") and (len(shape) != 3 or min(shape[1:]) < least):
            raise ConfigError(
                f"The network {self.model} needs images of at least {least} x {least}; "
                f"the inputs of the tasks have shape {tuple(shape)}."
            )
        return NETWORKS[self.model](shape, classes)


def find_benchmark(name: str) -> Benchmark:
    """A benchmark by its name, or the one that stands for users' own tasks or pictures."""
    return BENCHMARKS.get(name) or (TASKS if name.partition(":")[0].endswith(".py") else PICTURES)


def choose_recipe(benchmark: str, recipe: str | None) -> str:
    """The recipe of a run, given the one that a user names, if any: for users' own data, fast and best are auto.

    >>> choose_recipe("p-mnist", None), choose_recipe("photos", None), choose_recipe("photos", "paper")
    ('fast', 'auto', 'paper')
    """
    is_own = find_benchmark(benchmark).kind == "own"
    return "auto" if is_own and recipe in (None, "fast", "best") else recipe or "fast"


def _translate_own_data(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Translate settings of older versions, whose recipe fast had values of its own for users' data: all are written."""
    train, name = settings.get("train"), str(settings.get("benchmark", ""))
    if settings.get("recipe", "fast") != "fast" or choose_recipe(name, "fast") == "fast" or not isinstance(train, Mapping):
        return dict(settings)
    return {**settings, "recipe": "auto", "train": {**asdict(Recipe()), **train} if train else {}}


def build_model(name: str) -> nn.Module:
    """Build a network by calling a user's function, named as `module:function` or `file.py:function`."""
    from torch import nn

    function = load_network(name, f"model={name!r}")
    with user_code_errors(f"model={name!r}: the function, called without arguments, failed"):
        model = function()
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model={name!r}: the function returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def identify_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run, as JSON has them, that its result depends on.

    >>> identify_settings({"benchmark": "p-mnist", "train": {"lr": 0.1, "num_workers": 4}})
    {'benchmark': 'p-mnist', 'train': {'lr': 0.1}}
    """
    train = {name: value for name, value in (settings.get("train") or {}).items() if name not in SPEED_ONLY}
    return {**settings, "train": train}


def find_differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """In what two sets of settings differ, in words."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += find_differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key} was {before!r} and is {after!r}")
    return lines


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


# -- checking ----------------------------------------------------------------------------------------------------------


def find_setting_problems(settings: Mapping[str, Any]) -> list[str]:
    """What is wrong with some settings, in words; settings that are missing have their defaults.

    Options of a user's own method are not checked here: that would run its code.
    """
    defaults = {entry.name: entry.default for entry in describe_options(Config)} | {"benchmark": ""}
    values = defaults | {name: value for name, value in settings.items() if name in defaults}
    problems = find_unknown(settings, Config) + find_problems(Config, values)
    if isinstance(values["train"], Mapping):
        problems += find_table_problems(values["train"], Recipe, "train.")
    method = get_methods().get(str(values["method"]))
    if isinstance(values["options"], Mapping) and method is not None:
        problems += find_table_problems(values["options"], method, "options.")
    for number, change in enumerate(values["later"] if isinstance(values["later"], (list, tuple)) else ()):
        if isinstance(change, Mapping):
            first = change.get("from")
            if type(first) is not int or first < 1:
                problems.append(f"later[{number}] needs from = N, the number of the first task that it applies to, from 1")
            values_of_change = {name: value for name, value in change.items() if name != "from"}
            problems += find_table_problems(values_of_change, Recipe, f"later[{number}].")
    return problems


def find_table_problems(table: Mapping[str, Any], kind: type[Any], prefix: str) -> list[str]:
    """What is wrong with the values of a class of options, each named with a prefix."""
    defaults = {entry.name: entry.default for entry in describe_options(kind)}
    values = defaults | {name: value for name, value in table.items() if name in defaults}
    return find_unknown(table, kind, prefix) + [f"{prefix}{line}" for line in find_problems(kind, values)]


def find_unknown(table: Mapping[str, Any], kind: type[Any], prefix: str = "") -> list[str]:
    """The names in a table that a class of options does not have, in words."""
    names = [entry.name for entry in fields(kind)]
    others = f"there are {', '.join(names)}" if names else "there are none"
    unknown = [name for name in table if name not in names]
    return [f"{prefix}{name} is not a setting{suggest(name, names, prefix) or f'; {others}'}" for name in unknown]


def rename_deprecated(settings: Mapping[str, Any], warn: bool = False) -> dict[str, Any]:
    """Replace deprecated names, of settings, of training values and of the method's options; `warn` if a user wrote them."""
    names = rename_options(settings, Config, warn=warn)
    for table, kind in {"train": Recipe, "options": get_methods().get(str(names.get("method", "space")))}.items():
        if kind is not None and isinstance(names.get(table), Mapping):
            names[table] = rename_options(names[table], kind, f"{table}.", warn)
    return names


def rename_options(table: Mapping[str, Any], kind: type[Any], prefix: str = "", warn: bool = False) -> dict[str, Any]:
    """Replace the deprecated names of a class of options in a table of its values."""
    renamed: Mapping[str, str] = getattr(kind, "renamed_options", {})
    for old in table.keys() & renamed.keys() if warn else ():
        warn_user(f"The setting {prefix}{old} is deprecated; use {prefix}{renamed[old]}.", DeprecationWarning)
    return {renamed.get(name, name): value for name, value in table.items()}
