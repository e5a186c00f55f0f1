"""Batches and their results, as the API writes them. Times are RFC 3339 strings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diffuserve.domain.jobs.batch import BatchStatus
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.resource_base import Page, Resource
from diffuserve.domain.resources.job import ErrorResource, ResultResource


@dataclass(frozen=True, kw_only=True)
class BatchUrls(Resource):
    """Absolute URLs of a batch."""

    self: str
    cancel: str
    results: str


@dataclass(frozen=True, kw_only=True)
class BatchResource(Resource):
    """Batch with the number of its items by status."""

    id: str
    status: BatchStatus
    counts: Mapping[JobStatus, int] = field(
        metadata={"description": "Number of items by status, of those that are stored already."}
    )
    num_items: int
    metadata: Mapping[str, Any]
    urls: BatchUrls
    created_at: str
    finished_at: str | None


@dataclass(frozen=True, kw_only=True)
class BatchPage(Page):
    """Page of batches, newest first."""

    data: tuple[BatchResource, ...]


@dataclass(frozen=True, kw_only=True)
class BatchResult(Resource):
    """Line of a batch's results; `result` and `error` are as in a job."""

    custom_id: str
    job_id: str
    status: JobStatus
    result: ResultResource | None
    error: ErrorResource | None
