"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest

from support.command import Invoke, invoker


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Run a command in this process, in place of a shell."""
    return invoker(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep databases and fitted cost models out of the user's folders."""
    monkeypatch.setenv("DIFFUSERVE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("DIFFUSERVE_CACHE_DIR", str(tmp_path / "cache"))
