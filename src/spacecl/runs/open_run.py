"""A run, or a learner that was saved, opened to be used: its networks, its data, and what it says of itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import store
from ..data.task import Task
from ..errors import ConfigError
from ..learner import Learner
from ..seeds import use_seed
from .config import Config, build_model
from .metrics_log import read_rows
from .result import read_result
from .run_folder import learner_in, refuse_code, tasks_of


@dataclass(frozen=True)
class OpenRun:
    """A folder that holds a learner: that of a run, with its settings, or one of `Learner.save`.

    Code that the folder itself names is run only where the user trusts it.
    """

    folder: Path
    config: Config | None  # of a run
    network: str | None = None  # what makes the network, as module:function, where the user says so
    trusted: bool = False

    @property
    def model(self) -> Path:
        """The folder of the saved learner itself."""
        return self.folder / "model" if self.config is not None else self.folder

    @property
    def untrusted_code(self) -> list[str]:
        """What would have to be run to build the network, and may not be."""
        if self.config is None or self.network is not None or self.trusted:
            return []
        return [name for name in self.config.find_user_code() if name == self.config.model]

    def learner(self, verify: bool = True) -> Learner:
        refuse_code(self.folder, self.untrusted_code)
        if self.config is not None:
            return learner_in(self.model, self.config, self.network, verify)
        if self.network is None:
            raise ConfigError(
                f"{self.folder} holds a learner, but no run that would say which network it has. "
                "Name a function that makes it: --model my_net.py:network"
            )
        return Learner.load(self.model, build_model(self.network), progress=False, verify=verify)

    def tasks(self, data: str | os.PathLike[str] | None) -> dict[str, Task]:
        """The run's tasks by name, with the data that the run was measured on."""
        if self.config is None:
            raise ConfigError(f"{self.folder} holds a learner, but no run that would say which data it was taught.")
        config = self.config
        refuse_code(self.folder, [] if self.trusted else [name for name in config.find_user_code() if name == config.benchmark])
        with use_seed(config.seed):
            return {task.name: task for task in tasks_of(config, data)[0]}

    def recorded(self) -> dict[str, dict[str, Any]]:
        """What the run has written down of each task, beside the learner itself: `accuracy` and, at the end, `digest`."""
        if self.config is not None and (self.folder / "result.json").exists():
            listed = read_result(self.folder / "result.json")["tasks"]
            return {task["name"]: {"accuracy": task["accuracy"], "digest": task["digest"]} for task in listed}
        rows = [row for row in read_rows(self.folder / "metrics.jsonl")[0] if row["kind"] == "test"]
        return {name: {"accuracy": accuracy} for name, accuracy in (rows[-1]["accuracy"] if rows else {}).items()}


def open_run(folder: str | os.PathLike[str], network: str | None = None, trust_code: bool = False) -> OpenRun:
    """The run or saved learner in a folder, which is not read yet."""
    path = Path(folder)
    if os.path.lexists(path / "config.json"):
        config = Config.from_file(path / "config.json")
        if not (path / "model" / store.MANIFEST).is_file():
            raise ConfigError(f"The run in {path} has not learned a task yet. Wait for the first, or run it: spacecl run ...")
        return OpenRun(path, config, network, trust_code)
    if (path / store.MANIFEST).is_file():
        run = path.parent if path.name == "model" and (path.parent / "config.json").is_file() else None
        return open_run(run, network, trust_code) if run is not None else OpenRun(path, None, network, trust_code)
    what = "is no folder" if not path.is_dir() else f"holds neither a run (config.json) nor a learner ({store.MANIFEST})"
    raise ConfigError(f"{path} {what}. Give the folder of spacecl run --out, or of learner.save().")
