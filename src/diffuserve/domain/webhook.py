"""Telling a client's own server what became of its work."""

from dataclasses import dataclass
from enum import StrEnum


class WebhookEvent(StrEnum):
    """What can be told; the words are the `type` of the message."""

    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_CANCELED = "job.canceled"
    JOB_EXPIRED = "job.expired"
    BATCH_COMPLETED = "batch.completed"

    @classmethod
    def of_job(cls, status: str) -> "WebhookEvent":
        """Of a job's final status."""
        return cls(f"job.{status}")


JOB_EVENTS = tuple(one for one in WebhookEvent if one is not WebhookEvent.BATCH_COMPLETED)


@dataclass(frozen=True)
class Webhook:
    """Where to tell what. The URLs in a message begin with `base_url`, as the client knows us."""

    url: str
    events: tuple[WebhookEvent, ...]
    base_url: str


class DeliveryStatus(StrEnum):
    """`pending → delivered | failed`; `skipped` while its endpoint is disabled."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A URL that a tenant has named. Times are seconds since the epoch."""

    id: str
    tenant_id: str
    url: str
    created_at: float
    disabled_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One message to one endpoint, however often it is tried; `subject_id` is the job's or the batch's."""

    id: str
    endpoint_id: str
    type: WebhookEvent
    subject_id: str
    base_url: str
    status: DeliveryStatus
    num_attempts: int
    created_at: float
    next_at: float | None = None
    last_attempt_at: float | None = None
    last_status: int | None = None
    last_error: str | None = None


@dataclass(frozen=True)
class DueDelivery:
    """A delivery that should be tried now, and to whom."""

    delivery: Delivery
    endpoint: Endpoint


@dataclass(frozen=True)
class Attempt:
    """What came of one try: an HTTP status, or why there was none."""

    delivery_id: str
    status: int | None
    error: str | None = None

    @property
    def is_delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        """The receiver wants to hear nothing any more."""
        return self.status == 410
