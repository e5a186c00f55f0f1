"""The command line, run within the test's process."""

import sys

import pytest

from diffuserve.cli import main as cli


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code."""
    monkeypatch.setattr(sys, "argv", ["diffuserve", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)
