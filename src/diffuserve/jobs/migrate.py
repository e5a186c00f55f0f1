"""Bringing a database's schema up to date, by Alembic's migrations."""

from pathlib import Path

import sqlalchemy as sa

from diffuserve.jobs.database import Database

HEAD = "0003"
"""The newest migration; a database that is there already needs no look at the others."""

_FOLDER = Path(__file__).with_name("migrations")


async def migrate(database: Database) -> None:
    """Runs what is missing, under the write lock, so that replicas may start together."""
    if await _revision(database) == HEAD:
        return
    await database.write(lambda transaction: _upgrade(transaction.connection))


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command  # takes a while to import, and is seldom needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


async def _revision(database: Database) -> str | None:
    return await database.read(_read_revision)


def _read_revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
