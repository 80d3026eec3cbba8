"""Plan a comparison: the settings of many runs, checked and written to a folder for each."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import disk
from ..data.benchmarks.presets import ABLATIONS, POST_VARIANCE, PUBLISHED
from ..errors import ConfigError
from .config import Config, build_model, choose_recipe, find_benchmark, find_differences, identify_settings
from .methods import METHOD_ORDER, shorten_method
from .resolve import fit_variance, merge_settings, resolve
from .result import read_result
from .run_folder import is_run, lock_run, shorten_name

Arms = dict[str, dict[str, Any]]  # by the name of its folder, the settings of each arm on top of those that all have
# SPACE's options in place of the paper's choices.
OURS = {"activations": "post", "selection": "effect", "freeze": "subnet", "compensate": True, "shrinkage": True}


def make_method_arms(names: str) -> Arms:
    """An arm for every method in a list with commas; "all" stands for those of spacecl. Users' own are named by their class."""
    chosen: list[str] = []
    for name in (part.strip() for part in names.split(",")):
        chosen += METHOD_ORDER if name.lower() == "all" else [name if ":" in name else name.lower()]
    unknown = [name for name in chosen if ":" not in name and name not in METHOD_ORDER]
    if unknown:
        raise ConfigError(
            f"There is no method {', '.join(unknown)}. The methods are {', '.join(METHOD_ORDER)}, or all, "
            "or your own as file.py:Class."
        )
    arms: Arms = {}
    for method in dict.fromkeys(chosen):
        name = shorten_method(method)
        if name in arms:
            raise ConfigError(f"Both {arms[name]['method']} and {method} are called {name}. Give one class another name.")
        arms[name] = {"method": method}
    return arms


def make_preset_arms(preset: str, settings: Mapping[str, Any]) -> Arms:
    """The arms of a preset of `spacecl compare`, for the benchmark and the network that the user's settings name."""
    benchmark = str(settings.get("benchmark"))
    model = str(settings.get("model", find_benchmark(benchmark).model))

    def space(**options: Any) -> dict[str, Any]:
        return {"method": "space", "options": options}

    if preset == "projection":
        return {"space": space(projection=True), "space-without-projection": space(projection=False)}
    if preset == "threshold":
        return {
            "space-uniform": space(**PUBLISHED, variance=0.99),
            "space-first-higher": space(**PUBLISHED, variance={_find_first_layer(model): 0.999, "*": 0.99}),
        }
    if preset == "choices":
        # Activations after the nonlinearity have fewer dimensions to explain, and thresholds of their own.
        kind = find_benchmark(benchmark)
        thresholds = (kind.find_preset("paper").options["space"]["variance"], POST_VARIANCE[kind.model])
        pre, post = (fit_variance(variance, model, kind) for variance in thresholds)
        arms = {"paper": space(**PUBLISHED, variance=pre)}
        for name, value in OURS.items():
            arms[f"paper-{name}"] = space(**{**PUBLISHED, name: value}, variance=post if name == "activations" else pre)
        return {**arms, "all": space(**PUBLISHED | OURS, variance=post)}
    if preset == "parts":
        former = {"projection": False} | {name: PUBLISHED[name] for name in (*OURS, "reuse", "distill_below")}
        return {"space": space()} | {f"space-without-{name}": space(**{name: value}) for name, value in former.items()}
    if preset == "frontier":
        arms = {f"space-{v}": space(**OURS, size=v) for v in (0.1, 0.2, 0.35, 0.5, 0.8)}
        arms |= {f"paper-{v}": space(**PUBLISHED, variance=v) for v in (0.9, 0.95, 0.98, 0.99, 0.995)}
        arms |= {f"packnet-{v}": {"method": "packnet", "options": {"prune": v}} for v in (0.98, 0.95, 0.9, 0.8, 0.6)}
        arms |= {f"wsn-{v}": {"method": "wsn", "options": {"density": v}} for v in (0.02, 0.05, 0.1, 0.3, 0.5)}
        arms |= {f"hat-{v}": {"method": "hat", "options": {"compressibility": v}} for v in (4.0, 2.0, 1.0, 0.5, 0.1)}
        return arms
    raise ConfigError(f"There is no preset {preset}. The presets are {', '.join(ABLATIONS)}.")


