"""Settings of a run from their sources: the benchmark's preset, then a TOML file, then the command line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..data.benchmarks.presets import BENCHMARKS, PICTURES, TASKS, Benchmark, Preset
from ..data.benchmarks.published import TARGETS
from ..data.registry import load_network, load_registered
from ..errors import ConfigError
from ..learning.recipe import Recipe
from ..options import describe_options, suggest
from ..user_code import make_absolute
from .config import (
    Config,
    choose_recipe,
    find_benchmark,
    find_setting_problems,
    find_table_problems,
    rename_deprecated,
    rename_options,
    to_toml,
)
from .methods import get_methods, is_own, load_method, make_method

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = Mapping[str, Any]  # as a user writes them: some of the fields of Config, in part


def read_toml(file: str | Path) -> dict[str, Any]:
    """Read settings from a TOML file."""
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


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Parse settings written as KEY=VALUE, with values as in TOML; a bare word is text.

    >>> parse_assignments(["train.lr=0.1", "order=random"])
    {'train': {'lr': 0.1}, 'order': 'random'}
    """
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text} is not of the form KEY=VALUE, such as train.lr=0.01.")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = {"true": True, "false": False, "null": None}.get(value.strip().lower(), value.strip())
        table = settings
        *outer, last = key.strip().split(".")
        for name in outer:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {text}: {name} is already set to {table!r}, which is not a table.")
        table[last] = parsed
    return settings


def merge_settings(*layers: Settings) -> dict[str, Any]:
    """Merge settings, later ones over earlier ones: tables entry by entry, one level deep, everything else as a whole."""
    settings: dict[str, Any] = {}
    for layer in layers:
        for key, value in rename_options(layer, Config, warn=True).items():
            are_tables = isinstance(value, Mapping) and isinstance(settings.get(key), Mapping)
            settings[key] = {**settings[key], **value} if are_tables else value
    return settings


def resolve(settings: Settings, data: str | None = None) -> Config:
    """Complete a user's settings from the benchmark's preset, and report every problem before anything runs.

    `data` names the folders that are searched for datasets. Settings that are None count as not set.
    """
    from ..data.sources import find_missing

    settings = rename_deprecated({name: value for name, value in settings.items() if value is not None}, warn=True)
    names = {name: str(settings.get(name, default)) for name, default in _NAMES.items()}
    benchmark, problems = _load_benchmark(names["benchmark"], settings.get("seed"))
    if isinstance(settings.get("recipe", ""), str):
        settings["recipe"] = names["recipe"] = choose_recipe(names["benchmark"], settings.get("recipe"))
    values = _complete(settings, benchmark, names["method"], names["recipe"])
    problems += [*_find_benchmark_problems(names["benchmark"]), *find_setting_problems(values)]
    invalid = {re.split(r"[^\w.]", line)[0] for line in problems}  # each begins with the name of its setting
    defaults = {entry.name: entry.default for entry in describe_options(Config)}
    valid = defaults | {name: value for name, value in values.items() if name not in invalid}
    problems += _find_device_problems(valid["device"], valid["precision"])
    problems += _find_model_problems(valid["model"], valid["seed"])
    problems += _find_method_problems(valid["method"], values["options"], valid["seed"])
    if benchmark is not PICTURES and valid["image_size"] != defaults["image_size"]:
        problems.append("image_size is for folders of pictures; other data have a size of their own")
    needed: Sequence[str] = benchmark.datasets
    if benchmark.datasets and not invalid & {"order", "tasks", "seed"}:
        try:
            needed = _datasets_for(benchmark, valid)
        except ConfigError as error:
            problems.append(str(error))
    problems += find_missing(needed, data)
    if problems:
        lines = "\n".join(f"  - {line if line[-1] in '.?' else f'{line}.'}" for line in problems)
        raise ConfigError(f"This run cannot be started, for {len(problems)} reason{'s' if len(problems) > 1 else ''}:\n{lines}")
    return _build(values, benchmark)


