"""Tables that operators watch: counts of what ended, and points of the last hour; and webhooks that fail."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_threshold": 200}


def upgrade() -> None:
    op.create_table(
        "tallies",
        sa.Column("started_at", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("kind", sa.Text(), primary_key=True, nullable=False),
        sa.Column("key", sa.Text(), primary_key=True, nullable=False),
        sa.Column("num", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("seconds", sa.Double(), nullable=False, server_default="0"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "operations_history",
        sa.Column("started_at", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("point", sa.Text(), nullable=False),
    )
    has_failed = sa.text("status <> 'delivered' AND num_attempts > 0")
    op.create_index(
        "webhook_deliveries_failing",
        "webhook_deliveries",
        ["last_attempt_at"],
        sqlite_where=has_failed,
        postgresql_where=has_failed,
    )
    is_disabled = sa.text("disabled_at IS NOT NULL")
    op.create_index(
        "webhook_endpoints_disabled",
        "webhook_endpoints",
        ["disabled_at"],
        sqlite_where=is_disabled,
        postgresql_where=is_disabled,
    )
