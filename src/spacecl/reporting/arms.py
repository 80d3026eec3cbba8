"""Many runs read together: which belong to one another, what to call them, and the table that compares them."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.benchmarks.presets import PUBLISHED
from ..errors import ConfigError, StoreError
from ..progress import format_duration
from ..runs.config import METHOD_ORDER, to_toml
from ..runs.costs import ENERGY_MODEL
from ..runs.result import read_result
from ..runs.run_folder import is_run

NAMES = {
    "space": "SPACE",
    "stl": "STL",
    "finetune": "Fine-tuning",
    "lwf": "LwF",
    "ewc": "EWC",
    "hat": "HAT",
    "packnet": "PackNet",
    "ucb": "UCB",
    "joint": "Joint",
}
SWITCHES = tuple(name for name in PUBLISHED if name != "samples")
BATCH = "64"  # of the energy in the table, as in the paper
Result = Mapping[str, Any]  # as read_result has it


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed alone."""

    label: str
    family: str  # what it has in common with arms that differ from it in numbers only
    results: tuple[Result, ...]  # by seed

    @property
    def method(self) -> str:
        return self.results[0]["method"]

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks; their numbers where seeds have them in another order."""
        names = {tuple(task["name"] for task in result["tasks"]) for result in self.results}
        return list(names.pop()) if len(names) == 1 else [f"task {n}" for n in range(1, len(self.results[0]["tasks"]) + 1)]

    def mean(self, value: Callable[[Result], float]) -> float:
        return statistics.fmean(map(value, self.results))

    def spread(self, value: Callable[[Result], float]) -> float | None:
        """The sample's standard deviation over seeds; none of a single run."""
        return statistics.stdev(map(value, self.results)) if len(self.results) > 1 else None

    def over_tasks(self, value: Callable[[Result, int], float]) -> list[float]:
        """A value for every task, by its number, averaged over seeds."""
        return [statistics.fmean(value(result, n) for result in self.results) for n in range(len(self.tasks))]

    def spread_over_tasks(self, value: Callable[[Result, int], float]) -> list[float]:
        """The same for its standard deviation; nothing of a single run."""
        if len(self.results) < 2:
            return []
        return [statistics.stdev(value(result, n) for result in self.results) for n in range(len(self.tasks))]


def read(folder: str | os.PathLike[str]) -> tuple[list[Arm], list[str]]:
    """The finished runs in a folder and all below it, as arms; and what was found there and left out, in words."""
    top = Path(folder)
    if not top.is_dir():
        raise ConfigError(f"{top} is no folder. Give one that holds runs, such as runs/cmp.")
    found, left = {}, []
    for file in sorted(top.rglob("config.json")):
        if is_run(file) and not (file.parent / "result.json").exists():
            left.append(f"{_name(file, top)} (not finished)")
    for file in sorted(top.rglob("result.json")):
        try:
            result = read_result(file)
        except StoreError as error:
            left.append(f"{_name(file, top)} ({error})")
            continue
        if all({"costs", "spectrum", "used"} <= task.keys() for task in result["tasks"]):
            found[file.parent] = result
        else:
            left.append(f"{_name(file, top)} (its result.json is of another version)")
    if not found:
        more = f": {', '.join(left)}" if left else ""
        raise ConfigError(f"{top} holds no finished run that can be shown{more}. spacecl run and spacecl compare make some.")
    kinds = sorted({result["benchmark"] for result in found.values()})
    if len(kinds) > 1:
        raise ConfigError(f"{top} holds runs of {', '.join(kinds)}. One table is for one of them: give its own folder.")
    arms, again = _arms(found)
    return arms, left + [f"{_name(path / 'result.json', top)} (the same settings and seed as another)" for path in again]


def _name(file: Path, top: Path) -> str:
    return str(file.parent.relative_to(top)) if file.parent != top else str(top)


