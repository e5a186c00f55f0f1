"""The first schema.

It is written out, and not built from what the code declares: a later revision changes what the code declares,
and begins here.
"""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

from diffuserve.jobs.database.columns import count, double, flag, number, partial_index, text

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None

_HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_threshold": 200}


def each(names: str, declare: Callable[..., sa.Column[Any]], **options: object) -> list[sa.Column[Any]]:
    """Declare columns of one kind."""
    return [declare(name, **options) for name in names.split()]


def upgrade() -> None:
    op.create_table(
        "jobs",
        text("id", primary_key=True),
        *each("tenant_id kind model status band input metadata output_format", text),
        *each("num_previews step_tokens seq attempt lease_token num_transient", count),
        *each("num_worker_lost num_preempted num_events version latent_bytes num_latents_lost", count),
        *each("live is_erased is_suspect best_effort exact", flag),
        *each("cost_seconds created_at", double),
        *each("timeout deadline started_at finished_at actual_seconds finish_by", double, null=True),
        *each("worker_id result error latents checkpoint asked", text, null=True),
        *each("webhook batch_id custom_id prompt traceparent", text, null=True),
        *each("decode_seconds kept_seconds", double, default="0"),
        partial_index("clips_by_tenant", "tenant_id", "id", where="kind = 'video.generate'"),
        partial_index("jobs_by_batch", "batch_id", "status", "id", where="batch_id IS NOT NULL"),
        partial_index("jobs_by_end", "status", "finished_at", where="finished_at IS NOT NULL"),
        sa.Index("jobs_by_tenant", "tenant_id", "id"),
        partial_index("jobs_to_erase", "id", where="is_erased"),
        partial_index("jobs_with_checkpoint", "id", where="checkpoint IS NOT NULL"),
    )
    op.create_table(
        "job_events",
        text("job_id", primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        *each("type data", text),
        double("created_at"),
    )
    op.create_table(
        "idempotency_keys",
        *each("tenant_id key", text, primary_key=True),
        *each("fingerprint job_id", text),
        double("created_at"),
        sa.Index("idempotency_keys_by_age", "created_at"),
    )
    op.create_table(
        "files",
        text("id", primary_key=True),
        *each("tenant_id filename sha256", text),
        *each("size_bytes width height", number),
        text("verdict", null=True),
        *each("created_at expires_at", double),
        sa.Index("files_by_content", "tenant_id", "sha256", unique=True),
        sa.Index("files_by_expiry", "expires_at"),
        sa.Index("files_by_tenant", "tenant_id", "id", "size_bytes"),
    )
    op.create_table(
        "job_files",
        *each("job_id file_id", text, primary_key=True),
        sa.Index("job_files_by_file", "file_id"),
    )
    op.create_table(
        "batches",
        text("id", primary_key=True),
        *each("tenant_id metadata", text),
        text("webhook", null=True),
        *each("num_items num_stored reserved_jobs num_queued num_running", count),
        *each("num_canceling num_succeeded num_failed num_canceled num_expired", count),
        double("reserved_seconds", default="0"),
        *each("stored_at finished_at", double, null=True),
        double("created_at"),
        *each("is_canceled is_canceling", flag),
        sa.Index("batches_by_tenant", "tenant_id", "id"),
        partial_index("batches_to_cancel", "id", where="is_canceling"),
        partial_index("batches_to_store", "tenant_id", where="reserved_jobs > 0"),
    )
    op.create_table(
        "webhook_endpoints",
        text("id", primary_key=True),
        *each("tenant_id url", text),
        double("created_at"),
        double("disabled_at", null=True),
        sa.Index("webhook_endpoints_by_tenant", "tenant_id", "id"),
        sa.Index("webhook_endpoints_by_url", "tenant_id", "url", unique=True),
        partial_index("webhook_endpoints_disabled", "disabled_at", where="disabled_at IS NOT NULL"),
    )
    op.create_table(
        "webhook_deliveries",
        text("id", primary_key=True),
        *each("endpoint_id type subject_id base_url status", text),
        count("num_attempts"),
        double("created_at"),
        *each("next_at last_attempt_at", double, null=True),
        number("last_status", null=True),
        text("last_error", null=True),
        *each("tenant_id host", text, server_default=""),
        sa.Index("webhook_deliveries_by_endpoint", "endpoint_id", "id"),
        partial_index("webhook_deliveries_due", "tenant_id", "next_at", "id", where="next_at IS NOT NULL"),
        partial_index(
            "webhook_deliveries_failing",
            "last_attempt_at",
            where="status <> 'delivered' AND num_attempts > 0",
        ),
        postgresql_with=_HOT,
    )
    op.create_table(
        "ready",
        text("job_id", primary_key=True),
        text("lane"),
        *each("seq step_tokens", number),
        *each("cost_seconds enqueued_at", double),
        *each("deadline rises_at", double, null=True),
        partial_index("ready_by_deadline", "deadline", where="deadline IS NOT NULL"),
        sa.Index("ready_by_lane", "lane", "seq", unique=True),
        partial_index("ready_by_rise", "rises_at", where="rises_at IS NOT NULL"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "delayed",
        text("job_id", primary_key=True),
        double("due_at"),
        sa.Index("delayed_by_time", "due_at"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "lanes",
        text("lane", primary_key=True),
        *each("band tenant_id model", text),
        *each("is_decode is_exact", flag),
        *each("num_ready head_seq", number),
        *each("work_seconds head_at head_since", double),
        postgresql_with=_HOT,
    )
    op.create_table(
        "leases",
        text("job_id", primary_key=True),
        number("lease_token"),
        *each("tenant_id model worker_id claim_id", text),
        text("until", server_default="files"),
        *each("charged granted_at expires_at", double),
        double("stop_at", null=True),
        *each("is_canceling is_preempted", flag),
        text("phase", null=True),
        *each("step total", count),
        sa.Index("leases_by_worker", "worker_id"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "tenants",
        text("id", primary_key=True),
        text("plan", null=True),
        double("weight", null=True),
        *each("max_running max_queued", number, null=True),
        double("vtime", default="0"),
        *each("next_seq num_queued", count),
        postgresql_with=_HOT,
    )
    op.create_table(
        "floors",
        text("model", primary_key=True),
        double("vtime"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "handicaps",
        *each("tenant_id model", text, primary_key=True),
        double("seconds"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "workers",
        text("id", primary_key=True),
        *each("name labels models report", text),
        *each("registered_at heartbeat_at", double),
        *each("is_draining is_spot", flag),
        *each("price_per_hour promised_at", double, null=True),
        text("role", server_default="all"),
        count("num_promised"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "models",
        text("name", primary_key=True),
        text("spec"),
        text("fit", null=True),
        double("updated_at"),
    )
    op.create_table(
        "api_keys",
        text("id", primary_key=True),
        *each("role secret_hash", text),
        text("tenant_id", null=True),
        double("created_at"),
        double("revoked_at", null=True),
    )
    op.create_table(
        "signing_secrets",
        *each("owner secret", text, primary_key=True),
        double("created_at"),
        double("expires_at", null=True),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        double("created_at"),
        *each("tenant_id stage category action filter prompt_hash job_id", text),
        sa.Index("audit_by_time", "created_at"),
    )
    op.create_table(
        "tallies",
        sa.Column("started_at", sa.BigInteger, primary_key=True, autoincrement=False),
        *each("kind key", text, primary_key=True),
        count("num"),
        double("seconds", default="0"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "usage",
        *each("day tenant_id model kind outcome", text, primary_key=True),
        *each("num_attempts num_images", count),
        *each("seconds cost", double, default="0"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "worker_time",
        *each("day kind", text, primary_key=True),
        *each("seconds cost", double, default="0"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "accepted_work",
        sa.Column("started_at", sa.BigInteger, primary_key=True, autoincrement=False),
        text("model", primary_key=True),
        double("seconds", default="0"),
        postgresql_with=_HOT,
    )
    op.create_table(
        "operations_history",
        sa.Column("started_at", sa.BigInteger, primary_key=True, autoincrement=False),
        text("point"),
    )
    op.create_table(
        "housekeeping",
        text("name", primary_key=True),
        text("holder"),
        double("last_alive"),
    )
