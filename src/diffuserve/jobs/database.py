"""Connections and transactions: all that differs between SQLite and PostgreSQL stands here.

Every transaction that writes holds one lock of the whole database from its first statement on:
`BEGIN IMMEDIATE` on SQLite, an advisory lock on PostgreSQL. What is read under it stays true until
the commit, so the same plain statements are right on both.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.jobs.config import StoreConfig

log = logging.getLogger(__name__)

T = TypeVar("T")
Clock = Callable[[], float]
Notice = tuple[str, Mapping[str, Any]]

_LOCK = 0x64696666  # any number that nobody else takes in this database
_BUSY_SECONDS = 10.0
_SQLITE_NOW = "(julianday('now') - 2440587.5) * 86400.0"
_POSTGRESQL_NOW = "extract(epoch from clock_timestamp())::float8"
_AWAY = ("08", "57P", "53", "25006")  # SQLSTATEs: connection, shutdown, resources, read-only
_PATIENCE_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.05


@dataclass
class Transaction:
    """One commit under the write lock. `now` is the store's clock at its beginning.

    `notices` are published once it is committed. `is_retry` says that an earlier try of the same
    operations may have been committed without our hearing of it.
    """

    connection: AsyncConnection
    now: float
    config: StoreConfig
    is_retry: bool = False
    notices: list[Notice] = field(default_factory=list)

    async def execute(
        self, statement: sa.Executable, rows: list[dict[str, Any]] | dict[str, Any] | None = None
    ) -> sa.CursorResult[Any]:
        return await self.connection.execute(statement, rows)

    async def rows(self, statement: sa.Executable) -> list[sa.Row[Any]]:
        return list((await self.connection.execute(statement)).all())

    def upsert(self, table: sa.Table) -> "postgresql.Insert | sqlite.Insert":
        """An insert that knows `on_conflict_do_update`; both dialects spell it alike."""
        if self.connection.dialect.name == "sqlite":
            return sqlite.insert(table)
        return postgresql.insert(table)


class Database:
    """Readers and writers have engines of their own, since on SQLite their transactions begin differently."""

    def __init__(self, url: str, config: StoreConfig, clock: Clock | None = None) -> None:
        """`clock` gives the time in tests; in production it is the database's own."""
        self.url = sa.make_url(url)
        self._config = config
        self._clock = clock
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            self._writer, self._reader = _sqlite_engine(self.url, "IMMEDIATE"), _sqlite_engine(self.url, "")
        else:
            self._writer = self._reader = _postgresql_engine(self.url)

    @asynccontextmanager
    async def write(self, is_retry: bool = False) -> AsyncIterator[Transaction]:
        """A transaction under the lock; committed at the end, rolled back on any exception."""
        async with self._writer.begin() as connection:
            now = await self._lock(connection)
            yield Transaction(connection, now, self._config, is_retry)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        async with self._reader.connect() as connection:
            yield connection

    async def rows(self, statement: sa.Executable) -> list[sa.Row[Any]]:
        """What a query gives, without the lock. Raises `ServerUnavailable` when the database stays away."""

        async def look(_is_retry: bool) -> list[sa.Row[Any]]:
            async with self.read() as connection:
                return list((await connection.execute(statement)).all())

        return await patiently(look)

    async def now(self) -> float:
        if self._clock is not None:
            return self._clock()
        expression = _SQLITE_NOW if self.is_sqlite else _POSTGRESQL_NOW
        return float((await self.rows(sa.text(f"SELECT {expression}")))[0][0])

    async def close(self) -> None:
        await self._writer.dispose()
        await self._reader.dispose()

    async def _lock(self, connection: AsyncConnection) -> float:
        """Wait for the lock (SQLite took it at BEGIN), and only then read the clock."""
        if self.is_sqlite:
            now = f"SELECT {_SQLITE_NOW}"
        else:
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            now = f"SELECT {_POSTGRESQL_NOW}"
        if self._clock is not None:
            return self._clock()
        return float((await connection.exec_driver_sql(now)).scalar_one())


async def patiently(work: Callable[[bool], Awaitable[T]]) -> T:
    """Do `work(is_retry)` again while the database is away, as after a restart of it.

    Raises `ServerUnavailable` when that takes too long.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    pause, is_retry = _FIRST_PAUSE_SECONDS, False
    while True:
        try:
            return await work(is_retry)
        except Exception as error:
            if not is_unavailable(error):
                raise
            if time.monotonic() + pause > deadline:
                log.error("the database stays away: %s", error)
                raise ServerUnavailable("the database is away; try again later", retry_after=2) from error
            log.warning("the database is away (%s); trying again", type(error).__name__)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause, is_retry = min(2 * pause, 1.0), True


def is_unavailable(error: BaseException) -> bool:
    """Whether the database is away or too busy, rather than asked for something wrong."""
    if isinstance(error, OSError | PoolTimeout | asyncpg.InterfaceError):
        return True
    if isinstance(error, asyncpg.PostgresError):  # raised bare while connecting
        return (error.sqlstate or "").startswith(_AWAY)
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None) or ""
    said = str(error.orig)
    return (
        error.connection_invalidated
        or state.startswith(_AWAY)
        or any(words in said for words in ("database is locked", "connection is closed"))
    )


def _sqlite_engine(url: sa.URL, begin: str) -> AsyncEngine:
    engine = create_async_engine(url, connect_args={"timeout": _BUSY_SECONDS})

    @sa.event.listens_for(engine.sync_engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves
        cursor = connection.cursor()
        # FULL: a commit that was answered survives a loss of power.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={int(_BUSY_SECONDS * 1000)}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sa.event.listens_for(engine.sync_engine, "begin")
    def start(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {begin}")

    return engine


def _postgresql_engine(url: sa.URL) -> AsyncEngine:
    return create_async_engine(
        url,
        pool_size=16,
        max_overflow=16,
        pool_timeout=10,
        connect_args={"timeout": 5, "server_settings": {"application_name": "diffuserve", "jit": "off"}},
    )
