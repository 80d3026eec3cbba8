"""Open the folder of a run, or of a saved learner, to use its networks, its data and its records."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .. import store
from ..data.task import Task
from ..errors import ConfigError
from ..learner import Learner
from ..seeds import use_seed
from .config import Config, build_model
from .metrics_log import read_rows
from .result import read_result
from .run_folder import load_learner, load_tasks, refuse_code


@dataclass(frozen=True)
class RecordedTask:
    """What a run has recorded about a task, beside the learner itself."""

    score: float  # in the latest test
    digest: str | None = None  # known only when the run is finished


@dataclass(frozen=True)
class OpenRun:
    """A folder with a learner: that of a run, with its settings, or one of `Learner.save`.

    Code that the folder itself names is run only if the user trusts it.
    """

    folder: Path
    config: Config | None  # of a run
    network: str | None = None  # module:function that makes the network, where the user names it
    trusted: bool = False

    @property
    def model(self) -> Path:
        """The folder of the saved learner itself."""
        return self.folder / "model" if self.config is not None else self.folder

    @property
    def untrusted_code(self) -> list[str]:
        """The code that would have to be run to build the network, and may not be."""
        if self.config is None or self.network is not None or self.trusted:
            return []
        return [name for name in self.config.find_user_code() if name == self.config.model]

    def learner(self, verify: bool = True) -> Learner:
        """Load the learner; with `verify`, compare its networks with the digests of their commits."""
        refuse_code(self.folder, self.untrusted_code, "name the network yourself with --model FILE.py:function")
        if self.config is not None:
            return load_learner(self.model, self.config, self.network, verify)
        if self.network is None:
            raise ConfigError(
                f"{self.folder} holds a learner, but no run that would name its network. "
                "Name a function that makes it: --model my_net.py:network"
            )
        return Learner.load(self.model, build_model(self.network), progress=False, verify=verify)

    def tasks(self, data: str | os.PathLike[str] | None) -> dict[str, Task]:
        """Load the run's tasks by name, with the data that scores were measured on; `data` is a folder with datasets."""
        if self.config is None:
            raise ConfigError(f"{self.folder} holds a learner, but no run that would name the data of its tasks.")
        config = self.config
        code = [] if self.trusted else [name for name in config.find_user_code() if name == config.benchmark]
        refuse_code(self.folder, code, "leave the data out")
        with use_seed(config.seed):
            return {task.name: task for task in load_tasks(config, data)[0]}

    def read_records(self) -> dict[str, RecordedTask]:
        """Read what the run has recorded about each task: in result.json or, before the end, in metrics.jsonl."""
        if self.config is not None and (self.folder / "result.json").exists():
            results = read_result(self.folder / "result.json")["tasks"]
            return {task["name"]: RecordedTask(task["score"], task["digest"]) for task in results}
        tests = [row for row in read_rows(self.folder / "metrics.jsonl")[0] if row["kind"] == "test"]
        return {name: RecordedTask(score) for name, score in (tests[-1]["score"] if tests else {}).items()}


def open_run(folder: str | os.PathLike[str], network: str | None = None, trust_code: bool = False) -> OpenRun:
    """Open the run or saved learner in a folder; nothing of it is loaded yet.

    `network` names a function that makes the network, as module:function or file.py:function, in place of the run's own.
    """
    path = Path(folder)
    if os.path.lexists(path / "config.json"):
        config = Config.from_file(path / "config.json")
        if not (path / "model" / store.MANIFEST).is_file():
            raise ConfigError(f"The run in {path} has not learned a task yet. Wait for the first, or run it: spacecl run ...")
        return OpenRun(path, config, network, trust_code)
    if (path / store.MANIFEST).is_file():
        run = path.parent if path.name == "model" and (path.parent / "config.json").is_file() else None
        return open_run(run, network, trust_code) if run is not None else OpenRun(path, None, network, trust_code)
    what = "is not a folder" if not path.is_dir() else f"holds neither a run (config.json) nor a learner ({store.MANIFEST})"
    raise ConfigError(f"{path} {what}. Give the folder of spacecl run --out, or of learner.save().")
