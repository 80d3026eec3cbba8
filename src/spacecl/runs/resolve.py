"""Settings of a run from their sources: the benchmark's preset, then a TOML file, then the command line."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..data.benchmarks.presets import BENCHMARKS, PICTURES, Benchmark
from ..errors import ConfigError, SpaceError, warn_user
from ..learning.recipe import Recipe
from .config import (
    DEVICES,
    RECIPES,
    Config,
    _for_any_layer,
    _one_of,
    _order,
    _same_kind,
    find_benchmark,
    get_methods,
    load_function,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RENAMED = {"judge": "eval_split"}  # deprecated settings and their present names
_NAMES = {"benchmark": "", "recipe": "fast", "method": "space"}


def read_toml(file: str | Path) -> dict[str, Any]:
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


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Settings written as KEY=VALUE, with values as in TOML; a bare word is text.

    >>> parse_assignments(["train.lr=0.1", "order=random"])
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


def merge_settings(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings upon settings; tables are merged one level deep, everything else is replaced."""
    found: dict[str, Any] = {}
    for layer in layers:
        for key, value in _rename_deprecated(layer).items():
            both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
            found[key] = {**found[key], **value} if both else value
    return found


def _rename_deprecated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the deprecated names of settings that a user wrote, with a warning."""
    for old in settings.keys() & RENAMED.keys():
        warn_user(f"The setting {old} is deprecated; use {RENAMED[old]}.", DeprecationWarning)
    return {RENAMED.get(key, key): value for key, value in settings.items()}


def resolve(given: Mapping[str, Any], data: str | None = None) -> Config:
    """Settings with all that was left open filled in from the benchmark's preset, checked whole before anything runs."""
    import torch

    from ..data.benchmarks.networks import NETWORKS
    from ..data.benchmarks.streams import choose_tasks
    from ..data.sources import find_missing

    given = _rename_deprecated(given)
    wrong = _unknown(given, [entry.name for entry in fields(Config)], "")
    name, recipe, method = (str(given.get(key, default)) for key, default in _NAMES.items())
    benchmark = _benchmark(name, wrong)
    kind = benchmark or PICTURES
    _one_of(wrong, "recipe", recipe, RECIPES)
    _one_of(wrong, "method", method, tuple(get_methods()))
    for key, least in (("seed", 0), ("tasks", 1), ("limit", 2), ("image_size", 12)):
        value = given.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**40):
            wrong.append(
                f"{key} = {value!r} must be a whole number, at least {least}{' and below 2**40' if key == 'seed' else ''}"
            )
    _one_of(wrong, "device", given.get("device", "auto"), DEVICES)
    _one_of(wrong, "eval_split", given.get("eval_split", "test"), ("test", "valid"))
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
            load_function(model)
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
        key: given[key]
        for key in ("seed", "tasks", "limit", "image_size", "device", "eval_split")
        if given.get(key) is not None
    }
    if "tasks" not in plain and kind.tasks:
        plain["tasks"] = len(order) if isinstance(order, tuple) else kind.tasks
    if name not in BENCHMARKS:
        name = str(Path(name).absolute())
    if model.partition(":")[0].endswith(".py"):
        model = str(Path(model).absolute())
    fixed = {"order": order, "model": model, "head": head, "shared": tuple(shared)}
    return Config(name, method, recipe, train=train, later=later, options=options, **fixed, **plain)


def _benchmark(name: str, wrong: list[str]) -> Benchmark | None:
    script = name.partition(":")[0]
    if name in BENCHMARKS or (name and Path(name).is_dir()) or (script.endswith(".py") and Path(script).is_file()):
        return find_benchmark(name)
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


def get_preset_variance(benchmark: str, recipe: str, model: str) -> Any:
    """The thresholds that a recipe has for a benchmark; those for single layers only where the network has these layers."""
    kind = find_benchmark(benchmark)
    return _for_any_layer(dict(kind.recipes[recipe].options["space"]), _same_kind(model, kind))["variance"]


def _options(
    given: Mapping[str, Any], method: str, preset: dict[str, Any], preset_model: bool, wrong: list[str]
) -> dict[str, Any]:
    """The method's options: a preset's, and upon them the user's own."""
    own = _table(given, "options", wrong)
    if method not in get_methods():
        return own
    kind = get_methods()[method]
    names = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    wrong += _unknown(own, names, "options.")
    options = {**_for_any_layer(preset, preset_model), **{key: value for key, value in own.items() if key in names}}
    try:
        return asdict(kind(**options))
    except (SpaceError, TypeError, ValueError) as error:
        wrong.append(f"options: {error}")
        return options


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
