"""Outages: a database that is away, busy, held or full is unavailable, and no command is at fault for it."""

import asyncio
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import psutil
import pytest
import sqlalchemy as sa

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.job import Job
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import connections, outages, schema, writer
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Database, Transaction
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.store import JobStore
from support.postgres import PostgresServer
from support.store_driver import new_job
from support.waiting import HANG_SECONDS, block_until

FREEZING_WRITER = Path(__file__).parents[1] / "support" / "freezing_writer.py"


@dataclass(frozen=True)
class Execute(SingleCommand[None]):
    """Execute statements, `seconds` of idleness apart."""

    statements: tuple[str, ...]
    seconds: float = 0.0

    def apply(self, transaction: Transaction) -> None:
        for statement in self.statements:
            transaction.connection.exec_driver_sql(statement)
            time.sleep(self.seconds)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the store try nothing again, and wait for a probe for a moment only."""
    monkeypatch.setattr(outages, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(writer, "_PROBE_SECONDS", 0.2)


@pytest.fixture
def postgresql_url(postgres: PostgresServer, migrated_database: str) -> Iterator[str]:
    url = postgres.create_database("outages", migrated_database)
    yield url
    postgres.drop_database("outages")


@asynccontextmanager
async def open_writer(url: str) -> AsyncGenerator[Writer]:
    opened = Database(url, StoreConfig())
    writer = Writer(opened, MemoryEventBus())
    writer.start()
    yield writer
    await writer.close()
    await opened.close()


@asynccontextmanager
async def held_lock(url: str) -> AsyncGenerator[None]:
    """Hold the write lock within the block, as a frozen control plane does."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
        return
    holder = await asyncpg.connect(url)
    async with holder.transaction():
        await holder.execute(f"SELECT pg_advisory_xact_lock({connections._LOCK})")
        yield
    await holder.close()


