"""All checks in one list, and the function that runs them and reports."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from ..errors import SpaceError, SpaceWarning, user_code_errors
from . import accounting, learning, options, processes, targets
from .models import FAMILIES
from .subject import NotApplicableError, Subject


class Run(Protocol):
    """Checks a method, with an empty folder to work in; raises CheckError, NotApplicableError, or what the method raises."""

    def __call__(self, subject: Subject, folder: Path) -> None: ...


@dataclass(frozen=True)
class Check:
    """One check: what a method that passes it does, in words."""

    title: str
    run: Run


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check."""

    title: str
    state: Literal["pass", "fail", "skip"]
    reason: str  # empty if it passed
    seconds: float


def _for_families(title: str, run: Callable[..., None]) -> list[Check]:
    return [Check(f"{title} ({name})", partial(run, family=family)) for name, family in FAMILIES.items()]


TWO_PROCESSES = Check("ends with the same bits in two processes that learn together", processes.check_two_processes)
CHECKS = (
    Check("has a docstring, and a help text for every option", options.check_help),
    Check("refuses wrong values of its options", options.check_options),
    *_for_families("learns, predicts, saves, loads, and repeats itself to the bit", learning.check_learning),
    *_for_families("resumes after a crash in every epoch, to the same bits", learning.check_resuming),
    *_for_families("gives every task a network with the learner's outputs", learning.check_networks),
    *_for_families("has the sizes and operations that it reports", accounting.check_sizes),
    Check("says truly whether it forgets", learning.check_forgetting),
    Check("keeps earlier tasks under momentum and weight decay", partial(learning.check_protection, optimizer="sgd")),
    Check("keeps earlier tasks under AdamW", partial(learning.check_protection, optimizer="adamw")),
    Check("commits what it has trained", learning.check_commit),
    Check("learns labels, if it says so", partial(targets.check_targets, kind="labels")),
    Check("learns values, if it says so", partial(targets.check_targets, kind="values")),
    Check("takes double precision, frozen layers and NumPy's numbers", learning.check_inputs),
    Check("continues a saved learner, and no other method does", options.check_method_is_kept),
    Check("runs from the command line, and comes back from a crash", processes.check_run),
    TWO_PROCESSES,
)


def run_checks(subject: Subject) -> Iterator[Outcome]:
    """Run all checks of a method, one after another, each in a temporary folder of its own."""
    for check in CHECKS:
        start = time.perf_counter()
        state, reason = _run(check, subject)
        yield Outcome(check.title, state, reason, time.perf_counter() - start)


def _run(check: Check, subject: Subject) -> tuple[Literal["pass", "fail", "skip"], str]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", SpaceWarning)  # tasks are small, and trained for an epoch or two
        try:
            with user_code_errors("the method failed"):
                check.run(subject=subject, folder=Path(folder))
        except NotApplicableError as reason:
            return "skip", str(reason)
        except SpaceError as error:
            return "fail", str(error)
    return "pass", ""
