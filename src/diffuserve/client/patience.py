"""Limits of how long a program waits for what a server does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def at_most(max_seconds: float | None, awaited: str) -> AsyncIterator[None]:
    """Raise `TimeoutError`, which says what was awaited, if the block takes longer; `None` is no limit."""
    try:
        async with asyncio.timeout(max_seconds):
            yield
    except TimeoutError as error:
        raise TimeoutError(f"{awaited} took more than {max_seconds:g} s") from error
