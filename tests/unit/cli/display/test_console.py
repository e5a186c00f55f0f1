"""Text of others on a terminal: it is no command and no markup."""

import io

import orjson
import pytest
from rich.panel import Panel
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from diffuserve.cli.display.console import Console, text_column
from diffuserve.cli.display.echo import echo
from diffuserve.domain.text.visible_text import visible, visible_line

HOSTILE = "cat\x1b]52;c;cHduZWQ=\x07\x1b[2J\x9b2J\x7f\r\u202egpj\u2066\x00 [red]x[/] :cat:"
SHOWN = r"cat\u001b]52;c;cHduZWQ=\u0007\u001b[2J\u009b2J\u007f\u000d\u202egpj\u2066\u0000 [red]x[/] :cat:"


def on_a_terminal(thing: object, **options: object) -> str:
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system=None, width=200).print(thing, **options)  # type: ignore[arg-type]
    return file.getvalue()


def table() -> Table:
    made = Table(HOSTILE, title=HOSTILE)
    made.add_row(HOSTILE)
    return made


@pytest.mark.parametrize("thing", [HOSTILE, table(), Panel(HOSTILE), ["a", HOSTILE]], ids=type)
def test_whatever_is_printed_reaches_a_terminal_as_it_reads(thing: object) -> None:
    shown = on_a_terminal(thing, soft_wrap=True)
    assert SHOWN in shown or repr(HOSTILE) in shown
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_text_that_is_made_before_is_no_exception() -> None:
    assert "\x1b" not in on_a_terminal(Text(HOSTILE))
    file = io.StringIO()
    with Progress(text_column("{task.description}"), console=Console(file=file, width=200)) as bars:
        bars.add_task(HOSTILE)
        bars.add_task("[red]x[/]")
    assert "\x1b" not in file.getvalue()
    assert "[red]x[/]" in file.getvalue()


def test_colors_of_commands_stay() -> None:
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system="standard").print("gone", style="red")
    assert file.getvalue() == "\x1b[31mgone\x1b[0m\n"


def test_json_holds_the_same_after_it_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
    echo(orjson.dumps({"prompt": HOSTILE}).decode())
    printed = capsys.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in printed)
    assert orjson.loads(printed) == {"prompt": HOSTILE}


def test_lines_and_tabs_stay_unless_one_line_is_asked_for() -> None:
    assert visible("a\tb\nc\u2028") == "a\tb\nc\u2028"
    assert visible_line("a\tb\nc\u2028") == "a\tb\\u000ac\\u2028"
    assert visible("é 漢 🦊 \u200d") == "é 漢 🦊 \u200d"
