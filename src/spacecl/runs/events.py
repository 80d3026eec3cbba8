"""events.jsonl, what the process of one run reports to the comparison that started it.

The process appends an event when it starts, after every task, and when it ends. `spacecl compare` reads them: for its progress
bar, and to say why a run failed. A process that is killed leaves no last event. The file is that of the latest attempt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from .. import disk
from ..documents import Count
from ..errors import SpaceError, StoreError
from .json_lines import read_json_lines

EVENTS = "events.jsonl"


@dataclass(frozen=True)
class Started:
    """The process is running; nothing has been read or learned yet."""

    kind: Literal["started"] = "started"


@dataclass(frozen=True)
class TasksDone:
    """So far `done` of `tasks` tasks have been learned and tested."""

    done: Count
    tasks: Count
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True)
class Finished:
    """All tasks have been learned; result.json is written."""

    kind: Literal["finished"] = "finished"


@dataclass(frozen=True)
class Failed:
    """The run has ended before it was finished."""

    reason: Literal["error", "crash", "interrupt"]  # an error made for users; any other exception; Ctrl-C
    message: str
    kind: Literal["failed"] = "failed"


Event = Started | TasksDone | Finished | Failed
AnyEvent = Annotated[Event, Field(discriminator="kind")]  # for validation


def write_event(folder: Path, event: Event) -> None:
    """Append an event to the file in a run's folder."""
    disk.append_line(folder / EVENTS, json.dumps(asdict(event)).encode())


def read_events(folder: Path) -> list[Event]:
    """Read all events of the latest attempt at a run.

    There are none where no comparison has started the run, and none in a damaged file: results do not depend on them.
    """
    try:
        return read_json_lines(folder / EVENTS, AnyEvent)[0]
    except StoreError:
        return []


@contextmanager
def report_events(folder: Path) -> Iterator[None]:
    """Write the first event of a run's process, and its last one: whether the work within has succeeded."""
    write_event(folder, Started())
    try:
        yield
    except BaseException as error:
        with suppress(SpaceError):  # the disk may be full, which is then the error that matters
            write_event(folder, _describe_failure(error))
        raise
    write_event(folder, Finished())


def _describe_failure(error: BaseException) -> Failed:
    if isinstance(error, KeyboardInterrupt):
        return Failed("interrupt", "interrupted")
    if isinstance(error, (SpaceError, OSError)):
        return Failed("error", str(error))
    return Failed("crash", f"{type(error).__name__}: {error}")
