"""Webhooks, batches, and jobs that are suspected of breaking engines."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_threshold": 200}


def upgrade() -> None:
    for name in ("webhook", "batch_id", "custom_id"):
        op.add_column("jobs", sa.Column(name, sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("is_suspect", sa.Boolean(), server_default=sa.false(), nullable=False))
    _partial_index("jobs_by_batch", "jobs", ["batch_id", "status", "id"], "batch_id IS NOT NULL")
    _create_batches()
    _create_webhooks()


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("webhook", sa.Text(), nullable=True),
        sa.Column("num_items", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_stored", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("is_canceled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("is_canceling", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("batches_by_tenant", "batches", ["tenant_id", "id"], unique=False)
    _partial_index("batches_to_cancel", "batches", ["id"], "is_canceling")


def _create_webhooks() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("disabled_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("webhook_endpoints_by_url", "webhook_endpoints", ["tenant_id", "url"], unique=True)
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("base_url", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("num_attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=True),
        sa.Column("last_attempt_at", sa.Double(), nullable=True),
        sa.Column("last_status", sa.BigInteger(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        postgresql_with=_HOT,
    )
    op.create_index("webhook_deliveries_by_endpoint", "webhook_deliveries", ["endpoint_id", "id"])
    _partial_index("webhook_deliveries_due", "webhook_deliveries", ["next_at"], "next_at IS NOT NULL")
    op.create_table(
        "webhook_secrets",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "secret"),
    )


def _partial_index(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
