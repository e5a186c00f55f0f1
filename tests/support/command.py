"""Commands of `diffuserve`, run within the test's process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from diffuserve.cli import main as cli


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Invoke: TypeAlias = Callable[..., Outcome]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run a command and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["diffuserve", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def invoker(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Return a function that runs a command and returns its outcome."""

    def invoke(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(monkeypatch, *arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out.strip(), captured.err)

    return invoke