def _load_benchmark(name: str, seed: Any) -> tuple[Benchmark, list[str]]:
    """A benchmark by its name, or with what a user's file registers; and why the file cannot be executed, if so."""
    from ..seeds import use_seed

    benchmark = find_benchmark(name)
    if benchmark is not TASKS or _find_benchmark_problems(name):
        return benchmark, []
    try:
        with use_seed(seed if type(seed) is int and 0 <= seed < 2**40 else 0):  # as it will be; the file is executed once
            own = load_registered(name)
    except ConfigError as error:
        return benchmark, [f"benchmark={name!r}: {error}"]
    if own is None:
        return benchmark, []
    recipes = {**TASKS.recipes, "auto": replace(TASKS.find_preset("auto"), train=own.train)}
    return replace(TASKS, model=own.model or TASKS.model, recipes=recipes), []


_NAMES = {"benchmark": "", "method": "space", "recipe": "fast"}


def _complete(settings: Settings, benchmark: Benchmark, method: str, recipe: str) -> dict[str, Any]:
    """Add what a preset sets. What a user sets for all tasks replaces the preset's later values, too."""
    preset = benchmark.find_preset(recipe)
    values: dict[str, Any] = {"model": benchmark.model, **settings}
    train, own_options, later = settings.get("train", {}), settings.get("options", {}), settings.get("later")
    if isinstance(train, Mapping):
        values["train"] = {**preset.train, **train}
        values["later"] = _keep_later(preset, train)
    if later is not None:
        values["later"] = [later] if isinstance(later, Mapping) else later
    if isinstance(own_options, Mapping):
        preset_options = _preset_options(preset, method, str(values["model"]), benchmark)
        if any(own_options.get(name) is not None for name in TARGETS):  # which exclude each other
            preset_options = {name: value for name, value in preset_options.items() if name not in TARGETS}
        values["options"] = {**preset_options, **own_options}
    return values


def _keep_later(preset: Preset, train: Settings) -> list[dict[str, Any]]:
    """A preset's later values without those that a user sets for all tasks."""
    changes = [{key: value for key, value in change.items() if key not in train} for change in preset.later]
    return [change for change in changes if len(change) > 1]


def _build(values: Settings, benchmark: Benchmark) -> Config:
    """Make a Config of checked settings; paths become absolute, so that the run can be resumed from another folder."""
    values = dict(values)
    order = values.get("order")
    if "tasks" not in values and benchmark.tasks:
        values["tasks"] = benchmark.tasks if order is None or isinstance(order, str) else len(order)
    if values["benchmark"] not in BENCHMARKS:
        values["benchmark"] = str(Path(values["benchmark"]).absolute())
    values["model"] = make_absolute(values["model"])
    values["method"] = make_absolute(values.get("method", "space"))
    train = asdict(Recipe(**values["train"]))  # type: ignore[call-overload]
    values["train"] = {name: train[name] for name in values["train"]} if values["recipe"] == "auto" else train
    values["later"] = [change for change in values["later"] if len(change) > 1]
    values["options"] = asdict(make_method(values["method"], values["options"], values.get("seed", 0)))  # type: ignore[call-overload]
    return Config(**values)


def _find_benchmark_problems(name: str) -> list[str]:
    script = name.partition(":")[0]
    if name in BENCHMARKS or (name and Path(name).is_dir()) or (script.endswith(".py") and Path(script).is_file()):
        return []
    if script.endswith(".py"):
        return [f"benchmark={name!r}: the file {script} does not exist"]
    hint = suggest(name, BENCHMARKS) or f"; the benchmarks are {', '.join(BENCHMARKS)}"
    return [f"benchmark={name!r} is neither a benchmark nor a folder or Python file of tasks{hint}"]


def _find_device_problems(device: str, precision: str) -> list[str]:
    import torch

    available: dict[str, Callable[[], bool]] = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    if device in available and not available[device]():
        return [f"device={device!r} is not available on this machine; leave it out, or use cpu"]
    if (
        precision != "32-true"
        and device in ("auto", "cuda")
        and torch.cuda.is_available()
        and not torch.cuda.is_bf16_supported()
    ):
        return [f"precision={precision!r} needs a GPU that computes in bfloat16, which this one does not; leave it out"]
    return []


