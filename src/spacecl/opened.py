"""A run, or a learner that was saved, opened to be used: its networks, its data, and what it says of itself."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import store
from .config import Config, built
from .errors import ConfigError, StoreError
from .folder import learner_in, settings_in, tasks_of
from .journal import read_rows
from .learner import Learner
from .seeds import seeded
from .tasks import Task


@dataclass(frozen=True)
class Opened:
    """A folder that holds a learner: that of a run, with its settings, or one of `Learner.save`."""

    folder: Path
    config: Config | None  # of a run
    network: str | None = None  # where it is not a run's: what makes the network, as module:function

    @property
    def model(self) -> Path:
        """The folder of the saved learner itself."""
        return self.folder / "model" if self.config is not None else self.folder

    def learner(self, verify: bool = True) -> Learner:
        if self.config is not None:
            return learner_in(self.model, self.config, verify)
        if self.network is None:
            raise ConfigError(
                f"{self.folder} holds a learner, but no run that would say which network it has. "
                "Name a function that makes it: --model my_net.py:network"
            )
        return Learner.load(self.model, built(self.network), progress=False, verify=verify)

    def tasks(self, data: str | os.PathLike[str] | None) -> dict[str, Task]:
        """The run's tasks by name, with the data that the run was measured on."""
        if self.config is None:
            raise ConfigError(f"{self.folder} holds a learner, but no run that would say which data it was taught.")
        with seeded(self.config.seed):
            return {task.name: task for task in tasks_of(self.config, data)[0]}

    def recorded(self) -> dict[str, dict[str, Any]]:
        """What the run has written down of each task, beside the learner itself: `accuracy` and, at the end, `digest`."""
        if (self.folder / "result.json").is_file() and self.config is not None:
            try:
                listed = json.loads((self.folder / "result.json").read_bytes())["tasks"]
                return {task["name"]: {key: task[key] for key in ("accuracy", "digest")} for task in listed}
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(f"{self.folder / 'result.json'} is damaged or of another program. Restore it.") from error
        rows = [row for row in read_rows(self.folder / "metrics.jsonl")[0] if row["kind"] == "test"]
        return {name: {"accuracy": accuracy} for name, accuracy in (rows[-1]["accuracy"] if rows else {}).items()}


def opened(folder: str | os.PathLike[str], network: str | None = None) -> Opened:
    """The run or saved learner in a folder, which is not read yet."""
    path = Path(folder)
    if (path / "config.json").is_file():
        config = Config.from_json(settings_in(path) if network is None else {**settings_in(path), "model": network})
        if not (path / "model" / store.MANIFEST).is_file():
            raise ConfigError(f"The run in {path} has not learned a task yet. Wait for the first, or run it: spacecl run ...")
        return Opened(path, config)
    if (path / store.MANIFEST).is_file():
        run = path.parent if path.name == "model" and (path.parent / "config.json").is_file() else None
        return opened(run, network) if run is not None else Opened(path, None, network)
    what = "is no folder" if not path.is_dir() else f"holds neither a run (config.json) nor a learner ({store.MANIFEST})"
    raise ConfigError(f"{path} {what}. Give the folder of spacecl run --out, or of learner.save().")
