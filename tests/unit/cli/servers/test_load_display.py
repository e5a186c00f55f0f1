"""The loading of a model is one line on a terminal and a few lines elsewhere."""

import io

import pytest

from diffuserve.cli.display.console import Console
from diffuserve.cli.servers import load_display
from diffuserve.cli.servers.load_display import LoadDisplay
from diffuserve.domain.workers.worker import LoadProgress

HALF = LoadProgress(phase="weights", bytes_read=5_000_000, bytes_total=10_000_000)
MORE = LoadProgress(phase="weights", bytes_read=6_000_000, bytes_total=10_000_000)


def shown(is_terminal: bool, *progress: LoadProgress | None, width: int = 100) -> str:
    file = io.StringIO()
    display = LoadDisplay(Console(file=file, force_terminal=is_terminal, width=width), "tiny-flux")
    for step in progress:
        display.show(step)
    display.end()
    return file.getvalue()


def test_a_pipe_gets_a_line_for_each_phase() -> None:
    lines = shown(False, None, HALF, HALF, MORE, LoadProgress(phase="warm-up")).splitlines()
    assert lines == [
        "loading tiny-flux … starting",
        "loading tiny-flux … weights 5.0 of 10.0 MB, 50%",
        "loading tiny-flux … warm-up",
    ]


def test_a_pipe_gets_a_line_now_and_then_about_a_long_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_display, "_REPEAT_SECONDS", 0.0)
    lines = shown(False, HALF, HALF, MORE).splitlines()
    assert lines[1:] == [
        "loading tiny-flux … weights 5.0 of 10.0 MB, 50%",
        "loading tiny-flux … weights 6.0 of 10.0 MB, 60%",
    ]


def test_a_terminal_has_one_line_that_changes_and_goes() -> None:
    text = shown(True, HALF, MORE)
    assert "\n" not in text
    assert text.count("\x1b[2K") == 4
    assert "weights 6.0 of 10.0 MB, 60% · 0 s" in text
    assert text.endswith("\x1b[2K\r")


def test_the_line_fits_the_terminal() -> None:
    lines = shown(True, HALF, width=20).replace("\x1b[2K", "").split("\r")
    assert max(map(len, lines)) == 19
