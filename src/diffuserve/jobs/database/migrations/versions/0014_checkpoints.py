"""Checkpoints of half-done jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("checkpoint", sa.Text(), nullable=True))
    has_one = sa.text("checkpoint IS NOT NULL")
    op.create_index("jobs_with_checkpoint", "jobs", ["id"], sqlite_where=has_one, postgresql_where=has_one)
