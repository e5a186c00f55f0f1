"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_threshold": 200}


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "delayed",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
        postgresql_with=_HOT,
    )
    op.create_index("delayed_by_time", "delayed", ["due_at"], unique=False)
    op.create_table(
        "floors",
        sa.Column("band", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("vtime", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("band", "model"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "housekeeping",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("last_alive", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "key"),
    )
    op.create_index("idempotency_keys_by_age", "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "job_events",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "seq"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("band", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("output_format", sa.Text(), nullable=False),
        sa.Column("num_previews", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost_seconds", sa.Double(), nullable=False),
        sa.Column("step_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("timeout", sa.Double(), nullable=True),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempt", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lease_token", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_transient", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_worker_lost", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_events", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("actual_seconds", sa.Double(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("is_erased", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "jobs_by_end",
        "jobs",
        ["status", "finished_at"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NOT NULL"),
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index("jobs_by_tenant", "jobs", ["tenant_id", "id"], unique=False)
    op.create_index(
        "jobs_to_erase",
        "jobs",
        ["id"],
        unique=False,
        sqlite_where=sa.text("is_erased"),
        postgresql_where=sa.text("is_erased"),
    )
    op.create_table(
        "lanes",
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("band", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("num_ready", sa.BigInteger(), nullable=False),
        sa.Column("work_seconds", sa.Double(), nullable=False),
        sa.Column("head_seq", sa.BigInteger(), nullable=False),
        sa.Column("head_at", sa.Double(), nullable=False),
        sa.Column("head_since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("lane"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "leases",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("lease_token", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("claim_id", sa.Text(), nullable=False),
        sa.Column("charged", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("stop_at", sa.Double(), nullable=True),
        sa.Column("is_canceling", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=True),
        sa.Column("step", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("total", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
        postgresql_with=_HOT,
    )
    op.create_index("leases_by_worker", "leases", ["worker_id"], unique=False)
    op.create_table(
        "models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("fit", sa.Text(), nullable=True),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "ready",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("cost_seconds", sa.Double(), nullable=False),
        sa.Column("step_tokens", sa.BigInteger(), nullable=False),
        sa.Column("enqueued_at", sa.Double(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("job_id"),
        postgresql_with=_HOT,
    )
    op.create_index(
        "ready_by_deadline",
        "ready",
        ["deadline"],
        unique=False,
        sqlite_where=sa.text("deadline IS NOT NULL"),
        postgresql_where=sa.text("deadline IS NOT NULL"),
    )
    op.create_index("ready_by_lane", "ready", ["lane", "seq"], unique=True)
    op.create_table(
        "secrets",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=True),
        sa.Column("max_running", sa.BigInteger(), nullable=True),
        sa.Column("max_queued", sa.BigInteger(), nullable=True),
        sa.Column("vtime", sa.Double(), server_default="0", nullable=False),
        sa.Column("next_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_queued", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("models", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("registered_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("is_draining", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("is_spot", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("price_per_hour", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        postgresql_with=_HOT,
    )
