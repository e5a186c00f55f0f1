"""PostgreSQL databases with the schema and no rows: to empty one takes a small part of making one."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from support.postgres import PostgresServer

_MAX_DEAD_ROWS = 2000
_CLOSE_OTHERS = """SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = current_database() AND pid != pg_backend_pid()"""
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename != 'alembic_version'"
_STATE = """SELECT (SELECT string_agg(version_num, ' ') FROM alembic_version) || md5(string_agg(
    concat_ws(' ', oid, relname, relnatts, reltuples), ',' ORDER BY oid))
FROM pg_class WHERE relnamespace = 'public'::regnamespace"""


@dataclass
class _Database:
    name: str
    url: str
    state: str  # of its schema, and of the statistics by which statements are planned
    num_dead_rows: int = 0


class EmptyDatabases:
    """Copies of a template, lent to one test after another.

    One comes back without its rows and connections. It is dropped if its schema or its statistics have
    changed, or if the rows that it once had would make it slow.
    """

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        self._numbers = itertools.count()
        self._free: list[_Database] = []

    @contextmanager
    def one(self) -> Iterator[str]:
        """Yield the URL of a database that nobody else uses within the block."""
        database = self._free.pop() if self._free else self._make()
        yield database.url
        state, num_rows = asyncio.run(_empty(database.url))
        database.num_dead_rows += num_rows
        if state == database.state and database.num_dead_rows <= _MAX_DEAD_ROWS:
            self._free.append(database)
        else:
            self._server.drop_database(database.name)

    def _make(self) -> _Database:
        name = f"jobs_{next(self._numbers)}"
        url = self._server.create_database(name, self._template)
        state, _ = asyncio.run(_empty(url))
        return _Database(name, url, state)


async def _empty(url: str) -> tuple[str, int]:
    """Close all connections to a database and delete its rows; return its state and how many they were."""
    connection: Any = await asyncpg.connect(url)
    await connection.execute(_CLOSE_OTHERS)
    tables = [row["tablename"] for row in await connection.fetch(_TABLES)]
    done = [await connection.execute(f'DELETE FROM "{table}"') for table in tables]
    state: str = await connection.fetchval(_STATE)
    await connection.close()
    return state, sum(int(told.split()[-1]) for told in done)
