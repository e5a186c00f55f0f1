"""Statements that a store sends to its database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import sqlalchemy as sa

from diffuserve.jobs.store import JobStore

Sent = list[tuple[str, Any]]


@asynccontextmanager
async def recorded_statements(store: JobStore) -> AsyncIterator[Sent]:
    """Yield the list of statements that this store sends from now on, with their values.

    Other stores of the same process, such as that of a server in a thread, are told apart by their URL.
    """
    url = await store.database.read(lambda connection: connection.engine.url)
    sent: Sent = []

    def record(connection: sa.Connection, _1: Any, statement: str, values: Any, _2: Any, many: bool) -> None:
        if connection.engine.url == url:
            sent.append((statement, values[0] if many else values))

    sa.event.listen(sa.Engine, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", record)
