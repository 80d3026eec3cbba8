"""Read the results of many runs and group them into arms and comparisons.

Runs that differ only in their seed are an arm. The arms of one benchmark are a comparison.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ConfigError, StoreError
from ..runs.config import Config, identify_settings
from ..runs.methods import METHOD_ORDER
from ..runs.metrics import name_metric
from ..runs.result import Result, read_result
from ..runs.run_folder import is_run
from .labels import list_differences, name_family

# Methods that others are compared with: they use more than one network, or all data at once, or do nothing against forgetting.
REFERENCES = {
    "stl": "A network for each task has",
    "joint": "Training on the data of all tasks has",
    "finetune": "Plain fine-tuning has",
}
LONGEST_DIFFERENCES = 60  # letters; arms with longer lists of differing settings are named after their folder


@dataclass(frozen=True)
class Arm:
    """Runs that differ only in their seed, sorted by seed."""

    label: str
    family: str  # a name in common with arms that differ from it only in numbers
    results: tuple[Result, ...]
    look: int = 0  # number of its colour

    @property
    def method(self) -> str:
        return self.results[0]["method"]

    @property
    def config(self) -> Config:
        """The settings, with the first seed."""
        return Config.from_json(self.results[0]["config"])

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks, or their numbers where seeds have another order."""
        names = {tuple(task["name"] for task in result["tasks"]) for result in self.results}
        return list(names.pop()) if len(names) == 1 else [f"task {n}" for n in range(1, len(self.results[0]["tasks"]) + 1)]

    def mean(self, value: Callable[[Result], float | None]) -> float | None:
        """The mean of a value over seeds; None if a run does not have it."""
        values = _keep_if_complete(map(value, self.results))
        return statistics.fmean(values) if values else None

    def deviation(self, value: Callable[[Result], float | None]) -> float | None:
        """The sample standard deviation over seeds; None for a single run or if a run does not have the value."""
        values = _keep_if_complete(map(value, self.results))
        return statistics.stdev(values) if len(values) > 1 else None

    def mean_by_task(self, value: Callable[[Result, int], float | None]) -> list[float]:
        """The mean over seeds for every task of a value by result and index of the task; empty if some value is missing."""
        return _keep_if_complete(self.mean(_for_task(value, n)) for n in range(len(self.tasks)))

    def deviation_by_task(self, value: Callable[[Result, int], float | None]) -> list[float]:
        """The same for the standard deviation; empty for a single run."""
        return _keep_if_complete(self.deviation(_for_task(value, n)) for n in range(len(self.tasks)))


@dataclass(frozen=True)
class Comparison:
    """All arms of one benchmark, in the order of the table."""

    benchmark: str
    arms: tuple[Arm, ...]

    @property
    def metric(self) -> str:
        """The metric of all tasks; "score" if they have several."""
        return name_metric(result["metric"] for arm in self.arms for result in arm.results)

    @property
    def metrics(self) -> list[str]:
        """The metrics of single tasks."""
        tasks = (task for arm in self.arms for result in arm.results for task in result["tasks"])
        return list(dict.fromkeys(task["metric"] for task in tasks))

    @property
    def split(self) -> str:
        """The data that scores were measured on."""
        splits = {arm.config.eval_split for arm in self.arms}
        return {"test": "test", "valid": "validation"}[splits.pop()] if len(splits) == 1 else "test or validation"

    @property
    def title(self) -> str:
        """The benchmark, and the settings that all arms share."""
        configs = [arm.config for arm in self.arms]
        parts = [Path(self.benchmark).name]
        counts, recipes = {len(arm.tasks) for arm in self.arms}, {config.recipe for config in configs}
        limits = {config.limit for config in configs}
        parts += [f"{counts.pop()} tasks"] if len(counts) == 1 else []
        parts += [f"recipe {recipes.pop()}"] if len(recipes) == 1 else []
        parts += [f"{limits.pop()} images a class"] if len(limits) == 1 and limits != {None} else []
        return ", ".join(parts) + ("" if self.split == "test" else f": {self.split} data")


