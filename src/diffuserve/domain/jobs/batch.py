"""Batches: many jobs that are submitted with one request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.jobs.webhook import Webhook


class BatchStatus(StrEnum):
    """Status of a batch: `accepting → running → completed`, or `canceling → canceled`."""

    ACCEPTING = "accepting"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELING = "canceling"
    CANCELED = "canceled"


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """A batch whose items are checked and priced, but not yet stored.

    `cost_seconds` are the predicted device-seconds of all items together. `fingerprint` is a hash of the
    body that came with `idempotency_key`.
    """

    tenant_id: str
    num_items: int
    cost_seconds: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    webhook: Webhook | None = None
    idempotency_key: str | None = None
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch as clients see it. Times are seconds since the epoch, by the store's clock.

    `num_stored` of its `num_items` items have become jobs; `counts` is their number by status.
    """

    id: str
    tenant_id: str
    metadata: Mapping[str, Any]
    num_items: int
    num_stored: int
    created_at: float
    finished_at: float | None
    is_canceled: bool
    counts: Mapping[JobStatus, int] = field(default_factory=dict)

    @property
    def status(self) -> BatchStatus:
        """Status derived from the other fields; it is not stored."""
        if self.is_canceled:
            return BatchStatus.CANCELING if self.finished_at is None else BatchStatus.CANCELED
        if self.num_stored < self.num_items:
            return BatchStatus.ACCEPTING
        return BatchStatus.RUNNING if self.finished_at is None else BatchStatus.COMPLETED
