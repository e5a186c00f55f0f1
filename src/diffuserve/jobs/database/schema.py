"""The tables: narrow hot ones (`ready`, `delayed`, `leases`, `lanes`) beside the wide history `jobs`.

Times are seconds since the epoch. JSON is stored as text, since no query searches inside it.
"""

import sqlalchemy as sa

from diffuserve.domain.jobs.input_file import FilePurpose
from diffuserve.domain.jobs.job import VIDEO_GENERATE, JobStatus
from diffuserve.jobs.database.columns import HOT, columns_of, count, double, flag, number, partial_index, text
from diffuserve.jobs.records import JobRecord

metadata = sa.MetaData()

_IS_CLIP = f"kind = '{VIDEO_GENERATE}'"
IS_IMAGE = f"purpose = '{FilePurpose.VISION}'"
"""Condition on a file that is an image; a query must write it as the index does."""

jobs = sa.Table(
    "jobs",
    metadata,
    *columns_of(JobRecord),
    sa.Index("jobs_by_tenant", "tenant_id", "id"),
    partial_index("clips_by_tenant", "tenant_id", "id", where=_IS_CLIP),
    partial_index("jobs_by_batch", "batch_id", "status", "id", where="batch_id IS NOT NULL"),
    partial_index("jobs_by_end", "status", "finished_at", where="finished_at IS NOT NULL"),
    partial_index("jobs_to_erase", "id", where="is_erased"),
    partial_index("jobs_to_forget", "forget_at", where="forget_at IS NOT NULL"),
    partial_index("jobs_with_checkpoint", "id", where="checkpoint IS NOT NULL"),
)

