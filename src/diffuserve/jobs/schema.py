"""The tables: narrow hot ones (`ready`, `delayed`, `leases`, `lanes`) beside the wide history `jobs`.

Times are seconds since the epoch. JSON is stored as text, since no query searches inside it.
"""

from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_type_hints

import sqlalchemy as sa

from diffuserve.domain.job import VIDEO_GENERATE, JobStatus
from diffuserve.jobs.records import JobRecord

metadata = sa.MetaData()

# For rows that change all the time: free space for updates in place, and early vacuums (PostgreSQL only).
_HOT = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_threshold": 200}


def _text(name: str, *, null: bool = False, **options: object) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=null, **options)  # type: ignore[arg-type]


def _double(name: str, *, null: bool = False, default: str | None = None) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=null, server_default=default)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false())


def _partial_index(name: str, *columns: str, where: str) -> sa.Index:
    return sa.Index(name, *columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _columns_of(record: type) -> list[sa.Column[Any]]:
    """Declare a column for each field of a record: `id` is the key, and `X | None` may be null."""
    defaults = {field.name: field.default for field in fields(record)}
    return [_column_of(name, hint, defaults[name]) for name, hint in get_type_hints(record).items()]


def _column_of(name: str, hint: Any, default: object) -> sa.Column[Any]:
    kinds = set(get_args(hint) or (hint,))
    null = NoneType in kinds
    (kind,) = kinds - {NoneType}
    if issubclass(kind, bool):  # before int, of which bool is a subclass
        return _flag(name)
    if issubclass(kind, int):
        return _count(name)
    if issubclass(kind, float):
        return _double(name, null=null, default="0" if default == 0.0 else None)
    return _text(name, null=null, primary_key=name == "id")


_IS_CLIP = f"kind = '{VIDEO_GENERATE}'"

jobs = sa.Table(
    "jobs",
    metadata,
    *_columns_of(JobRecord),
    sa.Index("jobs_by_tenant", "tenant_id", "id"),
    _partial_index("clips_by_tenant", "tenant_id", "id", where=_IS_CLIP),
    _partial_index("jobs_by_batch", "batch_id", "status", "id", where="batch_id IS NOT NULL"),
    _partial_index("jobs_by_end", "status", "finished_at", where="finished_at IS NOT NULL"),
    _partial_index("jobs_to_erase", "id", where="is_erased"),
    _partial_index("jobs_with_checkpoint", "id", where="checkpoint IS NOT NULL"),
)

job_events = sa.Table(
    "job_events",
    metadata,
    _text("job_id", primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("type"),
    _text("data"),
    _double("created_at"),
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    _text("tenant_id", primary_key=True),
    _text("key", primary_key=True),
    _text("fingerprint"),
    _text("job_id"),
    _double("created_at"),
    sa.Index("idempotency_keys_by_age", "created_at"),
)

# Uploaded images. Each is stored once for a tenant, however often it is uploaded.
files = sa.Table(
    "files",
    metadata,
    _text("id", primary_key=True),
    _text("tenant_id"),
    _text("filename"),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("width", sa.BigInteger, nullable=False),
    sa.Column("height", sa.BigInteger, nullable=False),
    _text("sha256"),
    _text("verdict", null=True),
    _double("created_at"),
    _double("expires_at"),
    sa.Index("files_by_tenant", "tenant_id", "id", "size_bytes"),  # a tenant's total is read from it alone
    sa.Index("files_by_content", "tenant_id", "sha256", unique=True),
    sa.Index("files_by_expiry", "expires_at"),
)

# Which jobs name which images. A row outlives its file, and tells then that the job cannot run again.
job_files = sa.Table(
    "job_files",
    metadata,
    _text("job_id", primary_key=True),
    _text("file_id", primary_key=True),
    sa.Index("job_files_by_file", "file_id"),
)

BATCH_COUNTS = {status: f"num_{status.value}" for status in JobStatus}
"""Columns of `batches` by the status whose items they count."""

# `num_stored` of `num_items` items have become jobs, the last of them at `stored_at`; `reserved_*` is the
# room in the queue that is kept for the others. `is_canceling` until each stored item is canceled.
batches = sa.Table(
    "batches",
    metadata,
    _text("id", primary_key=True),
    _text("tenant_id"),
    _text("metadata"),
    _text("webhook", null=True),
    _count("num_items"),
    _count("num_stored"),
    _count("reserved_jobs"),
    sa.Column("reserved_seconds", sa.Double, nullable=False, server_default="0"),
    _double("stored_at", null=True),
    _double("created_at"),
    _double("finished_at", null=True),
    _flag("is_canceled"),
    _flag("is_canceling"),
    *(_count(name) for name in BATCH_COUNTS.values()),
    sa.Index("batches_by_tenant", "tenant_id", "id"),
    _partial_index("batches_to_cancel", "id", where="is_canceling"),
    _partial_index("batches_to_store", "tenant_id", where="reserved_jobs > 0"),
)

# One row for each URL that a tenant has named; an endpoint that responds 410 gets no more messages.
webhook_endpoints = sa.Table(
    "webhook_endpoints",
    metadata,
    _text("id", primary_key=True),
    _text("tenant_id"),
    _text("url"),
    _double("created_at"),
    _double("disabled_at", null=True),
    sa.Index("webhook_endpoints_by_url", "tenant_id", "url", unique=True),
    sa.Index("webhook_endpoints_by_tenant", "tenant_id", "id"),
    _partial_index("webhook_endpoints_disabled", "disabled_at", where="disabled_at IS NOT NULL"),
)

HAS_FAILED = "status <> 'delivered' AND num_attempts > 0"
"""Condition on a delivery whose last attempt failed; a query must write it as the index does."""

# The outbox: a row is written in the transaction of the change that it reports, and sent afterwards.
# `tenant_id` and `host` are its endpoint's, so that what is due is found tenant by tenant in one index.
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
    _double("created_at"),
    _double("next_at", null=True),
    _double("last_attempt_at", null=True),
    sa.Column("last_status", sa.BigInteger),
    _text("last_error", null=True),
    _text("tenant_id", server_default=""),
    _text("host", server_default=""),
    sa.Index("webhook_deliveries_by_endpoint", "endpoint_id", "id"),
    _partial_index("webhook_deliveries_due", "tenant_id", "next_at", "id", where="next_at IS NOT NULL"),
    _partial_index(
        "webhook_deliveries_failing", "last_attempt_at", where="status <> 'delivered' AND num_attempts > 0"
    ),
    postgresql_with=_HOT,
)

ready = sa.Table(
    "ready",
    metadata,
    _text("job_id", primary_key=True),
    _text("lane"),
    sa.Column("seq", sa.BigInteger, nullable=False),
    _double("cost_seconds"),
    sa.Column("step_tokens", sa.BigInteger, nullable=False),
    _double("enqueued_at"),
    _double("deadline", null=True),
    _double("rises_at", null=True),
    sa.Index("ready_by_lane", "lane", "seq", unique=True),
    _partial_index("ready_by_deadline", "deadline", where="deadline IS NOT NULL"),
    _partial_index("ready_by_rise", "rises_at", where="rises_at IS NOT NULL"),
    postgresql_with=_HOT,
)

delayed = sa.Table(
    "delayed",
    metadata,
    _text("job_id", primary_key=True),
    _double("due_at"),
    sa.Index("delayed_by_time", "due_at"),
    postgresql_with=_HOT,
)

# One row for each band × tenant × model × phase that has ready jobs, so that a choice reads O(lanes) rows,
# not O(jobs). `head_*` describe its first job: `head_at` its submission, `head_since` when it became so.
lanes = sa.Table(
    "lanes",
    metadata,
    _text("lane", primary_key=True),
    _text("band"),
    _text("tenant_id"),
    _text("model"),
    _flag("is_decode"),
    _flag("is_exact"),
    sa.Column("num_ready", sa.BigInteger, nullable=False),
    _double("work_seconds"),
    sa.Column("head_seq", sa.BigInteger, nullable=False),
    _double("head_at"),
    _double("head_since"),
    postgresql_with=_HOT,
)

# No index on `expires_at`: with one, PostgreSQL could not renew a lease in place (HOT), and a heartbeat
# renews all leases of a worker. The reaper scans the table instead, which has one row per running job.
leases = sa.Table(
    "leases",
    metadata,
    _text("job_id", primary_key=True),
    sa.Column("lease_token", sa.BigInteger, nullable=False),
    _text("tenant_id"),
    _text("model"),
    _text("worker_id"),
    _text("claim_id"),
    _text("until", server_default="files"),
    _double("charged"),
    _double("expires_at"),
    _double("stop_at", null=True),
    _flag("is_canceling"),
    _flag("is_preempted"),
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
    _double("weight", null=True),
    sa.Column("max_running", sa.BigInteger),
    sa.Column("max_queued", sa.BigInteger),
    sa.Column("vtime", sa.Double, nullable=False, server_default="0"),
    _count("next_seq"),
    _count("num_queued"),
    postgresql_with=_HOT,
)

# How far virtual time has advanced by band and model. A tenant that was idle resumes from here, so that
# idleness earns no credit.
floors = sa.Table(
    "floors",
    metadata,
    _text("band", primary_key=True),
    _text("model", primary_key=True),
    _double("vtime"),
    postgresql_with=_HOT,
)

# `num_promised` jobs were told to make room, the last at `promised_at`, and no claim has used it yet.
workers = sa.Table(
    "workers",
    metadata,
    _text("id", primary_key=True),
    _text("name"),
    _text("labels"),
    _text("models"),
    _text("report"),
    _double("registered_at"),
    _double("heartbeat_at"),
    _flag("is_draining"),
    _flag("is_spot"),
    _double("price_per_hour", null=True),
    _text("role", server_default="all"),
    _count("num_promised"),
    _double("promised_at", null=True),
    postgresql_with=_HOT,
)

models = sa.Table(
    "models",
    metadata,
    _text("name", primary_key=True),
    _text("spec"),
    _text("fit", null=True),
    _double("updated_at"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    _text("id", primary_key=True),
    _text("role"),
    _text("tenant_id", null=True),
    _text("secret_hash"),
    _double("created_at"),
    _double("revoked_at", null=True),
)

# Stored as they are, not as hashes: signatures are computed from them.
signing_secrets = sa.Table(
    "signing_secrets",
    metadata,
    _text("owner", primary_key=True),
    _text("secret", primary_key=True),
    _double("created_at"),
    _double("expires_at", null=True),
)

# Prompts and images that a filter flagged or blocked; the prompt itself is not stored.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    _double("created_at"),
    _text("tenant_id"),
    _text("stage"),
    _text("category"),
    _text("action"),
    _text("filter"),
    _text("prompt_hash"),
    _text("job_id"),
    sa.Index("audit_by_time", "created_at"),
)

# What ended in the twenty seconds from `started_at` on, counted in the transactions that ended it.
tallies = sa.Table(
    "tallies",
    metadata,
    sa.Column("started_at", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("kind", primary_key=True),
    _text("key", primary_key=True),
    _count("num"),
    _double("seconds", default="0"),
    postgresql_with=_HOT,
)

# Attempts that ended, and how long workers were registered, by UTC's day.
_AMOUNTS = ("seconds", "cost")
usage = sa.Table(
    "usage",
    metadata,
    *(_text(name, primary_key=True) for name in ("day", "tenant_id", "model", "kind", "outcome")),
    *map(_count, ("num_attempts", "num_images")),
    *(_double(name, default="0") for name in _AMOUNTS),
    postgresql_with=_HOT,
)
worker_time = sa.Table(
    "worker_time",
    metadata,
    *(_text(name, primary_key=True) for name in ("day", "kind")),
    *(_double(name, default="0") for name in _AMOUNTS),
    postgresql_with=_HOT,
)

# State of the server each ten seconds of the last hour, as JSON for charts.
operations_history = sa.Table(
    "operations_history",
    metadata,
    sa.Column("started_at", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("point"),
)

# Which replica runs the reaper, and when it last did.
housekeeping = sa.Table(
    "housekeeping",
    metadata,
    _text("name", primary_key=True),
    _text("holder"),
    _double("last_alive"),
)
