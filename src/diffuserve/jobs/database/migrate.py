"""The schema of a database, built at once or brought up to date by Alembic's migrations."""

from pathlib import Path

import sqlalchemy as sa

from diffuserve.domain.errors import InvalidParams
from diffuserve.jobs.database import count_tables, schema
from diffuserve.jobs.database.connections import Database

HEAD = "0105"
"""The newest migration. A database that has it needs neither the others nor Alembic."""
_FIRST = "0100"  # those before it were never released

# The table as Alembic creates it.
_VERSIONS = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
_FOLDER = Path(__file__).with_name("migrations")


async def migrate(database: Database) -> None:
    """Build the schema, or run the migrations that are missing.

    Both happen under the write lock, so that replicas may start together. Raise `InvalidParams` if a newer
    version has migrated the database, or one from before the first release has made it.
    """
    revision = await database.read(read_revision)
    if revision == HEAD:
        return
    if revision is not None:
        _check(revision)
    await database.migrate(_bring_up_to_date)


def _check(revision: str) -> None:
    if revision > HEAD:
        raise InvalidParams(
            "schema",
            revision,
            f"a newer version has brought the database up to date, and this one knows {HEAD}; start the "
            "newer version, or restore a backup from before the upgrade",
        )
    if revision < _FIRST:
        raise InvalidParams(
            "schema",
            revision,
            f"a version from before the first release has made the database, and upgrades begin at {_FIRST}; "
            "let that version finish its jobs, then begin with an empty database, by DIFFUSERVE_DATABASE_URL "
            "or, for SQLite, another --data-dir",
        )


def _bring_up_to_date(connection: sa.Connection) -> None:
    if sa.inspect(connection).has_table(_VERSIONS.name):
        upgrade(connection)
    else:
        build(connection)


def build(connection: sa.Connection) -> None:
    """Create the newest schema in an empty database, without running migrations."""
    schema.metadata.create_all(connection)
    count_tables.metadata.create_all(connection)
    _VERSIONS.create(connection)
    connection.execute(_VERSIONS.insert().values(version_num=HEAD))


def upgrade(connection: sa.Connection, revision: str = "head") -> None:
    """Run the migrations that the database lacks, up to a revision."""
    from alembic import command  # takes a while to import, and is seldom needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def read_revision(connection: sa.Connection) -> str | None:
    """Return the newest migration that a database has; `None` for one without tables."""
    if not sa.inspect(connection).has_table(_VERSIONS.name):
        return None
    return connection.execute(sa.select(_VERSIONS.c.version_num)).scalar()
