"""The process of one run of a comparison: `python -m spacecl.runs.worker FOLDER`.

It resumes the run in the folder, or starts it, with the settings in config.json, and reports to events.jsonl there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..errors import SpaceError
from .config import Config
from .events import TasksDone, report_events, write_event
from .resolve import resolve
from .run import run
from .run_folder import read_settings, refuse_code
from .summary import make_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the run; returns the exit code: 0 when it is finished, 1 after an error, 130 when it was interrupted."""
    parser = argparse.ArgumentParser(prog="spacecl.runs.worker", description="Do one run of a comparison.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the run's folder, with a config.json")
    parser.add_argument("--data", metavar="DIR", help="folder with datasets")
    parser.add_argument("--trust-code", action="store_true", help="run the Python files that config.json names")
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    try:
        with report_events(folder):
            if not options.trust_code:  # before the settings are resolved, which loads the network's file
                refuse_code(folder, Config.from_file(folder / "config.json").find_user_code())
            result = run(
                resolve(read_settings(folder), options.data),
                folder,
                data=options.data,
                progress=False,
                print_line=lambda text: print(text, flush=True),
                on_task=lambda done, tasks: write_event(folder, TasksDone(done, tasks)),
            )
    except KeyboardInterrupt:
        return 130
    except (SpaceError, OSError) as error:
        print(f"spacecl: {error}", file=sys.stderr)
        return 1
    Console(soft_wrap=True, width=200).print(make_table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
