"""Deadlines of jobs, and when a waiting one goes before others."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("finish_by", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("best_effort", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("ready", sa.Column("rises_at", sa.Double(), nullable=True))
    rises = sa.text("rises_at IS NOT NULL")
    op.create_index("ready_by_rise", "ready", ["rises_at"], sqlite_where=rises, postgresql_where=rises)