def _arms(found: Mapping[Path, Result]) -> tuple[list[Arm], list[Path]]:
    """Runs that differ in their seed alone, together; a seed that comes twice counts once."""
    together: dict[str, dict[int, Path]] = {}
    again = []
    for path, result in found.items():
        same = {key: value for key, value in result["config"].items() if key != "seed"}
        seeds = together.setdefault(json.dumps([same, len(result["tasks"])], sort_keys=True), {})
        if seeds.setdefault(result["seed"], path) != path:
            again.append(path)
    settings = [found[next(iter(seeds.values()))]["config"] for seeds in together.values()]
    arms = []
    for config, seeds in zip(settings, together.values()):
        family = _family(config)
        results = tuple(found[seeds[seed]] for seed in sorted(seeds))
        arms.append(Arm(_label(config, family, settings), family, results))
    key = lambda arm: (METHOD_ORDER.index(arm.method), "paper" not in arm.family, arm.family, arm.results[0]["size"])  # noqa: E731
    return sorted(arms, key=key), again


def _family(config: Mapping[str, Any]) -> str:
    """What a method is called, and for SPACE which of the paper's choices it has."""
    name, options = NAMES[config["method"]], config["options"]
    if config["method"] != "space":
        return name
    published = [switch for switch in SWITCHES if options[switch] == PUBLISHED[switch]]
    paper = 2 * len(published) > len(SWITCHES)
    other = [switch for switch in SWITCHES if (switch in published) != paper]
    text = ", ".join(_told(switch, options[switch]) for switch in other)
    text = ", ".join(filter(None, (text, "" if options["projection"] else "without projection")))
    return f"{name}{'.paper' if paper else ''}{f' ({text})' if text else ''}"


def _label(config: Mapping[str, Any], family: str, others: Sequence[Mapping[str, Any]]) -> str:
    """A family's name with all that tells this arm from others: a method's options, and settings that all have."""
    flat = _flat(config)
    same = [_flat(other) for other in others if other["method"] == config["method"]]
    named = {"method", *(f"options.{name}" for name in (*SWITCHES, "projection") if config["method"] == "space")}
    varied = [
        key
        for key in flat
        if key not in named
        and any(other.get(key) != flat[key] for other in (same if key.startswith("options.") else map(_flat, others)))
    ]
    text = ", ".join(_told(key.split(".")[-1], flat[key]) for key in varied)
    return f"{family}{f': {text}' if text else ''}"


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by one name each; a method's options and a recipe's values after a dot."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key in ("train", "options"):
            found |= {f"{key}.{name}": entry for name, entry in value.items()}
        elif key != "seed":
            found[key] = value
    return found