@contextmanager
def frozen_control_plane(url: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a control plane's writer that freezes inside a transaction."""
    command = [sys.executable, str(FREEZING_WRITER), url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        block_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_a_frozen_control_plane_loses_the_lock_and_the_other_one_goes_on(postgresql_url: str) -> None:
    store = JobStore(postgresql_url, MemoryEventBus(), StoreConfig())
    await store.open()
    with frozen_control_plane(postgresql_url) as process:
        async with asyncio.timeout(HANG_SECONDS):
            await store.jobs.submit(new_job())
        assert not await store.database.rows(sa.select(schema.signing_secrets)), (
            "what it wrote is rolled back"
        )
        process.send_signal(signal.SIGCONT)
        output, _ = await asyncio.to_thread(process.communicate, timeout=HANG_SECONDS)
    assert output.split() == ["open", "written"], "awake again, it has repeated its write"
    await store.close()


LIMITS: dict[str, tuple[Execute, str]] = {
    "idle in a transaction": (
        Execute(("SET LOCAL idle_in_transaction_session_timeout = '10ms'", "SELECT 1"), 0.2),
        "25P03",
    ),
    "lock": (
        Execute(("SET LOCAL lock_timeout = '10ms'", "SELECT pg_advisory_xact_lock(4711)")),
        "55P03",
    ),
    "statement": (Execute(("SET LOCAL statement_timeout = '10ms'", "SELECT pg_sleep(60)")), "57014"),
    "command": (Execute(("SELECT pg_sleep(60)",)), ""),
}


@pytest.mark.parametrize("name", LIMITS)
async def test_a_limit_of_postgresql_is_an_outage_and_no_commands_fault(
    name: str, postgresql_url: str, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, state = LIMITS[name]
    if name == "command":
        monkeypatch.setattr(connections, "_COMMAND_SECONDS", 0.5)
    other = await asyncpg.connect(postgresql_url)
    await other.execute("SELECT pg_advisory_lock(4711)")
    async with open_writer(postgresql_url) as writer:
        failed, neighbor = await asyncio.gather(
            writer.run(slow), writer.run(Execute(("SELECT 1",))), return_exceptions=True
        )
        await writer.run(Execute(("SELECT 1",)))
    await other.close()
    assert isinstance(failed, ServerUnavailable)
    assert isinstance(neighbor, ServerUnavailable), "neither is tried alone"
    cause = getattr(failed.__cause__, "orig", failed.__cause__)
    assert isinstance(cause, TimeoutError) or getattr(cause, "sqlstate", None) in (state, "08003")


async def test_a_held_lock_is_told_in_words(
    database_url: str, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_BUSY_SECONDS", 0.1)
    monkeypatch.setattr(connections, "_LOCK_SECONDS", 0.1)
    async with open_writer(database_url) as writer:
        async with held_lock(database_url):
            with pytest.raises(ServerUnavailable, match="another process holds its lock") as refused:
                await writer.run(Execute(("SELECT 1",)))
        await writer.run(Execute(("SELECT 1",)))
    assert refused.value.retry_after == 2


async def test_sessions_have_limits_and_keepalives_and_tell_whose_they_are(postgresql_url: str) -> None:
    opened = Database(postgresql_url, StoreConfig())
    asked = sa.text("SELECT name, setting || coalesce(unit, '') AS value, source FROM pg_settings")
    shown = {row.name: row for row in await opened.rows(asked)}
    assert shown["idle_in_transaction_session_timeout"].value == "5000ms"
    assert shown["lock_timeout"].value == "8000ms"
    assert shown["application_name"].value.endswith(f"@{socket.gethostname()}")
    for name in (
        "tcp_keepalives_idle",
        "tcp_keepalives_interval",
        "tcp_keepalives_count",
        "tcp_user_timeout",
    ):
        assert shown[name].source == "client", "zero is shown for a Unix socket, which has none"
    await opened.close()


def test_connections_are_kept_alive() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        connections._keep_alive(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_a_migration_waits_longer_than_other_writes(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_LOCK_SECONDS", 0.05)
    monkeypatch.setattr(connections, "_COMMAND_SECONDS", 0.1)
    opened = Database(postgresql_url, StoreConfig())
    async with held_lock(postgresql_url):
        migration = asyncio.create_task(opened.migrate(lambda connection: connection.in_transaction()))
        with pytest.raises((sa.exc.DBAPIError, TimeoutError)):
            await opened.write(lambda transaction: None)
        assert not migration.done()
    assert await migration
    await opened.close()


async def test_the_writer_is_checked_against_a_held_lock(
    job_store: JobStore, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await job_store.operations.check_writer()
    monotonic = asyncio.get_running_loop().time
    job_store._writer._committed_at = monotonic() - 60.0
    async with held_lock(database_url):
        with monkeypatch.context() as impatience:
            impatience.setattr(writer, "_PROBE_SECONDS", 0.2)
            with pytest.raises(ServerUnavailable, match="no write to the database was committed"):
                await job_store.operations.check_writer()
    monkeypatch.setattr(writer, "_PROBE_SECONDS", HANG_SECONDS)
    await job_store.operations.check_writer()
    assert not await job_store.database.rows(sa.select(schema.housekeeping)), "the probe leaves nothing"


async def test_a_recent_commit_spares_the_probe(job_store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await job_store.jobs.submit(new_job())
    writes: list[object] = []
    monkeypatch.setattr(job_store.database, "write", writes.append)
    await job_store.operations.check_writer()
    assert not writes


class TestFullDisk:
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[JobStore]:
        store = JobStore(f"sqlite:///{tmp_path}/jobs.db", MemoryEventBus(), StoreConfig())
        await store.open()
        yield store
        await store.close()

    async def limit_pages(self, store: JobStore, count: int) -> None:
        """Let the database have at most `count` pages, or as many as it has."""
        pragma = f"PRAGMA max_page_count = {count}"
        await store.database.write(
            lambda transaction: transaction.connection.exec_driver_sql(pragma).scalar()
        )

    async def fill(self, store: JobStore, accepted: list[Job]) -> None:
        while True:
            accepted.append(await store.jobs.submit(new_job()))

    async def test_a_full_database_is_unavailable_until_there_is_room(self, store: JobStore) -> None:
        await self.limit_pages(store, 1)
        accepted: list[Job] = []
        with pytest.raises(ServerUnavailable, match="database or disk is full"):
            await self.fill(store, accepted)
        with pytest.raises(ServerUnavailable, match="full"):
            await store.operations.check_writer()
        await store.housekeeping.reap("reaper")
        with pytest.raises(ServerUnavailable, match="full"):
            await store.operations.check_writer()  # although a write in place has succeeded
        stored = await store.jobs.list_jobs(limit=1_000)
        assert {job.id for job in stored} == {job.id for job in accepted}
        await self.limit_pages(store, 1_000_000)
        await store.operations.check_writer()
        await store.jobs.submit(new_job())
