"""A piece of work with a server, from start to end of a command."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.sdk.async_client import AsyncClient

T = TypeVar("T")


def ask(
    settings: Settings,
    work: "Callable[[AsyncClient], Coroutine[Any, Any, T]]",
    *,
    patience_seconds: float | None = None,
) -> T:
    """Return what `work` returns, which gets a client of the server that the settings name."""

    async def run() -> T:
        from diffuserve.cli.client.connect import connect  # it imports httpx, which `--help` does without

        async with connect(settings, patience_seconds=patience_seconds) as client:
            return await work(client)

    return asyncio.run(run())
