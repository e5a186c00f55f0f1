"""Alembic's entry: runs migrations on the connection that `migrate` hands over, in its transaction."""

from alembic import context

from diffuserve.jobs.database.schema import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=False
)
context.run_migrations()
