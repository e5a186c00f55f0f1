"""The databases of the chaos run and the benchmarks: a SQLite file, or a local PostgreSQL server."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.clock import Clock, PostgresqlClock, SqliteClock
from diffuserve.private_files import make_private_file
from support.postgres import PostgresServer

SQLITE, POSTGRESQL = "sqlite", "postgresql"
NAMES = (SQLITE, POSTGRESQL)


@dataclass(frozen=True, kw_only=True)
class Database:
    """A database: `url` for `diffuserve api` (empty for SQLite), `store_url` for SQLAlchemy.

    `kill` ends the postmaster with SIGKILL, and `revive` starts it again; SQLite has neither. `clock` is the
    database's own, which only control planes know that were started for it.
    """

    name: str
    url: str | None
    store_url: str
    clock: Clock
    postmaster: Callable[[], int] | None = None
    kill: Callable[[], None] | None = None
    revive: Callable[[], None] | None = None


@contextmanager
def open_database(name: str, folder: Path) -> Iterator[Database]:
    """Yield an empty database, durable as in production: every commit is synced to disk."""
    if name == SQLITE:
        data_dir = folder / "data"
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private_file(data_dir / "diffuserve.db")
        store_url = f"sqlite+aiosqlite:///{data_dir / 'diffuserve.db'}"
        yield Database(name=name, url=None, store_url=store_url, clock=SqliteClock(folder / "clock"))
        return
    server = PostgresServer(folder / "postgresql", fsync=True)
    server.start()
    try:
        url = server.create_database("diffuserve")
        yield Database(
            name=name,
            url=url,
            store_url=url.replace("postgresql://", "postgresql+asyncpg://", 1),
            clock=PostgresqlClock(url),
            postmaster=lambda: server.pid,
            kill=server.kill,
            revive=server.revive,
        )
    finally:
        server.stop()