def _told(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    if isinstance(value, Mapping) and value and not any(isinstance(entry, Mapping) for entry in value.values()):
        return f"{name} {' '.join(f'{key} {entry}' for key, entry in value.items())}"
    return f"{name} {'none' if value is None or value == {} else value if isinstance(value, str) else to_toml(value)}"


def energy(result: Result, number: int, kind: str = "network", how: str = "modelled", batch: str = BATCH) -> float:
    """Joules of one inference of a task's network, or of the full one ("dense") in its place."""
    cost = result["tasks"][number]["costs"][kind]
    return cost["energy_modelled"][batch] if how == "modelled" else cost["measured"]["energy"][batch]


def relative_energy(result: Result, number: int, how: str) -> float:
    """The energy of a task's network over that of the full network with the task's head, which is what STL runs."""
    return energy(result, number, how=how) / energy(result, number, "dense", how)


def how_known(arms: Sequence[Arm]) -> str:
    """Whether energy can be shown as measured: only if it was, in every run."""
    costs = [cost for arm in arms for result in arm.results for task in result["tasks"] for cost in task["costs"].values()]
    return "measured" if all((cost.get("measured") or {}).get("energy") for cost in costs) else "modelled"


def average_energy(how: str) -> Callable[[Result], float]:
    """The mean over tasks of a run's relative energy."""
    return lambda result: sum(relative_energy(result, n, how) for n in range(len(result["tasks"]))) / len(result["tasks"])


def training_seconds(result: Result) -> float:
    return result["seconds"]["total"] - result["seconds"].get("test", 0.0)


def columns(how: str) -> list[tuple[str, Callable[[Result], float], Callable[[float], str]]]:
    """The columns of the table: a title, the value of a run, and how it is written."""
    return [
        ("accuracy, %", lambda result: 100 * result["average_accuracy"], lambda value: f"{value:.2f}"),
        ("network size", lambda result: result["size"], lambda value: f"{value:.3f}"),
        (f"energy / STL ({how})", average_energy(how), lambda value: f"{value:.3f}"),
        ("forgetting, %", lambda result: 100 * result["forgetting"], lambda value: f"{value:.2f}"),
        ("training time", training_seconds, format_duration),
    ]


def table(arms: Sequence[Arm]) -> tuple[list[str], list[list[str]]]:
    """The paper's Table 1 for some arms: titles, and a row of texts for each arm; mean and, over seeds, standard deviation."""
    shown = columns(how_known(arms))
    rows = []
    for arm in arms:
        row = [arm.label]
        for title, value, write in shown:
            spread = arm.spread(value)
            more = "" if spread is None or title == "training time" else f" ± {write(spread)}"
            row.append(write(arm.mean(value)) + more)
        rows.append([*row, str(len(arm.results))])
    return ["method", *(title for title, _, _ in shown), "runs"], rows


def numbers(arms: Sequence[Arm]) -> tuple[list[str], list[list[str]]]:
    """The same table for programs: means and standard deviations in columns of their own, times in seconds."""
    shown = columns(how_known(arms))
    titles = [part for title, _, _ in shown for part in (f"{title}, mean", f"{title}, standard deviation")]
    rows = []
    for arm in arms:
        pairs = [(arm.mean(value), arm.spread(value)) for _, value, _ in shown]
        rows.append(
            [arm.label, *("" if part is None else repr(part) for pair in pairs for part in pair), str(len(arm.results))]
        )
    return ["method", *titles, "runs"], rows


def judged(arms: Sequence[Arm]) -> str:
    """Which data accuracy was measured on."""
    kinds = {arm.results[0]["config"]["eval_split"] for arm in arms}
    return {"test": "test", "valid": "validation"}[kinds.pop()] if len(kinds) == 1 else "test or validation"


def title(arms: Sequence[Arm]) -> str:
    """What all arms have in common."""
    configs = [arm.results[0]["config"] for arm in arms]
    parts = [Path(configs[0]["benchmark"]).name]
    tasks, recipes, limits = ({len(arm.tasks) for arm in arms}, *({c[key] for c in configs} for key in ("recipe", "limit")))
    parts += [f"{tasks.pop()} tasks"] if len(tasks) == 1 else []
    parts += [f"recipe {recipes.pop()}"] if len(recipes) == 1 else []
    parts += [f"{limits.pop()} images a class"] if len(limits) == 1 and limits != {None} else []
    return ", ".join(parts) + ("" if judged(arms) == "test" else f": {judged(arms)} data")


def remarks(arms: Sequence[Arm]) -> str:
    """What one has to know to read the table."""
    seeds = max(len(arm.results) for arm in arms)
    spread = "Mean ± standard deviation over seeds. " if seeds > 1 else ""
    how = how_known(arms)
    meters = {str(arm.results[0]["tasks"][0]["costs"]["network"].get("measured", {}).get("meter")) for arm in arms}
    told = f"modelled ({ENERGY_MODEL})" if how == "modelled" else f"measured ({', '.join(sorted(meters))})"
    return (
        f"{spread}Accuracy on {judged(arms)} data. Network size: parameters of all tasks' networks together over those of one "
        f"full backbone. Energy: of one inference at batch {BATCH}, {told}, over that of the full network, which STL runs; "
        "mean over tasks. Training time: of each run, which may have shared the machine with others."
    )
