"""Connections and transactions: everything that differs between SQLite and PostgreSQL is in this file.

Every transaction that writes holds one lock of the whole database from its first statement on:
`BEGIN IMMEDIATE` on SQLite, an advisory lock on PostgreSQL. What is read under it stays true until
the commit, so that the same plain statements are correct on both, and no row needs a lock of its own.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import EndedJob
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database.lane_change import LaneChange
from diffuserve.jobs.database.outages import retry_while_unavailable
from diffuserve.jobs.database.tally import Tally

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
Clock = Callable[[], float]
Message = tuple[str, Mapping[str, Any]]
"""A topic of the event bus, and what is published on it."""

IDS: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
"""Parameter of statements that are built once, since to build one takes longer than to execute it."""

_LOCK = 0x64696666  # any number that no other program uses as an advisory lock in this database
_BUSY_SECONDS = 10.0

# A control plane that is frozen, or whose machine is gone, keeps the lock for as long as it may idle in a
# transaction. The others wait a little longer for the lock, and a little longer still for any response.
_IDLE_SECONDS = 5
_LOCK_SECONDS = 8
_COMMAND_SECONDS = 10.0
_IDLE_IN_MIGRATION_SECONDS = 300  # a migration may compute between its statements
_KEEPALIVE = {"idle": 5, "interval": 2, "count": 3}  # a peer that is gone is noticed after 11 seconds


@dataclass
class Transaction:
    """A transaction under the write lock. `now` is the store's clock at its beginning.

    After the commit, `messages` are published, and the store's listeners are notified of `ended`,
    `requeue_causes`, `num_expired` leases and `lane_changes`; `tally` is written after all commands.
    `is_retry` is true if the connection was lost in an earlier attempt at the same commands: they may be
    committed already.
    """

    connection: sa.Connection
    now: float
    config: StoreConfig
    is_retry: bool = False
    messages: list[Message] = field(default_factory=list)
    ended: list[EndedJob] = field(default_factory=list)
    requeue_causes: list[str] = field(default_factory=list)
    num_expired: int = 0
    lane_changes: list[LaneChange] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        """Publish a message on the event bus once the transaction is committed."""
        self.messages.append((topic, message))

    @property
    def dialect(self) -> str:
        """The name of the database's dialect of SQL."""
        return self.connection.dialect.name

    def execute(
        self, statement: sa.Executable, rows: list[dict[str, Any]] | dict[str, Any] | None = None
    ) -> sa.CursorResult[Any]:
        """Execute a statement, once for each of `rows` if it is a list."""
        return self.connection.execute(statement, rows)

    def rows(self, statement: sa.Executable, values: Mapping[str, Any] | None = None) -> list[sa.Row[Any]]:
        """Return all rows of a statement with these values."""
        return list(self.connection.execute(statement, values).all())

    def upsert(self, table: sa.Table) -> "postgresql.Insert | sqlite.Insert":
        """Return an insert with `on_conflict_do_update`."""
        return upsert(table, self.dialect)


def upsert(table: sa.Table, dialect: str) -> "postgresql.Insert | sqlite.Insert":
    """Return an insert with `on_conflict_do_update`, which both dialects have."""
    if dialect == "sqlite":
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

    async def migrate(self, work: Callable[[sa.Connection], T]) -> T:
        """Do `work` as `write` does, without a limit on its time or on the wait for the lock."""
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
        self._writer, self._reader = _sqlite_writer(url), _sqlite_reader(url)
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        self._read_threads = ThreadPoolExecutor(4, thread_name_prefix="sqlite-reader")

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._write_thread, _write, self._writer, work
        )

    migrate = write

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._read_threads, _read, self._reader, work)

    async def close(self) -> None:
        for engine, threads in ((self._writer, self._write_thread), (self._reader, self._read_threads)):
            await asyncio.get_running_loop().run_in_executor(threads, engine.dispose)
            threads.shutdown()


