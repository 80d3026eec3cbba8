"""The last section: the command that makes each run again, and all its settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from ...runs.resolve import to_command
from ..arms import Arm
from ..page import Command, Section


def make_commands_section(arms: Sequence[Arm]) -> Section:
    versions = sorted({result["spacecl"] for arm in arms for result in arm.results})
    note = (
        f"Each command makes a run again (spacecl {', '.join(versions)}). spacecl report FOLDER makes this page from the "
        "result.json files of the runs in a folder. --data or $SPACECL_DATA names the folder with the data."
    )
    return Section("commands", "Commands and settings", [note], commands=[_make_command(arm) for arm in arms])


def _make_command(arm: Arm) -> Command:
    first, *others = [str(result["seed"]) for result in arm.results]
    seeds = f"seed {first}" + (f", and the same with --seed {', '.join(others)}" if others else "")
    settings = {key: value for key, value in arm.results[0]["config"].items() if key != "seed"}
    return Command(arm.label, seeds, shlex.join(to_command(arm.config)), json.dumps(settings, indent=1))