def _find_model_problems(model: str, seed: int) -> list[str]:
    from ..data.benchmarks.networks import NETWORKS
    from ..seeds import use_seed

    if model in NETWORKS:
        return []
    if ":" not in model:
        return [f"model={model!r} must be one of {', '.join(NETWORKS)}, or module:function or file.py:function"]
    try:
        with use_seed(seed):  # as it will be built; the file is executed once
            load_network(model, f"model={model!r}")
    except ConfigError as error:
        return [str(error)]
    return []


def _find_method_problems(method: str, options: Any, seed: int) -> list[str]:
    """What is wrong with a user's own method and its options; those of spacecl's methods are checked with all settings."""
    if not is_own(method):
        return []
    try:
        kind = load_method(method, seed)
        problems = find_table_problems(options, kind, "options.") if isinstance(options, Mapping) else []
        if not problems and isinstance(options, Mapping):
            make_method(method, options, seed)
    except ConfigError as error:
        return [str(error)]
    return problems


def _datasets_for(benchmark: Benchmark, values: Settings) -> Sequence[str]:
    """The datasets that the chosen tasks of a benchmark need."""
    from ..data.benchmarks.streams import choose_tasks

    numbers = choose_tasks(benchmark, values["tasks"], values["order"], values["seed"])
    return [benchmark.datasets[number] for number in sorted(numbers)] if benchmark.kind == "datasets" else benchmark.datasets


# -- presets ------------------------------------------------------------------------------------------------------------


def _preset_options(preset: Preset, method: str, model: str, benchmark: Benchmark) -> dict[str, Any]:
    """A preset's options for a method."""
    values = dict(preset.options.get(method, {}))
    if "variance" in values:
        values["variance"] = fit_variance(values["variance"], model, benchmark)
    return values


def fit_variance(variance: Any, model: str, benchmark: Benchmark) -> Any:
    """Thresholds of a benchmark name layers of its own network; those of another network all get the value for the rest."""
    if isinstance(variance, Mapping) and model.split("-")[0] != benchmark.model.split("-")[0]:
        return variance.get("*", min(variance.values()))
    return variance


def to_command(config: Config) -> list[str]:
    """The shortest command line that gives these settings: what differs from the recipe, and the recipe itself."""
    benchmark = find_benchmark(config.benchmark)
    preset = benchmark.find_preset(config.recipe)
    defaults = {entry.name: entry.default for entry in describe_options(Config)}
    defaults |= {"tasks": benchmark.tasks, "model": benchmark.model}
    defaults |= {"recipe": None, "seed": None}  # always shown
    flags = ("method", "recipe", "seed", "limit", "device", "tasks", "model")
    settings = config.to_json()
    command = ["spacecl", "run", config.benchmark]
    for name in flags:
        if settings[name] not in (None, defaults[name]):
            command += [f"--{name}", str(settings[name])]
    changed = {name: settings[name] for name in ("order", "image_size", "precision", "head", "shared", "eval_split")}
    changed = {name: value for name, value in changed.items() if value != _to_json(defaults[name])}
    train = {} if config.recipe == "auto" else _to_json(asdict(Recipe(**preset.train)))  # type: ignore[call-overload]
    own_train = {name: value for name, value in settings["train"].items() if name not in train or value != train[name]}
    usual = {}
    if not is_own(config.method):  # whose code is not to be run
        method = get_methods()[config.method](**_preset_options(preset, config.method, config.model, benchmark))
        usual = _to_json(asdict(method))
    own_options = {name: value for name, value in settings["options"].items() if name not in usual or value != usual[name]}
    changed |= {f"train.{name}": value for name, value in own_train.items()}
    changed |= {f"options.{name}": value for name, value in own_options.items()}
    if settings["later"] != _to_json(_keep_later(preset, own_train)):
        changed["later"] = settings["later"]
    return command + [part for name, value in changed.items() for part in ("--set", f"{name}={to_toml(value)}")]


def _to_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
