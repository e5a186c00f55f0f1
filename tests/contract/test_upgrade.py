"""A database of an older version is brought up to date, and its jobs run; a newer one is refused."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import migrate
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock
from support.store_driver import add_worker, claim, claim_one, complete, new_job, send_heartbeat

REVISIONS = [script.revision for script in ScriptDirectory(str(migrate._FOLDER)).walk_revisions()][::-1]
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


@pytest.mark.parametrize("revision", sorted({REVISIONS[0], *REVISIONS[-2:-1]}))
async def test_an_upgrade_loses_no_job_whichever_worker_runs_it(
    job_store: JobStore, revision: str, database_url: str, clock: FakeClock
) -> None:
    """Hold one job on an old worker throughout; the others go to it and to a newer one afterwards."""
    jobs = [await job_store.jobs.submit(new_job()) for _ in range(3)]
    old_worker = await add_worker(job_store)
    held = await claim_one(job_store, old_worker)
    await job_store.database.write(lambda transaction: go_back(transaction.connection, revision))
    store = JobStore(database_url, MemoryEventBus(), StoreConfig(), clock)
    await store.open()
    await send_heartbeat(store, old_worker, held)
    await complete(store, held)
    new_worker = await add_worker(store)
    for worker in (old_worker, new_worker):
        [lease] = await claim(store, worker)
        await complete(store, lease)
    assert [(await store.jobs.get(job.id)).status for job in jobs] == [JobStatus.SUCCEEDED] * 3
    await store.close()


@pytest.mark.parametrize(
    ("revision", "refusal"),
    [
        ("9999", f"newer version.*{migrate.HEAD}.*backup"),
        ("0021", f"before the first release.*{REVISIONS[0]}.*empty database"),
    ],
)
async def test_a_database_from_which_nothing_leads_here_is_refused(
    job_store: JobStore, database_url: str, revision: str, refusal: str
) -> None:
    other = sa.text(f"UPDATE alembic_version SET version_num = '{revision}'")
    await job_store.database.write(lambda transaction: transaction.execute(other))
    store = JobStore(database_url, MemoryEventBus(), StoreConfig())
    with pytest.raises(InvalidParams, match=f"{revision}.*{refusal}"):
        await store.open()
    await store.database.close()


def go_back(connection: sa.Connection, revision: str) -> None:
    """Rebuild the database as it was at `revision`, with the rows and columns that it had then."""
    rows = read_all(connection)
    drop_all(connection)
    migrate.upgrade(connection, revision)
    for table in reflected(connection).sorted_tables:
        if table.name != "alembic_version" and rows.get(table.name):
            known = [{column: row[column] for column in row if column in table.c} for row in rows[table.name]]
            connection.execute(table.insert(), known)


def read_all(connection: sa.Connection) -> Rows:
    return {
        table.name: [dict(row._mapping) for row in connection.execute(sa.select(table))]
        for table in reflected(connection).sorted_tables
    }


def drop_all(connection: sa.Connection) -> None:
    reflected(connection).drop_all(connection)


def reflected(connection: sa.Connection) -> sa.MetaData:
    tables = sa.MetaData()
    tables.reflect(connection)
    return tables


async def test_a_control_plane_of_the_version_before_goes_on_after_the_schema_was_upgraded(
    job_store: JobStore,
) -> None:
    """Compare each revision with the next: what it reads and writes is still there, and rows need no more."""
    broken = await job_store.database.write(lambda transaction: breaks(transaction.connection))
    assert broken == []


def breaks(connection: sa.Connection) -> list[str]:
    """Return what of each revision the next one has taken away, or asks for in addition."""
    found = []
    drop_all(connection)
    before: sa.MetaData | None = None
    for revision in REVISIONS:
        migrate.upgrade(connection, revision)
        after = reflected(connection)
        if before is not None:
            found += [f"{revision}: {what}" for what in _broken(before, after)]
        before = after
    return found


def _broken(before: sa.MetaData, after: sa.MetaData) -> Iterator[str]:
    for table in before.tables.values():
        upgraded = after.tables.get(table.name)
        if upgraded is None:
            yield f"the table {table.name} is gone"
            continue
        yield from (f"{table.name}.{name} is gone" for name in set(table.c.keys()) - set(upgraded.c.keys()))
        for name in set(upgraded.c.keys()) - set(table.c.keys()):
            if not upgraded.c[name].nullable and upgraded.c[name].server_default is None:
                yield f"rows of {table.name} need the new {name}"


def test_what_would_break_a_control_plane_of_the_version_before_is_found() -> None:
    before, after = sa.MetaData(), sa.MetaData()
    sa.Table("jobs", before, sa.Column("id", sa.Text), sa.Column("note", sa.Text))
    sa.Table("notes", before, sa.Column("id", sa.Text))
    number = sa.Column("number", sa.Integer, nullable=False)
    sa.Table("jobs", after, sa.Column("id", sa.Text), number, sa.Column("mark", sa.Text))
    assert list(_broken(before, after)) == [
        "jobs.note is gone",
        "rows of jobs need the new number",
        "the table notes is gone",
    ]