def _find_first_layer(model: str) -> str:
    """The name of the first layer of a network that could be narrowed."""
    from torch import nn

    from ..data.benchmarks.networks import NETWORKS

    if model in NETWORKS:
        return "hidden1" if model.startswith("mlp") else "conv1"
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return next((name for name, layer in build_model(model).named_modules() if isinstance(layer, layers)), "*")


def parse_seeds(text: str) -> list[int]:
    """Seeds from a number of them, counted from 0, or from a list with commas.

    >>> parse_seeds("3"), parse_seeds("4,7"), parse_seeds("5,")
    ([0, 1, 2], [4, 7], [5])
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or (numbers == [0] and "," not in text):
        raise ConfigError(f"--seeds {text} is neither a number of seeds, such as 3, nor a list of them, such as 0,1,5.")
    return numbers if "," in text else list(range(numbers[0]))


def plan_runs(settings: Mapping[str, Any], arms: Arms, seeds: Sequence[int], out: Path, data: str | None) -> list[Path]:
    """Check the settings of every arm with every seed, write each to a folder of its own, and return these folders.

    `settings` are the user's, for all runs; those of one method are in a table of its name. All problems are reported before
    anything is written.
    """
    used = {shorten_method(arm["method"]) for arm in arms.values()}
    names = {*METHOD_ORDER, *used}
    if "options" in settings:
        raise ConfigError(
            "Options belong to one method: name it, as in --set space.variance=0.9 or --set ewc.strength=10, "
            "instead of options.NAME."
        )
    common = {key: value for key, value in settings.items() if key not in names}
    unused = [name for name in settings if name in names and name not in used]
    if unused:
        raise ConfigError(f"There are settings for {', '.join(unused)}, but the methods are {', '.join(sorted(used))}.")
    configs: dict[Path, Config] = {}
    problems: dict[str, list[str]] = {}  # the arms that have each
    for seed in seeds:
        for name, arm in arms.items():
            method = shorten_method(arm["method"])
            own = {"options": settings[method]} if method in settings else {}
            try:
                configs[out / name / f"seed{seed}"] = resolve(merge_settings(common, own, arm, {"seed": seed}), data)
            except ConfigError as error:
                problems.setdefault(str(error), []).append(name)
    if problems:
        raise ConfigError("\n".join(f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in problems.items()))
    _check_same_settings(configs, out)
    for folder, config in configs.items():
        disk.make_folder(folder)
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ConfigError):  # another process that works there makes this run fail, not the comparison
                stack.enter_context(lock_run(folder))
            if not (folder / "config.json").exists():
                disk.write_file(folder / "config.json", json.dumps(config.to_json(), indent=1).encode())
    return list(configs)


def _check_same_settings(configs: Mapping[Path, Config], out: Path) -> None:
    """Refuse to plan runs in folders that hold runs with other settings."""
    for folder, config in configs.items():
        before = _read_config(folder)
        changes = [] if before is None else find_differences(identify_settings(before), identify_settings(config.to_json()))
        if changes:
            raise ConfigError(
                f"{folder} holds a run with other settings: {'; '.join(changes)}. Give another folder with --out, or "
                f"finish the runs in this one: spacecl compare --resume --out {shlex.quote(str(out))}"
            )


def find_planned_runs(out: str | os.PathLike[str]) -> list[Path]:
    """Find the folders of all runs in a folder and below it, sorted by seed."""
    top = Path(out)
    folders = [file.parent for file in sorted(top.rglob("config.json")) if is_run(file)] if top.is_dir() else []
    if not folders:
        raise ConfigError(f"{top} holds no runs to resume. Name what to compare, such as: spacecl compare permuted-digits")
    return sorted(folders, key=lambda folder: (_read_config(folder) or {}).get("seed", 0))


def _read_config(folder: Path) -> dict[str, Any] | None:
    """Read the settings of the run in a folder, finished or not; None where there is no run."""
    if (folder / "result.json").exists():
        return read_result(folder / "result.json")["config"]
    return Config.from_file(folder / "config.json").to_json() if (folder / "config.json").exists() else None


def choose_sweep_folder(settings: Mapping[str, Any], kind: str) -> str:
    """The folder of a comparison for which the user names none; `kind` is a preset, or "compare"."""
    benchmark = str(settings["benchmark"])
    return f"runs/{kind}-{shorten_name(benchmark)}-{choose_recipe(benchmark, settings.get('recipe'))}"
