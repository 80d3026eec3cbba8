import os
import shutil

import pytest
import torch

from spacecl.cli.main import main

os.environ["COLUMNS"] = "200"  # tables that tests read are as wide everywhere


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """The folder of a finished run of two tasks of permuted digits; copy it before you change anything."""
    folder = tmp_path_factory.mktemp("run") / "digits"
    arguments = ["run", "permuted-digits", "--tasks", "2", "--epochs", "3", "--retrain-epochs", "2", "--out", str(folder)]
    assert main([*arguments, "--quiet", "--no-measure", "--device", "cpu"]) == 0
    return folder


@pytest.fixture(scope="session")
def digits_learner(digits_run):
    """The learner of the finished run; do not teach it more."""
    from spacecl.runs.open_run import open_run

    return open_run(digits_run).learner()


@pytest.fixture(scope="session")
def server_process(digits_run):
    """A real `spacecl serve` process; at the end it must still run, and stop when interrupted."""
    from faults.server_process import start_server

    with start_server(digits_run, timeout=3.0) as process:
        yield process


@pytest.fixture(scope="session")
def server(server_process):
    """The port of the real server."""
    return server_process.port


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A real Chromium without a window."""
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("there is no Chromium with its driver here (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update"
    for flag in [*flags.split(), "disable-sync", f"user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()
