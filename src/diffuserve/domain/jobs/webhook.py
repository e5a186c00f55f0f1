"""Webhooks: messages to a client's own server about the end of its jobs and batches."""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit


class WebhookEvent(StrEnum):
    """An event that a webhook can report; its value is the `type` of the message."""

    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_CANCELED = "job.canceled"
    JOB_EXPIRED = "job.expired"
    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"
    VIDEO_COMPLETED = "video.completed"
    VIDEO_FAILED = "video.failed"

    @classmethod
    def of_job(cls, status: str) -> "tuple[WebhookEvent, WebhookEvent]":
        """Return the events of a job that reached the final status `status`: its own, and OpenAI's."""
        own = cls(f"job.{status}")
        return own, cls.VIDEO_COMPLETED if own is cls.JOB_SUCCEEDED else cls.VIDEO_FAILED

    @classmethod
    def of_file_batch(cls, status: str) -> "WebhookEvent":
        """Return the event of a batch from a file that ended with `status`, by OpenAI's name."""
        return cls(f"batch.{status}")


JOB_EVENTS = tuple(event for event in WebhookEvent if event.startswith("job."))
VIDEO_EVENTS = (WebhookEvent.VIDEO_COMPLETED, WebhookEvent.VIDEO_FAILED)
"""Events of clips that were asked for by OpenAI's API, by the names that its clients know."""
FILE_BATCH_EVENTS = tuple(event for event in WebhookEvent if event.startswith("batch."))
"""Events of batches from files; the server's own batches have the first alone."""


@dataclass(frozen=True)
class Webhook:
    """A client's subscription to messages: the URL of its server, and the events to report.

    URLs in a message begin with `base_url`, the address at which the client reached the control plane. Its
    `form` is the name of another server whose messages it has; "" for this server's own.
    """

    url: str
    events: tuple[WebhookEvent, ...]
    base_url: str
    form: str = ""


class DeliveryStatus(StrEnum):
    """Status of a delivery: `pending → delivered | failed`, or `skipped` if its endpoint is disabled."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class WebhookEndpoint:
    """A URL to which a tenant has webhooks sent. Times are seconds since the epoch."""

    id: str
    tenant_id: str
    url: str
    created_at: float
    disabled_at: float | None = None

    @property
    def host(self) -> str:
        """Name or address in the URL, without the port, spelled in one way."""
        return (urlsplit(self.url).hostname or "").rstrip(".")


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A message to an endpoint, with the state of its attempts. Times are seconds since the epoch.

    `tenant_id` and `host` are the endpoint's. `subject_id` is the id of the job or batch that it is about,
    and `form` that of its webhook. `last_status` is the HTTP status of the last attempt, and `last_error`
    says why there was no response.
    """

    id: str
    endpoint_id: str
    tenant_id: str
    host: str
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
    form: str = ""


@dataclass(frozen=True)
class DueDelivery:
    """A delivery that is to be sent now, and its endpoint."""

    delivery: Delivery
    endpoint: WebhookEndpoint


@dataclass(frozen=True)
class DeliveryAttempt:
    """Result of an attempt to deliver: the HTTP status of the response, or the error instead of one."""

    delivery_id: str
    status: int | None
    error: str | None = None

    @property
    def is_delivered(self) -> bool:
        """True if the endpoint accepted the message."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        """True if the endpoint asked for no more messages, with status 410."""
        return self.status == 410