def read_comparisons(folder: str | os.PathLike[str]) -> tuple[list[Comparison], list[str]]:
    """Read all finished runs in a folder and below it.

    Returns a comparison for each benchmark, and a line for each run that was left out, with the reason.
    """
    top = Path(folder)
    if not top.is_dir():
        raise ConfigError(f"{top} is not a folder. Give one that holds runs, such as runs/cmp.")
    results, left_out = {}, []
    for file in sorted(top.rglob("config.json")):
        if is_run(file) and not (file.parent / "result.json").exists():
            left_out.append(f"{_name_run(file.parent, top)} (not finished)")
    for file in sorted(top.rglob("result.json")):
        try:
            results[file.parent] = read_result(file)
        except StoreError as error:
            left_out.append(f"{_name_run(file.parent, top)} ({error})")
    if not results:
        reasons = f": {', '.join(left_out)}" if left_out else ""
        raise ConfigError(f"{top} holds no finished run that can be shown{reasons}. Make some with spacecl run or compare.")
    comparisons = []
    for benchmark in sorted({result["benchmark"] for result in results.values()}):
        arms, repeated = group_runs({path: result for path, result in results.items() if result["benchmark"] == benchmark}, top)
        comparisons.append(Comparison(benchmark, tuple(arms)))
        left_out += [f"{_name_run(path, top)} (the same settings and seed as another)" for path in repeated]
    return comparisons, left_out


def group_runs(results: Mapping[Path, Result], top: Path) -> tuple[list[Arm], list[Path]]:
    """Group the runs of one benchmark into arms; also return the folders of runs that repeat another's settings and seed."""
    seeds_by_settings: dict[str, dict[int, Path]] = {}
    repeated = []
    for path, result in results.items():
        settings = {key: value for key, value in identify_settings(result["config"]).items() if key != "seed"}
        seeds = seeds_by_settings.setdefault(json.dumps([settings, len(result["tasks"])], sort_keys=True), {})
        if seeds.setdefault(result["seed"], path) != path:
            repeated.append(path)
    folders = [[seeds[seed] for seed in sorted(seeds)] for seeds in seeds_by_settings.values()]
    labels = _name_arms([results[paths[0]]["config"] for paths in folders], folders, top)
    arms = [
        Arm(label, name_family(results[paths[0]]["config"]), tuple(results[path] for path in paths))
        for label, paths in zip(labels, folders)
    ]
    order = {method: number for number, method in enumerate(METHOD_ORDER)}  # users' own methods come last
    arms.sort(
        key=lambda arm: (
            order.get(arm.method, len(order)),
            "paper" not in arm.family,
            arm.family,
            arm.results[0]["size"],
        )
    )
    space_first = sorted(arms, key=lambda arm: arm.method != "space")  # so that its colour is the same on every page
    return [replace(arm, look=space_first.index(arm)) for arm in arms], repeated


def _name_arms(configs: Sequence[Mapping[str, object]], folders: Sequence[Sequence[Path]], top: Path) -> list[str]:
    """Name each arm after its family and the settings that tell it from others, or after its folder if these are many."""
    places = [os.path.relpath(os.path.commonpath(paths), top) for paths in folders]
    labels = []
    for config, place in zip(configs, places):
        differences = list_differences(config, configs)
        if len(differences) > LONGEST_DIFFERENCES and place != "." and Counter(places)[place] == 1:
            differences = place
        labels.append(f"{name_family(config)}{f': {differences}' if differences else ''}")
    return labels


def _name_run(folder: Path, top: Path) -> str:
    return str(folder.relative_to(top)) if folder != top else str(top)


def _for_task(value: Callable[[Result, int], float | None], task: int) -> Callable[[Result], float | None]:
    return lambda result: value(result, task)


def _keep_if_complete(values: Iterable[float | None]) -> list[float]:
    """Return the values if none of them is missing, otherwise an empty list."""
    numbers = list(values)
    present = [number for number in numbers if number is not None]
    return present if len(present) == len(numbers) else []
