"""Connections and transactions: everything that differs between SQLite and PostgreSQL is in this file.

Every transaction that writes holds one lock of the whole database from its first statement on:
`BEGIN IMMEDIATE` on SQLite, an advisory lock on PostgreSQL. What is read under it stays true until
the commit, so that the same plain statements are correct on both, and no row needs a lock of its own.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from diffuserve.backoff import Backoff, retry
from diffuserve.domain.errors import InvalidParams, ServerUnavailable
from diffuserve.domain.job import JobStatus
from diffuserve.jobs.config import StoreConfig

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

log = logging.getLogger(__name__)

T = TypeVar("T")
Clock = Callable[[], float]
Message = tuple[str, Mapping[str, Any]]
"""A topic of the event bus, and what is published on it."""
Ended = tuple[JobStatus, str]
"""Status and model of a job that became final."""

_LOCK = 0x64696666  # any number that no other program uses as an advisory lock in this database
_BUSY_SECONDS = 10.0
_AWAY = ("08", "57P", "53", "25006")  # SQLSTATEs: connection, shutdown, resources, read-only
_PATIENCE_SECONDS = 10.0
_BACKOFF = Backoff(first_seconds=0.05, longest_seconds=1.0, jitter=0.5)


@dataclass
class Transaction:
    """A transaction under the write lock. `now` is the store's clock at its beginning.

    `messages` are published, and `ended` is counted, once it is committed. `is_retry` is true if the same
    commands were tried before and the connection was lost: they may have been committed then.
    """

    connection: sa.Connection
    now: float
    config: StoreConfig
    is_retry: bool = False
    messages: list[Message] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        """Publish a message on the event bus once the transaction is committed."""
        self.messages.append((topic, message))

    def execute(
        self, statement: sa.Executable, rows: list[dict[str, Any]] | dict[str, Any] | None = None
    ) -> sa.CursorResult[Any]:
        """Execute a statement, once for each of `rows` if it is a list."""
        return self.connection.execute(statement, rows)

    def rows(self, statement: sa.Executable) -> list[sa.Row[Any]]:
        """Return all rows of a statement."""
        return list(self.connection.execute(statement).all())

    def upsert(self, table: sa.Table) -> "postgresql.Insert | sqlite.Insert":
        """Return an insert with `on_conflict_do_update`, which both dialects spell alike."""
        if self.connection.dialect.name == "sqlite":
            from sqlalchemy.dialects.sqlite import insert as insert_into_sqlite

            return insert_into_sqlite(table)
        from sqlalchemy.dialects.postgresql import insert  # SQLite starts faster without

        return insert(table)


class Backend(Protocol):
    """Runs plain functions on a connection without blocking the event loop. `now` is SQL for the time."""

    now: str

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Do `work` in a transaction under the lock, rolled back on any exception."""
        ...

    async def read(self, work: Callable[[sa.Connection], T]) -> T: ...

    async def close(self) -> None: ...


class Sqlite:
    """SQLite: all statements of a transaction run on one thread.

    A hop to a thread for each statement, as in aiosqlite, would cost more than the statement.
    """

    now = "SELECT (julianday('now') - 2440587.5) * 86400.0"

    def __init__(self, url: sa.URL) -> None:
        url = url.set(drivername="sqlite+pysqlite")
        self._writer, self._reader = _sqlite_engine(url, "IMMEDIATE"), _sqlite_engine(url, "DEFERRED")
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        self._read_threads = ThreadPoolExecutor(4, thread_name_prefix="sqlite-reader")

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._write_thread, _run, self._writer, work)

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._read_threads, _run, self._reader, work)

    async def close(self) -> None:
        for engine, threads in ((self._writer, self._write_thread), (self._reader, self._read_threads)):
            await asyncio.get_running_loop().run_in_executor(threads, engine.dispose)
            threads.shutdown()


