"""The console of every command, which shows text of others as text."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.console import Console as RichConsole  # noqa: TID251 (the one place that does)
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from diffuserve.domain.text.visible_text import visible

if TYPE_CHECKING:
    from rich.progress import TextColumn


class Console(RichConsole):
    """A console to which no text is a command: neither markup, nor emoji codes, nor control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"markup": False, "emoji": False} | options))

    def warn(self, text: str) -> None:
        """Print a warning in one line, however long it is."""
        self.print(f"warning: {text}", style="yellow", highlight=False, soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text to show, before anything measures it."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield segments; those that command the terminal are of this program, and stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def text_column(template: str) -> "TextColumn":
    """Return a column of progress bars that shows text of others as text."""
    from rich.progress import TextColumn  # only where there are bars

    return TextColumn(template, markup=False)
