"""Alembic's entry point: runs migrations on the connection passed by `migrate`, in its transaction."""

from alembic import context

from diffuserve.jobs.database import count_tables, schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=[schema.metadata, count_tables.metadata],
    transactional_ddl=False,
)
context.run_migrations()
