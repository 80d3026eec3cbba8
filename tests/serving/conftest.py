import pytest
from faults.server_process import start_server

from spacecl.runs.open_run import open_run


@pytest.fixture(scope="session")
def server_process(digits_run):
    """A real `spacecl serve` process; at the end it must still live, and stop when interrupted."""
    with start_server(digits_run, timeout=3.0) as process:
        yield process


@pytest.fixture(scope="session")
def server(server_process):
    """The port of the real server."""
    return server_process.port


@pytest.fixture(scope="session")
def learner(digits_run):
    return open_run(digits_run).learner()
