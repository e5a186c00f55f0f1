"""The schema that migrations build is the one that the code reads and writes."""

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from diffuserve.jobs import migrate, schema
from diffuserve.jobs.store import JobStore


def differences(connection: sa.Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return list(compare_metadata(context, schema.metadata))


def revision(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


async def test_migrations_build_the_schema(job_store: JobStore) -> None:
    assert await job_store.database.read(lambda connection: differences(connection)) == []


async def test_a_missing_index_would_be_seen(job_store: JobStore) -> None:
    drop = sa.text("DROP INDEX ready_by_lane")
    await job_store.database.write(lambda transaction: transaction.execute(drop))
    assert await job_store.database.read(lambda connection: differences(connection)) != []


async def test_the_newest_migration_is_the_one_that_is_looked_for(job_store: JobStore) -> None:
    folder = ScriptDirectory(str(migrate._FOLDER))
    assert folder.get_current_head() == migrate.HEAD
    assert await job_store.database.read(revision) == migrate.HEAD


async def test_a_second_migration_changes_nothing(job_store: JobStore) -> None:
    await migrate.migrate(job_store.database)
    assert await job_store.database.read(lambda connection: differences(connection)) == []
