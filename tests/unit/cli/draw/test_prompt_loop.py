"""Lines that are typed become prompts."""

import io
import os
import pty
import subprocess
import sys

import pytest

from diffuserve.cli.display.console import Console
from diffuserve.cli.draw.prompt_loop import typed_prompts
from support.waiting import HANG_SECONDS

_READ = """
from diffuserve.cli.display.console import Console
from diffuserve.cli.draw.prompt_loop import typed_prompts
print(list(typed_prompts(Console(stderr=True))))
"""
_UP = "\x1b[A"


def test_empty_lines_and_those_that_begin_with_a_slash_are_no_prompts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a star\n\n/set seed 5\n a ring \n/bye\nnever\n"))
    assert list(typed_prompts(Console(stderr=True))) == ["a star", "a ring"]
    assert "a prompt is drawn; /bye or Ctrl-D ends" in capsys.readouterr().err


def test_the_end_of_what_is_typed_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a star"))
    assert list(typed_prompts(Console(stderr=True))) == ["a star"]


def test_in_a_terminal_an_earlier_prompt_comes_back_by_an_arrow_key() -> None:
    ours, terminal = pty.openpty()
    os.write(ours, f"a star\n{_UP}s\n/bye\n".encode())
    command = [sys.executable, "-c", _READ]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, env=environment) as process:
        assert process.wait(HANG_SECONDS) == 0
    shown = os.read(ours, 4096).decode()
    assert "['a star', 'a stars']" in shown
    os.close(ours)
    os.close(terminal)
