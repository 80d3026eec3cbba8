"""Reports that several tests look at."""

import json
import shutil

import pytest
from reporting_helpers import EXAMPLE, HOSTILE, METHODS, example_result

from spacecl.reporting.arms import read_comparisons
from spacecl.reporting.report import write_report


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """A folder with the example's results of five methods with two seeds, and the report that was made from them."""
    folder = tmp_path_factory.mktemp("report")
    for method in METHODS:
        shutil.copytree(EXAMPLE / method, folder / method)
    write_report(folder, *read_comparisons(folder))
    return folder


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory):
    """A report on tasks and layers whose names try to run code."""

    def rename(value):
        if isinstance(value, dict):
            return {rename(key): rename(part) for key, part in value.items()}
        if isinstance(value, list):
            return [rename(part) for part in value]
        return HOSTILE.get(value, value) if isinstance(value, str) else value

    folder = tmp_path_factory.mktemp("hostile")
    (folder / "result.json").write_text(json.dumps(rename(example_result("space"))))
    write_report(folder, *read_comparisons(folder))
    return folder
