"""`diffuserve top`: a server at work, live."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from diffuserve.cli import options
from diffuserve.cli.client.ask import ask
from diffuserve.cli.display.console import Console
from diffuserve.cli.display.echo import echo
from diffuserve.cli.display.results import results
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.cli.operate.server_view import ServerView
    from diffuserve.sdk.async_client import AsyncClient

EXAMPLES = """
Examples:

  diffuserve top

  diffuserve top --interval 1 --server https://images.example.com

  diffuserve top --once
"""

_PATIENCE_SECONDS = 0.1  # the next look is the next attempt


@options.takes_settings("server", "api_key")
def top(
    settings: Settings,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, as when the output is piped.")] = False,
    as_json: options.Json = False,
) -> None:
    """Watch a server at work: workers, queue, throughput, and running jobs with their progress.

    It goes on while the server restarts, and ends with Ctrl-C. Workers and queue are shown to operators.
    """
    from diffuserve.cli.operate.server_view import read_view
    from diffuserve.client.codec import encode

    if once or as_json or not Console().is_terminal:
        view = ask(settings, read_view)
        if as_json:
            echo(encode(view))
        else:
            results().print(screen_of(view, ""))
        return
    with suppress(KeyboardInterrupt):  # the way to end it
        asyncio.run(_watch(settings, interval))


async def _watch(settings: Settings, interval: float) -> None:
    from rich.live import Live

    from diffuserve.cli.client.connect import connect

    async with connect(settings, patience_seconds=_PATIENCE_SECONDS) as client:
        first = await _look(client, None)
        with Live(screen_of(*first), console=Console(), screen=True, auto_refresh=False) as live:
            view = first[0]
            while True:
                await asyncio.sleep(interval)
                view, problem = await _look(client, view)
                live.update(screen_of(view, problem), refresh=True)


async def _look(client: "AsyncClient", last: "ServerView | None") -> "tuple[ServerView | None, str]":
    """Return what the server does, or the last view and why there is no newer one."""
    from diffuserve.cli.operate.server_view import read_view

    try:
        return await read_view(client), ""
    except ServerUnavailable as error:
        return last, f"{error}; trying again"


def screen_of(view: "ServerView | None", problem: str) -> RenderableType:
    """Return the screen: the newest view, and what there is to say of it."""
    from diffuserve.cli.operate.server_tables import view_of

    parts: list[RenderableType] = [] if view is None else [view_of(view)]
    if problem:
        parts.append(Text(problem, style="red"))
    if view is not None and view.refusal:
        parts.append(Text(view.refusal, style="yellow"))
    return Group(*parts)
