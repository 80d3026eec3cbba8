"""Serve what is learned into a folder while the server runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from .. import store
from ..learner import Learner
from ..runs.open_run import OpenRun
from .batcher import Batcher

SECONDS = 1.0  # between two checks of the folder


async def watch(batcher: Batcher, folder: OpenRun) -> None:
    """Reload the learner whenever its manifest has changed.

    A folder that cannot be read is reported once and tried again; the tasks of the old learner are served meanwhile.
    """
    loaded_version, last_problem = None, ""
    while True:
        version = _read_version(folder.model / store.MANIFEST)
        if version not in (loaded_version, None):
            before = _list_digests(batcher.learner)
            try:
                learner = await asyncio.to_thread(lambda: warm_up(batcher.learner.reload(folder.model)))
                await asyncio.wrap_future(batcher.replace_learner(learner))
            except Exception as error:  # whatever it is, serving continues
                if str(error) != last_problem:
                    last_problem = str(error)
                    print(f"spacecl: warning: {folder.model} cannot be read: {last_problem}", file=sys.stderr, flush=True)
            else:
                loaded_version, last_problem = version, ""
                new = [name for name, digest in _list_digests(learner).items() if before.get(name) != digest]
                if new:
                    print(f"New tasks: {', '.join(new)}. Serving {len(learner.tasks)} tasks.", flush=True)
        await asyncio.sleep(SECONDS)


def warm_up(learner: Learner) -> Learner:
    """Run each network once, because its first run takes longer; return the learner."""
    for task in learner.tasks:
        learner.logits(learner.example, task)
    return learner


def _list_digests(learner: Learner) -> dict[str, str]:
    return {name: record.digest for name, record in learner.records.items()}


def _read_version(manifest: Path) -> tuple[int, int] | None:
    """Return what differs between two versions of the manifest, or None if there is no manifest."""
    try:
        status = manifest.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
