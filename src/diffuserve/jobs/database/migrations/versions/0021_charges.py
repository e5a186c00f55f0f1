"""Charges of attempts: when leases were granted, what of a checkpoint is charged, and tenants' handicaps."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_threshold": 200}


def upgrade() -> None:
    op.add_column("leases", sa.Column("granted_at", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("kept_seconds", sa.Double(), nullable=False, server_default="0"))
    op.create_table(
        "handicaps",
        sa.Column("tenant_id", sa.Text(), primary_key=True, nullable=False),
        sa.Column("model", sa.Text(), primary_key=True, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        postgresql_with=_HOT,
    )
