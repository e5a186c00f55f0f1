"""The clock of the database, which the chaos run sets ahead and back.

The server's own clock is everyone's. So PostgreSQL finds a `clock_timestamp` of the run before its own, and
SQLite's `julianday` is replaced in the control plane's connections by `api.py`. The SQL is not changed.
"""

import os
from pathlib import Path
from typing import Protocol

import asyncpg


class Clock(Protocol):
    """A clock that can be set."""

    async def install(self) -> None:
        """Put the clock in the place of the database's own, before any control plane runs."""
        ...

    async def set(self, offset: float) -> None:
        """Let the clock be `offset` seconds ahead of the machine's."""
        ...


class SqliteClock:
    """The clock of the control planes that read `file`."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def install(self) -> None:
        await self.set(0.0)

    async def set(self, offset: float) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(str(offset))
        os.replace(new, self.file)


class PostgresqlClock:
    """The clock of every session of a database."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def install(self) -> None:
        name = self._url.partition("?")[0].rpartition("/")[2]
        await self._execute("CREATE SCHEMA chaos")
        await self.set(0.0)
        await self._execute(f'ALTER DATABASE "{name}" SET search_path = public, chaos, pg_catalog')

    async def set(self, offset: float) -> None:
        await self._execute(
            "CREATE OR REPLACE FUNCTION chaos.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE "
            f"AS $$ SELECT pg_catalog.clock_timestamp() + interval '{offset} seconds' $$"
        )

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()
