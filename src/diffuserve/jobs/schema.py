"""The tables. Narrow hot ones (`ready`, `delayed`, `leases`, `lanes`) beside the wide history `jobs`.

Times are seconds since the epoch. JSON is text: nothing is ever searched inside it.
"""

import sqlalchemy as sa

metadata = sa.MetaData()

# Rows that change all the time: room for updates in place, and vacuumed early (PostgreSQL only).
_HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_threshold": 200}


def _text(name: str, *, null: bool = False, **options: object) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=null, **options)  # type: ignore[arg-type]


def _time(name: str, *, null: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=null)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


jobs = sa.Table(
    "jobs",
    metadata,
    _text("id", primary_key=True),
    _text("tenant_id"),
    _text("kind"),
    _text("model"),
    _text("status"),
    _text("band"),
    _text("input"),
    _text("metadata"),
    _text("output_format"),
    _count("num_previews"),
    sa.Column("cost_seconds", sa.Double, nullable=False),
    _count("step_tokens"),
    _time("timeout", null=True),
    _time("deadline", null=True),
    _count("seq"),
    _count("attempt"),
    _count("lease_token"),
    _count("num_transient"),
    _count("num_worker_lost"),
    _count("num_events"),
    _count("version"),
    _text("worker_id", null=True),
    _time("created_at"),
    _time("started_at", null=True),
    _time("finished_at", null=True),
    _time("actual_seconds", null=True),
    _text("result", null=True),
    _text("error", null=True),
    _flag("is_erased"),
    _flag("is_suspect"),
    _text("webhook", null=True),
    _text("batch_id", null=True),
    _text("custom_id", null=True),
    _text("prompt", null=True),
    sa.Index("jobs_by_tenant", "tenant_id", "id"),
    sa.Index(
        "jobs_by_batch",
        "batch_id",
        "status",
        "id",
        sqlite_where=sa.text("batch_id IS NOT NULL"),
        postgresql_where=sa.text("batch_id IS NOT NULL"),
    ),
    sa.Index(
        "jobs_by_end",
        "status",
        "finished_at",
        sqlite_where=sa.text("finished_at IS NOT NULL"),
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    ),
    sa.Index("jobs_to_erase", "id", sqlite_where=sa.text("is_erased"), postgresql_where=sa.text("is_erased")),
)

job_events = sa.Table(
    "job_events",
    metadata,
    _text("job_id", primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("type"),
    _text("data"),
    _time("created_at"),
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    _text("tenant_id", primary_key=True),
    _text("key", primary_key=True),
    _text("fingerprint"),
    _text("job_id"),
    _time("created_at"),
    sa.Index("idempotency_keys_by_age", "created_at"),
)

# `num_stored` items of `num_items` have become jobs; `is_canceling` until each of them was told.
batches = sa.Table(
    "batches",
    metadata,
    _text("id", primary_key=True),
    _text("tenant_id"),
    _text("metadata"),
    _text("webhook", null=True),
    _count("num_items"),
    _count("num_stored"),
    _time("created_at"),
    _time("finished_at", null=True),
    _flag("is_canceled"),
    _flag("is_canceling"),
    sa.Index("batches_by_tenant", "tenant_id", "id"),
    sa.Index(
        "batches_to_cancel",
        "id",
        sqlite_where=sa.text("is_canceling"),
        postgresql_where=sa.text("is_canceling"),
    ),
)

# One row for each URL that a tenant has named; who answers 410 is not called again.
webhook_endpoints = sa.Table(
    "webhook_endpoints",
    metadata,
    _text("id", primary_key=True),
    _text("tenant_id"),
    _text("url"),
    _time("created_at"),
    _time("disabled_at", null=True),
    sa.Index("webhook_endpoints_by_url", "tenant_id", "url", unique=True),
)

# The outbox: a row is written with the change that it tells of, and sent afterwards.
webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    _text("id", primary_key=True),
    _text("endpoint_id"),
    _text("type"),
    _text("subject_id"),
    _text("base_url"),
    _text("status"),
    _count("num_attempts"),
    _time("created_at"),
    _time("next_at", null=True),
    _time("last_attempt_at", null=True),
    sa.Column("last_status", sa.BigInteger),
    _text("last_error", null=True),
    sa.Index("webhook_deliveries_by_endpoint", "endpoint_id", "id"),
    sa.Index(
        "webhook_deliveries_due",
        "next_at",
        sqlite_where=sa.text("next_at IS NOT NULL"),
        postgresql_where=sa.text("next_at IS NOT NULL"),
    ),
    postgresql_with=_HOT,
)

