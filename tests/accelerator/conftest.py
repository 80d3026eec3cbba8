"""These tests change the process for good, so they run in one of their own: see tests/test_accelerator.py."""

import os

import pytest

collect_ignore_glob = [] if os.environ.get("SPACECL_SHAM") else ["test_*"]


@pytest.fixture(scope="session")
def fabric():
    from accelerator.sham import make_fabric

    return make_fabric()
