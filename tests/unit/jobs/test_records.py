"""The row of a job, and the shapes that derive from it."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.codec import from_json
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.job import (
    Artifact,
    Band,
    Job,
    JobError,
    JobResult,
    JobStatus,
    NewJob,
    Phase,
    Progress,
)
from diffuserve.domain.jobs.prompt import PromptRecord
from diffuserve.domain.jobs.webhook import JOB_EVENTS, Webhook
from diffuserve.domain.safety import Action, FilterInfo, Finding, Verdict
from diffuserve.domain.workers.worker import Lease, StoredLatents
from diffuserve.jobs.database import schema
from diffuserve.jobs.records import (
    CHANGING_COLUMNS,
    JOB_COLUMNS,
    JSON_COLUMNS,
    JobRecord,
    dump,
    job_of,
    lease_of,
    new_record,
)

IMAGE = Artifact(
    name="0.png", content_type="image/png", size_bytes=9, sha256="00" * 32, width=64, height=64, seed=7
)
FINDING = Finding("violence", Action.FLAG, source="rule", detail="quotes the prompt")
NEW = NewJob(
    tenant_id="ada",
    model="tiny",
    input={"prompt": "a star", "seed": 7},
    cost_seconds=2.5,
    step_tokens=32,
    band=Band.BATCH,
    expires_in=60.0,
    finish_in=90.0,
    best_effort=True,
    exact=True,
    timeout=30.0,
    metadata={"order": 4},
    num_previews=2,
    live=True,
    output_format="webp",
    batch_id="batch_1",
    custom_id="item-1",
    prompt=PromptRecord(original="star", verdict=Verdict((FINDING,)), filter=FilterInfo("words", "1")),
    webhook=Webhook("https://ada.example/", JOB_EVENTS, "https://api.example"),
)


@pytest.fixture
def record() -> JobRecord:
    return new_record(NEW, job_id="job_1", seq=5, now=1_000.0)


def test_the_table_has_a_column_for_each_field() -> None:
    assert tuple(schema.jobs.c.keys()) == JOB_COLUMNS
    assert [column.name for column in schema.jobs.primary_key] == ["id"]
    assert schema.jobs.c.deadline.nullable
    assert not schema.jobs.c.seq.nullable


def test_columns_that_change_and_columns_in_json_exist() -> None:
    assert set(CHANGING_COLUMNS) <= set(JOB_COLUMNS)
    assert set(JSON_COLUMNS) <= set(JOB_COLUMNS)


@given(st.sampled_from(Band), st.booleans(), st.text("ab|%7C5", min_size=1), st.text("ab|%7C5", min_size=1))
def test_no_two_lanes_share_a_key(band: Band, is_exact: bool, tenant_id: str, model: str) -> None:
    new = replace(NEW, band=band, exact=is_exact, tenant_id=tenant_id, model=model)
    record = new_record(new, job_id="job_1", seq=5, now=1_000.0)
    rank, escaped, named = record.lane.split("|", 2)
    read = escaped.replace("%7C", "|").replace("%25", "%")
    assert (rank, read, named) == (f"{band.rank}{'x' if is_exact else ''}", tenant_id, model)


def test_exact_jobs_wait_for_decoding_beside_others() -> None:
    """Quantized autoencoders do not exist."""
    lanes = set()
    for is_exact in (True, False):
        record = new_record(replace(NEW, exact=is_exact), job_id="job_1", seq=5, now=1_000.0)
        lanes |= {record.lane, replace(record, latents="{}").lane}
    assert len(lanes) == 3


def test_a_new_job_is_queued_with_everything_that_was_submitted(record: JobRecord) -> None:
    job = job_of(record)
    assert (job.id, job.status, job.attempt, job.version) == ("job_1", JobStatus.QUEUED, 0, 1)
    assert (job.created_at, job.deadline, job.started_at) == (1_000.0, 1_060.0, None)
    shared = {field.name for field in fields(NewJob)} & {field.name for field in fields(Job)} - {"prompt"}
    assert {name: getattr(job, name) for name in shared} == {name: getattr(NEW, name) for name in shared}
    assert record.webhook is not None
    assert from_json(Webhook, record.webhook) == NEW.webhook


def test_details_of_findings_are_not_stored(record: JobRecord) -> None:
    assert FINDING.detail not in (record.prompt or "")
    stored = job_of(record).prompt
    assert stored is not None
    assert stored.verdict.findings == (replace(FINDING, detail=""),)


def test_a_job_shows_the_progress_of_its_lease(record: JobRecord) -> None:
    job = job_of(record, "denoise", Progress(2, 4))
    assert (job.phase, job.progress) == (Phase.DENOISE, Progress(2, 4))


def test_results_and_errors_survive_storage(record: JobRecord) -> None:
    result = JobResult(artifacts=(IMAGE,), input={"seed": 7}, timings={"denoise": 0.5}, warnings=("slow",))
    error = JobError("broken", "it broke", retryable=True)
    job = job_of(replace(record, result=dump(result), error=dump(error)))
    assert (job.result, job.error) == (result, error)


def test_a_lease_carries_what_a_worker_needs(record: JobRecord) -> None:
    leased = replace(record, lease_token=3, attempt=2, is_suspect=True)
    assert lease_of(leased, lease_seconds=30.0) == Lease(
        job_id="job_1",
        lease_token=3,
        kind=NEW.kind,
        model="tiny",
        input=NEW.input,
        attempt=2,
        lease_seconds=30.0,
        band=Band.BATCH,
        is_suspect=True,
        step_tokens=32,
        cost_seconds=2.5,
        timeout=30.0,
        num_previews=2,
        live=True,
        output_format="webp",
        tenant_id="ada",
        created_at=1000.0,
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("prompt", NEW.prompt),
        ("result", JobResult(artifacts=(IMAGE,), warnings=("dark",), timings={"decode": 1.0})),
        ("error", JobError(code="broken", message="it broke")),
        ("latents", StoredLatents(lease_token=1, size_bytes=2, sha256="0" * 64, weights="1" * 64)),
        ("checkpoint", StoredCheckpoint(lease_token=1, slot=0, step=3, size_bytes=2, sha256="0" * 64)),
    ],
)
def test_what_a_later_version_stores_in_addition_is_ignored(column: str, value: object) -> None:
    """Control planes of two versions share a database during an upgrade."""
    as_stored = JSON_COLUMNS[column].dump(value)
    stored = json.loads(as_stored)
    verdict = stored.get("verdict", {"findings": []})
    for part in (stored, *stored.get("artifacts", ()), stored.get("filter", {}), *verdict["findings"]):
        part["later"] = {"a": 1}
    assert JSON_COLUMNS[column].load(json.dumps(stored)) == JSON_COLUMNS[column].load(as_stored)
