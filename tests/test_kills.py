"""Runs that are killed and interrupted: a small dose of `python -m bench.faults --only kills`."""

import signal
import time
import warnings
import weakref

import pytest
from faults.kills import run

from spacecl.cli import main as cli
from spacecl.errors import SpaceWarning


@pytest.mark.slow
def test_runs_that_are_killed_at_random_moments_end_as_undisturbed_ones():
    outcome = run(12, seed=3)
    assert outcome.failures == []
    assert outcome.tried == 12


@pytest.fixture(autouse=True)
def _interruptible():
    """Shells let what they run in the background ignore interrupts, and the tests with it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_within_the_callback_of_a_weak_reference_stops_the_command(monkeypatch, capfd):
    class Thing:
        pass

    def work(options):
        thing = Thing()
        reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
        assert reference() is None
        until = time.monotonic() + 20
        while time.monotonic() < until:
            time.sleep(0.01)
        return 0

    monkeypatch.setattr(cli.demo, "run_command", work)
    assert cli.main(["demo"]) == 130
    assert capfd.readouterr().err == "Interrupted.\n"


def test_an_interrupt_that_a_library_makes_an_error_of_its_own_is_an_interrupt(monkeypatch, capfd):
    def work(options):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("cannot load module more than once per process") from None

    monkeypatch.setattr(cli.demo, "run_command", work)
    assert cli.main(["demo"]) == 130
    assert capfd.readouterr().err == "Interrupted.\n"


@pytest.mark.filterwarnings("always")
def test_a_command_prints_warnings_as_text_and_leaves_the_users_handler_in_place(monkeypatch, capfd):
    def work(options):
        warnings.warn("little space is left", SpaceWarning, stacklevel=1)
        return 0

    others = []
    handler = lambda message, *rest: others.append(str(message))  # noqa: E731
    monkeypatch.setattr(warnings, "showwarning", handler)
    monkeypatch.setattr(cli.demo, "run_command", work)
    assert cli.main(["demo"]) == 0
    assert capfd.readouterr().err == "spacecl: warning: little space is left\n"
    assert warnings.showwarning is handler
    warnings.warn("after the command", SpaceWarning, stacklevel=1)
    assert others == ["after the command"]