class Postgresql:
    """PostgreSQL: transactions run on greenlets, which let the event loop wait for the server."""

    now = "SELECT extract(epoch from clock_timestamp())::float8"

    def __init__(self, url: sa.URL) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine  # SQLite starts faster without

        self._engine = create_async_engine(
            url.set(drivername="postgresql+asyncpg"),
            pool_size=16,
            max_overflow=0,  # waiting for a connection costs less than opening one
            pool_timeout=10,
            pool_use_lifo=True,  # few connections stay in use, with their statements prepared
            connect_args={"timeout": 5, "server_settings": {"application_name": "diffuserve", "jit": "off"}},
        )

        # A read is one statement: BEGIN and ROLLBACK around it would be two more round trips.
        self._reader = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        def locked(connection: sa.Connection) -> T:
            # A statement of its own, since a statement sees what was committed before it began: the next
            # ones must see everything that was committed before the lock was granted.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            return work(connection)

        with _wrapped_errors():
            async with self._engine.begin() as connection:
                return await connection.run_sync(locked)

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        with _wrapped_errors():
            async with self._reader.connect() as connection:
                return await connection.run_sync(work)

    async def close(self) -> None:
        await self._engine.dispose()


class Database:
    """Transactions of one database, and its clock. Times are seconds since the epoch."""

    def __init__(self, url: str, config: StoreConfig, clock: Clock | None = None) -> None:
        """Connect to `url`. `clock` gives the time in tests; by default it is the database's own.

        Raise `InvalidParams` for another kind of database.
        """
        parsed = sa.make_url(url)
        kinds: dict[str, type[Sqlite | Postgresql]] = {"sqlite": Sqlite, "postgresql": Postgresql}
        kind = kinds.get(parsed.get_backend_name())
        if kind is None:
            shown = parsed.render_as_string(hide_password=True)
            raise InvalidParams("database_url", shown, "must begin with sqlite:/// or postgresql://")
        self._backend: Backend = kind(parsed)
        self._config = config
        self._clock = clock

    async def write(self, work: Callable[[Transaction], T], is_retry: bool = False) -> T:
        """Do `work` under the lock and commit; errors of the connection are the caller's to handle."""

        def run(connection: sa.Connection) -> T:
            return work(Transaction(connection, self._now(connection), self._config, is_retry))

        return await self._backend.write(run)

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Do `work` without the lock. Raise `ServerUnavailable` if the database stays unreachable."""
        return await retry_while_unavailable(lambda _: self._backend.read(work))

    async def rows(self, statement: sa.Executable) -> list[sa.Row[Any]]:
        """Return all rows of a statement. Raise `ServerUnavailable` as `read` does."""
        return await self.read(lambda connection: list(connection.execute(statement).all()))

    async def now(self) -> float:
        """Return the store's time, the same for all control planes."""
        return await self.read(self._now)

    async def close(self) -> None:
        await self._backend.close()

    def _now(self, connection: sa.Connection) -> float:
        if self._clock is not None:
            return self._clock()
        return float(connection.exec_driver_sql(self._backend.now).scalar_one())


def _run(engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
    with engine.begin() as connection:
        return work(connection)


async def retry_while_unavailable(work: Callable[[bool], Awaitable[T]]) -> T:
    """Await `work(is_retry)` again while the database is unavailable, as it is during a restart.

    Raise `ServerUnavailable` when that takes longer than ten seconds.
    """
    try:
        return await retry(lambda attempt: work(attempt > 1), _pause, _BACKOFF, _PATIENCE_SECONDS)
    except Exception as error:
        if not is_unavailable(error):
            raise
        log.error("database unavailable: %s", error)
        raise ServerUnavailable("the database is unavailable; try again later", retry_after=2) from error


def _pause(error: Exception) -> float | None:
    if not is_unavailable(error):
        return None
    log.warning("database unavailable (%s); retrying", type(error).__name__)
    return 0.0


def is_unavailable(error: BaseException) -> bool:
    """Return whether the database is unreachable or busy, so that the same work may succeed later."""
    if isinstance(error, OSError | PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None) or ""
    message = str(error.orig)
    return (
        error.connection_invalidated
        or state.startswith(_AWAY)
        or any(text in message for text in ("database is locked", "connection is closed"))
    )


@contextmanager
def _wrapped_errors() -> Iterator[None]:
    """Wrap the errors that asyncpg raises bare while it connects, as SQLAlchemy wraps the others."""
    import asyncpg

    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        is_closed = isinstance(error, asyncpg.InterfaceError)
        raise DBAPIError(None, None, error, connection_invalidated=is_closed) from error


def _sqlite_engine(url: sa.URL, begin: str) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions: `start` does
        # FULL: a commit that a client was told of survives a loss of power.
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def start(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {begin}")

    return engine