job_events = sa.Table(
    "job_events",
    metadata,
    text("job_id", primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    text("type"),
    text("data"),
    double("created_at"),
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    text("tenant_id", primary_key=True),
    text("key", primary_key=True),
    text("fingerprint"),
    text("job_id"),
    double("created_at"),
    sa.Index("idempotency_keys_by_age", "created_at"),
)

# Files of tenants: uploaded images, of which each is stored once for a tenant, and the lines of batches.
files = sa.Table(
    "files",
    metadata,
    text("id", primary_key=True),
    text("tenant_id"),
    text("filename"),
    *map(number, ("size_bytes", "width", "height")),
    text("sha256"),
    text("verdict", null=True),
    double("created_at"),
    double("expires_at"),
    text("purpose", server_default=FilePurpose.VISION.value),
    sa.Index("files_by_tenant", "tenant_id", "id", "size_bytes"),  # a tenant's total is read from it alone
    partial_index("files_by_content", "tenant_id", "sha256", where=IS_IMAGE, unique=True),
    sa.Index("files_by_expiry", "expires_at"),
)

# Which jobs name which images. A row outlives its file, and then shows that the job cannot run again.
job_files = sa.Table(
    "job_files",
    metadata,
    text("job_id", primary_key=True),
    text("file_id", primary_key=True),
    sa.Index("job_files_by_file", "file_id"),
)

BATCH_COUNTS = {status: f"num_{status.value}" for status in JobStatus}
"""Columns of `batches` by the status whose items they count."""

# `num_stored` of `num_items` items have become jobs, the last of them at `stored_at`; `reserved_*` is the
# room in the queue that is kept for the others. `is_canceling` until each stored item is canceled.
batches = sa.Table(
    "batches",
    metadata,
    text("id", primary_key=True),
    text("tenant_id"),
    text("metadata"),
    text("webhook", null=True),
    *map(count, ("num_items", "num_stored", "reserved_jobs")),
    double("reserved_seconds", default="0"),
    double("stored_at", null=True),
    double("created_at"),
    double("finished_at", null=True),
    *map(flag, ("is_canceled", "is_canceling")),
    *(count(name) for name in BATCH_COUNTS.values()),
    sa.Index("batches_by_tenant", "tenant_id", "id"),
    partial_index("batches_to_cancel", "id", where="is_canceling"),
    partial_index("batches_to_store", "tenant_id", where="reserved_jobs > 0"),
)

# Batches whose items are the lines of a file. Each has the id of its row in `batches`, which it gets once its
# file was read. It is due at `next_at`; the process that works at it moves that on, so that no other does.
file_batches = sa.Table(
    "file_batches",
    metadata,
    text("id", primary_key=True),
    *map(text, ("tenant_id", "endpoint", "input_file_id", "completion_window", "base_url", "status")),
    *(text(name, null=True) for name in ("metadata", "webhook", "ending", "model", "errors", "tokens")),
    *(text(name, null=True) for name in ("output_file_id", "error_file_id")),
    *map(count, ("num_lines", "num_completed", "num_failed", "num_refused")),
    *(double(name) for name in ("output_seconds", "created_at", "expires_at", "next_at")),
    *(
        double(name, null=True)
        for name in ("cost_seconds", "in_progress_at", "finalizing_at", "cancelling_at", "ended_at")
    ),
    sa.Index("file_batches_by_tenant", "tenant_id", "id"),
    partial_index("file_batches_due", "next_at", where="ended_at IS NULL"),
)

# Lines that become no job, until the batch's files are written.
refused_lines = sa.Table(
    "refused_lines",
    metadata,
    text("batch_id", primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    number("status"),
    text("body"),
)

# One row for each URL that a tenant has named; an endpoint that responds 410 gets no more messages.
webhook_endpoints = sa.Table(
    "webhook_endpoints",
    metadata,
    text("id", primary_key=True),
    text("tenant_id"),
    text("url"),
    double("created_at"),
    double("disabled_at", null=True),
    sa.Index("webhook_endpoints_by_url", "tenant_id", "url", unique=True),
    sa.Index("webhook_endpoints_by_tenant", "tenant_id", "id"),
    partial_index("webhook_endpoints_disabled", "disabled_at", where="disabled_at IS NOT NULL"),
)

HAS_FAILED = "status <> 'delivered' AND num_attempts > 0"
"""Condition on a delivery whose last attempt failed; a query must write it as the index does."""

# The outbox: a row is written in the transaction of the change that it reports, and sent afterwards.
# `tenant_id` and `host` are its endpoint's, so that what is due is found tenant by tenant in one index.
webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    text("id", primary_key=True),
    text("endpoint_id"),
    text("type"),
    text("subject_id"),
    text("base_url"),
    text("status"),
    count("num_attempts"),
    double("created_at"),
    double("next_at", null=True),
    double("last_attempt_at", null=True),
    number("last_status", null=True),
    text("last_error", null=True),
    *(text(name, server_default="") for name in ("tenant_id", "host", "form")),
    sa.Index("webhook_deliveries_by_endpoint", "endpoint_id", "id"),
    partial_index("webhook_deliveries_due", "tenant_id", "next_at", "id", where="next_at IS NOT NULL"),
    partial_index("webhook_deliveries_failing", "last_attempt_at", where=HAS_FAILED),
    postgresql_with=HOT,
)

ready = sa.Table(
    "ready",
    metadata,
    text("job_id", primary_key=True),
    text("lane"),
    number("seq"),
    double("cost_seconds"),
    number("step_tokens"),
    double("enqueued_at"),
    double("deadline", null=True),
    double("rises_at", null=True),
    *(text(name, server_default="") for name in ("adapters", "hint")),
    sa.Index("ready_by_lane", "lane", "seq", unique=True),
    partial_index("ready_by_deadline", "deadline", where="deadline IS NOT NULL"),
    partial_index("ready_by_rise", "rises_at", where="rises_at IS NOT NULL"),
    postgresql_with=HOT,
)

delayed = sa.Table(
    "delayed",
    metadata,
    text("job_id", primary_key=True),
    double("due_at"),
    sa.Index("delayed_by_time", "due_at"),
    postgresql_with=HOT,
)

# One row for each band × tenant × model × phase that has ready jobs, so that a choice reads O(lanes) rows,
# not O(jobs). `head_*` describe its first job: `head_at` its submission, `head_since` when it became so,
# `head_adapters` the digests of its adapters, `head_hint` what its worker is chosen by.
lanes = sa.Table(
    "lanes",
    metadata,
    text("lane", primary_key=True),
    *map(text, ("band", "tenant_id", "model")),
    *map(flag, ("is_decode", "is_exact")),
    number("num_ready"),
    double("work_seconds"),
    number("head_seq"),
    double("head_at"),
    double("head_since"),
    *(text(name, server_default="") for name in ("head_adapters", "head_hint")),
    postgresql_with=HOT,
)

# No index on `expires_at`: with one, PostgreSQL could not renew a lease in place (HOT), and a heartbeat
# renews all leases of a worker. The reaper scans the table instead, which has one row per running job.
leases = sa.Table(
    "leases",
    metadata,
    text("job_id", primary_key=True),
    number("lease_token"),
    *map(text, ("tenant_id", "model", "worker_id", "claim_id")),
    text("until", server_default="files"),
    double("charged"),
    double("granted_at"),
    double("expires_at"),
    double("stop_at", null=True),
    *map(flag, ("is_canceling", "is_preempted")),
    text("phase", null=True),
    count("step"),
    count("total"),
    sa.Index("leases_by_worker", "worker_id"),
    postgresql_with=HOT,
)

tenants = sa.Table(
    "tenants",
    metadata,
    text("id", primary_key=True),
    text("plan", null=True),
    double("weight", null=True),
    number("max_running", null=True),
    number("max_queued", null=True),
    double("vtime", default="0"),
    count("next_seq"),
    count("num_queued"),
    postgresql_with=HOT,
)

# How far virtual time has advanced by model. A tenant that was idle resumes from here, so that idleness earns
# no credit.
floors = sa.Table(
    "floors",
    metadata,
    text("model", primary_key=True),
    double("vtime"),
    postgresql_with=HOT,
)

# How much later than in `tenants` a tenant's virtual time is on a model on which it was idle.
handicaps = sa.Table(
    "handicaps",
    metadata,
    text("tenant_id", primary_key=True),
    text("model", primary_key=True),
    double("seconds"),
    postgresql_with=HOT,
)

# `num_promised` jobs were told to make room, the last at `promised_at`, and no claim has used it yet.
workers = sa.Table(
    "workers",
    metadata,
    text("id", primary_key=True),
    text("name"),
    text("labels"),
    text("models"),
    text("report"),
    double("registered_at"),
    double("heartbeat_at"),
    flag("is_draining"),
    flag("is_spot"),
    double("price_per_hour", null=True),
    text("role", server_default="all"),
    count("num_promised"),
    double("promised_at", null=True),
    text("model_order", null=True),
    text("orders_to_come", null=True),
    postgresql_with=HOT,
)

# JSON of the orders of models that workers of a name have carried out, and get again when they start anew.
kept_orders = sa.Table(
    "kept_orders",
    metadata,
    text("worker_name", primary_key=True),
    text("orders"),
    double("kept_at"),
)

models = sa.Table(
    "models",
    metadata,
    text("name", primary_key=True),
    text("spec"),
    text("fit", null=True),
    double("updated_at"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    text("id", primary_key=True),
    text("role"),
    text("tenant_id", null=True),
    text("secret_hash"),
    double("created_at"),
    double("revoked_at", null=True),
)

# Stored as they are, not as hashes: signatures are computed from them.
signing_secrets = sa.Table(
    "signing_secrets",
    metadata,
    text("owner", primary_key=True),
    text("secret", primary_key=True),
    double("created_at"),
    double("expires_at", null=True),
)

# Prompts and images that a filter flagged or blocked; the prompt itself is not stored.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    double("created_at"),
    text("tenant_id"),
    text("stage"),
    text("category"),
    text("action"),
    text("filter"),
    text("prompt_hash"),
    text("job_id"),
    sa.Index("audit_by_time", "created_at"),
)

# Which replica runs the reaper, and when it last did.
housekeeping = sa.Table(
    "housekeeping",
    metadata,
    text("name", primary_key=True),
    text("holder"),
    double("last_alive"),
)
