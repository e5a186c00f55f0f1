"""Images within a terminal, as things that rich prints."""

import base64
import io
from dataclasses import dataclass

from PIL.Image import Image, Resampling
from rich.color import Color
from rich.console import Console as RichConsole  # noqa: TID251 (as rich's protocol has it)
from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.segment import ControlType, Segment
from rich.style import Style

from diffuserve.cli.display.console import Console
from diffuserve.cli.display.terminal import Graphics, TerminalVariables, graphics_of
from diffuserve.media.transparency import flattened

_COLUMNS = 32  # a character is about twice as high as wide
_MAX_ROWS = 24
_CHUNK = 4_096  # characters of kitty's messages


def show_image(console: Console, image: Image) -> None:
    """Print an image where the terminal can show it; print nothing elsewhere."""
    system = console.color_system if console.is_terminal else None
    shown = inline(image, graphics_of(TerminalVariables(), system), console.width)
    if shown is not None:
        console.print(shown, end="")


def inline(image: Image, graphics: Graphics, width: int) -> RenderableType | None:
    """Return the image as something to print; `None` where images cannot be shown."""
    columns, rows = cells_of(image.width, image.height, width)
    match graphics:
        case Graphics.KITTY:
            return _Placed(_kitty(image, columns, rows), rows)
        case Graphics.ITERM:
            return _Placed(_iterm(image, columns, rows), rows)
        case Graphics.BLOCKS:
            return _Blocks(flattened(image).convert("RGB").resize((columns, 2 * rows), Resampling.BOX))
    return None


def cells_of(width: int, height: int, terminal_width: int) -> tuple[int, int]:
    """Return the columns and rows of an image whose cells are half as wide as high."""
    columns = max(1, min(_COLUMNS, terminal_width))
    rows = max(1, round(columns * height / width / 2))
    if rows > _MAX_ROWS:
        columns, rows = max(1, columns * _MAX_ROWS // rows), _MAX_ROWS
    return columns, rows


@dataclass(frozen=True)
class _Blocks:
    """Pairs of pixels as upper half blocks: the upper one in front, the lower one behind."""

    image: Image

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        for y in range(0, self.image.height, 2):
            for x in range(self.image.width):
                upper, lower = (Color.from_rgb(*self._pixel(x, row)) for row in (y, y + 1))
                yield Segment("▀", Style(color=upper, bgcolor=lower))
            yield Segment.line()

    def _pixel(self, x: int, y: int) -> tuple[int, int, int]:
        pixel = self.image.getpixel((x, y))
        assert isinstance(pixel, tuple)
        red, green, blue = pixel[:3]
        return int(red), int(green), int(blue)


@dataclass(frozen=True)
class _Placed:
    """An image that the terminal draws over empty lines; the cursor ends below them."""

    escape: str
    rows: int

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        up, down = f"\x1b[{self.rows}A", f"\x1b[{self.rows}B"
        placed = "\n" * self.rows + up + "\x1b7" + self.escape + "\x1b8" + down
        yield Segment(placed, None, [(ControlType.CURSOR_MOVE_TO_COLUMN, 0)])


def _kitty(image: Image, columns: int, rows: int) -> str:
    content = _png(image)
    pieces = [content[start : start + _CHUNK] for start in range(0, len(content), _CHUNK)]
    first = f"a=T,f=100,c={columns},r={rows},q=2,"
    return "".join(
        f"\x1b_G{first if number == 0 else ''}m={int(number < len(pieces) - 1)};{piece}\x1b\\"
        for number, piece in enumerate(pieces)
    )


def _iterm(image: Image, columns: int, rows: int) -> str:
    return f"\x1b]1337;File=inline=1;width={columns};height={rows}:{_png(image)}\x07"


def _png(image: Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