# Signatures are made with them, so they cannot be stored as hashes.
webhook_secrets = sa.Table(
    "webhook_secrets",
    metadata,
    _text("tenant_id", primary_key=True),
    _text("secret", primary_key=True),
    _time("created_at"),
    _time("expires_at", null=True),
)

ready = sa.Table(
    "ready",
    metadata,
    _text("job_id", primary_key=True),
    _text("lane"),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("cost_seconds", sa.Double, nullable=False),
    sa.Column("step_tokens", sa.BigInteger, nullable=False),
    _time("enqueued_at"),
    _time("deadline", null=True),
    sa.Index("ready_by_lane", "lane", "seq", unique=True),
    sa.Index(
        "ready_by_deadline",
        "deadline",
        sqlite_where=sa.text("deadline IS NOT NULL"),
        postgresql_where=sa.text("deadline IS NOT NULL"),
    ),
    postgresql_with=_HOT,
)

delayed = sa.Table(
    "delayed",
    metadata,
    _text("job_id", primary_key=True),
    _time("due_at"),
    sa.Index("delayed_by_time", "due_at"),
    postgresql_with=_HOT,
)

# One row for each band × tenant × model that has ready jobs, so that a choice reads O(lanes) rows.
lanes = sa.Table(
    "lanes",
    metadata,
    _text("lane", primary_key=True),
    _text("band"),
    _text("tenant_id"),
    _text("model"),
    sa.Column("num_ready", sa.BigInteger, nullable=False),
    sa.Column("work_seconds", sa.Double, nullable=False),
    sa.Column("head_seq", sa.BigInteger, nullable=False),
    _time("head_at"),
    _time("head_since"),
    postgresql_with=_HOT,
)

# No index on `expires_at`: a heartbeat must stay an update in place.
leases = sa.Table(
    "leases",
    metadata,
    _text("job_id", primary_key=True),
    sa.Column("lease_token", sa.BigInteger, nullable=False),
    _text("tenant_id"),
    _text("model"),
    _text("worker_id"),
    _text("claim_id"),
    sa.Column("charged", sa.Double, nullable=False),
    _time("expires_at"),
    _time("stop_at", null=True),
    _flag("is_canceling"),
    _text("phase", null=True),
    _count("step"),
    _count("total"),
    sa.Index("leases_by_worker", "worker_id"),
    postgresql_with=_HOT,
)

tenants = sa.Table(
    "tenants",
    metadata,
    _text("id", primary_key=True),
    _text("plan", null=True),
    sa.Column("weight", sa.Double),
    sa.Column("max_running", sa.BigInteger),
    sa.Column("max_queued", sa.BigInteger),
    sa.Column("vtime", sa.Double, nullable=False, server_default="0"),
    _count("next_seq"),
    _count("num_queued"),
    postgresql_with=_HOT,
)

# How far virtual time has come; who was idle starts here, so that idleness earns no credit.
floors = sa.Table(
    "floors",
    metadata,
    _text("band", primary_key=True),
    _text("model", primary_key=True),
    sa.Column("vtime", sa.Double, nullable=False),
    postgresql_with=_HOT,
)

workers = sa.Table(
    "workers",
    metadata,
    _text("id", primary_key=True),
    _text("name"),
    _text("labels"),
    _text("models"),
    _text("report"),
    _time("registered_at"),
    _time("heartbeat_at"),
    _flag("is_draining"),
    _flag("is_spot"),
    sa.Column("price_per_hour", sa.Double),
    postgresql_with=_HOT,
)

models = sa.Table(
    "models",
    metadata,
    _text("name", primary_key=True),
    _text("spec"),
    _text("fit", null=True),
    _time("updated_at"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    _text("id", primary_key=True),
    _text("role"),
    _text("tenant_id", null=True),
    _text("secret_hash"),
    _time("created_at"),
    _time("revoked_at", null=True),
)

secrets = sa.Table("secrets", metadata, _text("name", primary_key=True), _text("value"))

# Of prompts and images that a filter flagged or kept out; never their words.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    _time("created_at"),
    _text("tenant_id"),
    _text("stage"),
    _text("category"),
    _text("action"),
    _text("filter"),
    _text("prompt_hash"),
    _text("job_id"),
    sa.Index("audit_by_time", "created_at"),
)

# Which replica cleans up, and when it last did.
housekeeping = sa.Table(
    "housekeeping",
    metadata,
    _text("name", primary_key=True),
    _text("holder"),
    _time("last_alive"),
)
