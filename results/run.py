"""Run what plan.toml lists and no folder here has yet. Every run resumes after an interruption.

    python results/run.py --plan              # what is missing, and how long it will take
    python results/run.py --jobs 2            # do it; also as: make results
    python results/run.py --only split-cifar10,p-mnist

Runs are in progress in --work (default: runs/results). When one has finished, its result.json and environment.json are
copied to results/NAME/ARM/seedN.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from spacecl.progress import format_duration
from spacecl.runs.executors import Job, run_locally
from spacecl.runs.result import read_result
from spacecl.runs.sweep_plan import make_method_arms, make_preset_arms, plan_runs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
FILES = ("result.json", "environment.json")


@dataclass(frozen=True)
class Run:
    """One run of the plan: where it is in progress, and where its result belongs."""

    comparison: str
    arm: str
    seed: int
    work: Path
    minutes: float  # the guess of the plan

    @property
    def name(self) -> str:
        return f"{self.comparison}/{self.arm}/seed{self.seed}"

    @property
    def result(self) -> Path:
        return HERE / self.name / "result.json"


def plan(names: Sequence[str] | None, work: Path, data: str | None) -> list[Run]:
    """All runs of the plan, finished or not, in the order in which they are done."""
    entries: Mapping[str, Any] = tomllib.loads((HERE / "plan.toml").read_text())
    unknown = [name for name in names or () if name not in entries]
    if unknown:
        sys.exit(f"There is no {', '.join(unknown)}. The plan has: {', '.join(entries)}.")
    runs: list[Run] = []
    for name in names or entries:
        entry = entries[name]
        settings = {"benchmark": entry["benchmark"], **entry.get("settings", {})}
        arms = make_preset_arms(entry["preset"], settings) if "preset" in entry else make_method_arms(entry["methods"])
        folders = plan_runs(settings, arms, entry["seeds"], work / name, data)
        for folder, (seed, arm) in zip(folders, ((seed, arm) for seed in entry["seeds"] for arm in arms)):
            runs.append(Run(name, arm, seed, folder, entry["minutes"]))
    return sorted(runs, key=lambda run: run.seed)


def estimate_seconds(run: Run, finished: Sequence[Run]) -> float:
    """How long a run will take: as others of its arm, else as the plan guesses."""
    same = [other for other in finished if (other.comparison, other.arm) == (run.comparison, run.arm)]
    return mean(read_result(other.result)["seconds"]["total"] for other in same) if same else 60 * run.minutes


def do_runs(runs: Sequence[Run], jobs: int, data: str | None) -> Iterator[tuple[Run, str | None]]:
    """Do runs, and yield each when it ends, with its problem if it has failed. Results are copied as they come."""
    by_name = {run.name: run for run in runs}
    planned = [Job(run.name, str(run.work.absolute()), data, 1, False, {}) for run in runs]
    for job, outcome in run_locally(planned, jobs):
        run = by_name[job.name]
        if outcome.problem is None:
            run.result.parent.mkdir(parents=True, exist_ok=True)
            for file in reversed(FILES):  # the result last: it says that the run is finished
                shutil.copy2(run.work / file, run.result.parent / file)
        yield run, outcome.problem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true", help="print what is missing, and do nothing")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAMES", help="comparisons of the plan")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at the same time (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path("runs/results"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--data", metavar="DIR", help="folder with datasets (default: $SPACECL_DATA, else a cache folder)")
    options = parser.parse_args()
    runs = plan(options.only, options.work, options.data)
    finished = [run for run in runs if run.result.exists()]
    missing = [run for run in runs if not run.result.exists()]
    seconds = {run: estimate_seconds(run, finished) for run in missing}
    for run in missing if options.plan else ():
        print(f"{format_duration(seconds[run]):>10}  {run.name}")
    total = format_duration(sum(seconds.values()))
    print(f"{len(finished)} of {len(runs)} runs are finished. The others take about {total} on one thread.", flush=True)
    if options.plan:
        return 0
    failures = 0
    for run, problem in do_runs(missing, options.jobs, options.data):
        failures += problem is not None
        result = None if problem is not None else read_result(run.result)
        text = f"failed: {problem}" if result is None else f"{result['average_score']:.2%}, size {result['size']:.3f}"
        print(f"{run.name}: {text}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
