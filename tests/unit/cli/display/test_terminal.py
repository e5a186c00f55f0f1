"""Which terminals show images, and what is written to them."""

import base64
import io
import re

import pytest
from PIL import Image

from diffuserve.cli.display.console import Console
from diffuserve.cli.display.terminal import Graphics, TerminalVariables, graphics_of
from diffuserve.cli.images.inline_images import cells_of, inline, show_image

IMAGE = Image.new("RGB", (64, 32), (200, 10, 30))


def variables(**given: str) -> TerminalVariables:
    unset = dict.fromkeys(TerminalVariables.model_fields, "")
    return TerminalVariables(**{**unset, **given})


@pytest.mark.parametrize(
    ("given", "colors", "graphics"),
    [
        ({"term": "xterm-kitty"}, "truecolor", Graphics.KITTY),
        ({"kitty_window_id": "1"}, "256", Graphics.KITTY),
        ({"term_program": "ghostty"}, "truecolor", Graphics.KITTY),
        ({"term_program": "WezTerm"}, "truecolor", Graphics.KITTY),
        ({"term_program": "iTerm.app"}, "truecolor", Graphics.ITERM),
        ({"lc_terminal": "iTerm2"}, "256", Graphics.ITERM),  # over ssh
        ({"term": "xterm-256color"}, "truecolor", Graphics.BLOCKS),
        ({"term": "xterm-kitty", "tmux": "/tmp/tmux"}, "truecolor", Graphics.BLOCKS),
        ({"term": "xterm-256color"}, "256", Graphics.NONE),
        ({"term": "xterm-kitty"}, None, Graphics.NONE),
    ],
)
def test_a_terminal_shows_images_in_the_best_way_it_knows(
    given: dict[str, str], colors: str | None, graphics: Graphics
) -> None:
    assert graphics_of(variables(**given), colors) is graphics


@pytest.mark.parametrize(
    ("size", "width", "cells"),
    [((64, 64), 80, (32, 16)), ((64, 32), 80, (32, 8)), ((64, 64), 10, (10, 5)), ((16, 160), 80, (4, 24))],
)
def test_an_image_keeps_its_shape_and_fits(size: tuple[int, int], width: int, cells: tuple[int, int]) -> None:
    assert cells_of(*size, width) == cells


def printed(graphics: Graphics) -> str:
    screen = io.StringIO()
    shown = inline(IMAGE, graphics, 80)
    assert shown is not None
    Console(file=screen, force_terminal=True, color_system="truecolor", width=80).print(shown, end="")
    return screen.getvalue()


def test_half_blocks_hold_two_pixels_each() -> None:
    lines = printed(Graphics.BLOCKS).splitlines()
    assert [line.count("▀") for line in lines] == [32] * 8
    assert "38;2;200;10;30;48;2;200;10;30" in lines[0]


@pytest.mark.parametrize("graphics", [Graphics.KITTY, Graphics.ITERM])
def test_a_terminal_gets_the_whole_image_and_the_cursor_below_it(graphics: Graphics) -> None:
    written = printed(graphics)
    pieces = re.findall(r";([A-Za-z0-9+/=]+)\x1b\\|:([A-Za-z0-9+/=]+)\x07", written)
    png = base64.b64decode("".join(map("".join, pieces)))
    with Image.open(io.BytesIO(png)) as opened:
        assert opened.size == IMAGE.size
    assert written.startswith("\n" * 8 + "\x1b[8A")
    assert written.endswith("\x1b[8B")


def test_nothing_is_written_where_images_cannot_be_shown() -> None:
    screen = io.StringIO()
    show_image(Console(file=screen, width=80), IMAGE)
    assert screen.getvalue() == ""