class Postgresql:
    """PostgreSQL: transactions run on greenlets, which let the event loop wait for the server."""

    now = "SELECT extract(epoch from clock_timestamp())::float8"

    def __init__(self, url: sa.URL) -> None:
        limits = {"lock_timeout": f"{_LOCK_SECONDS}s"}
        limits["idle_in_transaction_session_timeout"] = f"{_IDLE_SECONDS}s"
        self._url = url
        self._engine = _postgresql_engine(
            url,
            limits,
            _COMMAND_SECONDS,
            pool_size=16,
            max_overflow=0,  # waiting for a connection costs less than opening one
            pool_timeout=10,
            pool_use_lifo=True,  # few connections stay in use, with their statements prepared
        )

        # A read is one statement: BEGIN and ROLLBACK around it would be two more round trips.
        self._reader = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    async def write(self, work: Callable[[sa.Connection], T]) -> T:
        with _wrapped_errors():
            return await _write_locked(self._engine, work)

    async def migrate(self, work: Callable[[sa.Connection], T]) -> T:
        limits = {"idle_in_transaction_session_timeout": f"{_IDLE_IN_MIGRATION_SECONDS}s"}
        engine = _postgresql_engine(self._url, limits, poolclass=sa.NullPool)
        with _wrapped_errors():
            return await _write_locked(engine, work)

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

    async def migrate(self, work: Callable[[sa.Connection], T]) -> T:
        """Do `work` under the lock and commit, however long that takes."""
        return await self._backend.migrate(work)

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Do `work` without the lock. Raise `ServerUnavailable` if the database stays unreachable."""
        return await retry_while_unavailable(lambda _: self._backend.read(work))

    async def look(self, work: Callable[[sa.Connection], T]) -> tuple[T, float]:
        """Do `work` without the lock, once; return its result and the store's time.

        Errors of the connection are the caller's to handle.
        """
        return await self._backend.read(lambda connection: (work(connection), self._now(connection)))

    async def rows(
        self, statement: sa.Executable, values: Mapping[str, Any] | None = None
    ) -> list[sa.Row[Any]]:
        """Return all rows of a statement with these values. Raise `ServerUnavailable` as `read` does."""
        return await self.read(lambda connection: list(connection.execute(statement, values).all()))

    async def now(self) -> float:
        """Return the store's time, the same for all control planes."""
        return await self.read(self._now)

    async def close(self) -> None:
        await self._backend.close()

    def _now(self, connection: sa.Connection) -> float:
        if self._clock is not None:
            return self._clock()
        return float(connection.exec_driver_sql(self._backend.now).scalar_one())


def _write(engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
    with engine.begin() as connection:
        return work(connection)


def _read(engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
    with engine.connect() as connection:
        return work(connection)


@contextmanager
def _wrapped_errors() -> Iterator[None]:
    """Wrap the errors that asyncpg raises bare while it connects, as SQLAlchemy wraps the others."""
    import asyncpg

    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        is_closed = isinstance(error, asyncpg.InterfaceError)
        raise DBAPIError(None, None, error, connection_invalidated=is_closed) from error


def _postgresql_engine(
    url: sa.URL, limits: Mapping[str, str], command_seconds: float | None = None, **pool: Any
) -> "AsyncEngine":
    """Return an engine whose sessions have these limits, and are named in `pg_stat_activity`."""
    import asyncpg
    from sqlalchemy.ext.asyncio import create_async_engine  # SQLite starts faster without

    class KeptAlive(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is untyped
        def __init__(self, protocol: Any, transport: asyncio.Transport, *rest: Any) -> None:
            super().__init__(protocol, transport, *rest)
            _keep_alive(transport.get_extra_info("socket"))

    settings = {"application_name": f"diffuserve {os.getpid()}@{socket.gethostname()}", "jit": "off"}
    settings |= {f"tcp_keepalives_{name}": str(value) for name, value in _KEEPALIVE.items()}
    connect_args = {
        "timeout": 5,
        "command_timeout": command_seconds,
        "connection_class": KeptAlive,
        "server_settings": settings | {"tcp_user_timeout": f"{_COMMAND_SECONDS:g}s", **limits},
    }
    return create_async_engine(
        url.set(drivername="postgresql+asyncpg"), hide_parameters=True, connect_args=connect_args, **pool
    )


def _keep_alive(connection: socket.socket) -> None:
    """Let the kernel detect that the server is gone; the server does the same by `server_settings`."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    names = {"idle": "TCP_KEEPIDLE", "interval": "TCP_KEEPINTVL", "count": "TCP_KEEPCNT"}
    for name, option in names.items():
        if hasattr(socket, option):  # macOS calls the first one otherwise
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), _KEEPALIVE[name])


async def _write_locked(engine: "AsyncEngine", work: Callable[[sa.Connection], T]) -> T:
    def locked(connection: sa.Connection) -> T:
        # A statement of its own, since a statement sees what was committed before it began: the next
        # ones must see everything that was committed before the lock was granted.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        return work(connection)

    async with engine.begin() as connection:
        return await connection.run_sync(locked)


def _sqlite_writer(url: sa.URL) -> sa.Engine:
    engine = _sqlite_engine(url)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions: `start` does

    @sa.event.listens_for(engine, "begin")
    def start(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _sqlite_reader(url: sa.URL) -> sa.Engine:
    """Return an engine for reads of one statement: a transaction around it would cost more than the read."""
    return _sqlite_engine(
        url, isolation_level="AUTOCOMMIT", pool_reset_on_return=None, skip_autocommit_rollback=True
    )


def _sqlite_engine(url: sa.URL, **options: Any) -> sa.Engine:
    arguments = {"timeout": _BUSY_SECONDS, "check_same_thread": False}
    engine = sa.create_engine(url, hide_parameters=True, connect_args=arguments, **options)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        # FULL: a commit that a client was told about survives a loss of power.
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")

    return engine
