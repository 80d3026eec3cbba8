import pytest

from spacecl.data import sources


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """Give every test a cache of its own, and no datasets but its own."""
    monkeypatch.setenv("SPACECL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPACECL_DATA", raising=False)
    monkeypatch.setattr(sources, "SYSTEM", ())
