"""The schema that migrations build is the one that the code reads and writes."""

from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from diffuserve.jobs.database import count_tables, migrate, schema
from diffuserve.jobs.store import JobStore


def differences(connection: sa.Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    tables = [schema.metadata, count_tables.metadata]
    return list(compare_metadata(context, tables))  # type: ignore[arg-type]  # Alembic takes several.


def revision(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


async def test_a_new_database_has_the_schema(job_store: JobStore) -> None:
    assert await job_store.database.read(lambda connection: differences(connection)) == []


async def test_migrations_build_the_schema_of_a_new_database(job_store: JobStore) -> None:
    built = await job_store.database.read(definitions)
    await job_store.database.write(lambda transaction: drop_all(transaction.connection))
    await job_store.database.write(lambda transaction: migrate.upgrade(transaction.connection))
    assert await job_store.database.read(definitions) == built
    assert {"jobs", "alembic_version"} <= built.keys()
    assert await job_store.database.read(lambda connection: differences(connection)) == []


def definitions(connection: sa.Connection) -> dict[str, object]:
    """Return what the database says of each table, whatever the order of its columns and indexes."""
    return {name: _definition(connection, name) for name in sa.inspect(connection).get_table_names()}


def _definition(connection: sa.Connection, table: str) -> object:
    inspector = sa.inspect(connection)
    columns = sorted(map(repr, inspector.get_columns(table)))
    indexes = sorted(repr(_plain(index)) for index in inspector.get_indexes(table))
    return columns, indexes, inspector.get_pk_constraint(table), inspector.get_table_options(table)


def _plain(index: Any) -> dict[str, object]:
    """Write the conditions of partial indexes out, which are objects."""
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return {**index, "dialect_options": options}


def drop_all(connection: sa.Connection) -> None:
    tables = sa.MetaData()
    tables.reflect(connection)
    tables.drop_all(connection)


async def test_a_missing_index_is_reported_as_a_difference(job_store: JobStore) -> None:
    drop = sa.text("DROP INDEX ready_by_lane")
    await job_store.database.write(lambda transaction: transaction.execute(drop))
    assert await job_store.database.read(lambda connection: differences(connection)) != []


async def test_the_head_is_the_newest_migration(job_store: JobStore) -> None:
    folder = ScriptDirectory(str(migrate._FOLDER))
    assert folder.get_current_head() == migrate.HEAD
    assert await job_store.database.read(revision) == migrate.HEAD


async def test_a_second_migration_changes_nothing(job_store: JobStore) -> None:
    await migrate.migrate(job_store.database)
    assert await job_store.database.read(lambda connection: differences(connection)) == []
