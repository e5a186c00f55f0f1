"""Webhook endpoints and deliveries, as the API writes them. Times are RFC 3339 strings."""

from dataclasses import dataclass, field
from typing import Literal

from diffuserve.domain.jobs.webhook import DeliveryStatus, WebhookEvent
from diffuserve.domain.resource_base import Page, Resource
from diffuserve.domain.resources.batch import BatchResource
from diffuserve.domain.resources.job import JobResource


@dataclass(frozen=True, kw_only=True)
class WebhookEndpointResource(Resource):
    """URL that receives webhook messages."""

    id: str
    url: str
    is_disabled: bool = field(
        metadata={"description": "It responded with 410, and receives nothing until it is enabled."}
    )
    created_at: str


@dataclass(frozen=True, kw_only=True)
class WebhookEndpointPage(Page):
    """Page of the caller's endpoints, newest first."""

    data: tuple[WebhookEndpointResource, ...]


@dataclass(frozen=True, kw_only=True)
class DeliveryResource(Resource):
    """Message to an endpoint, and the outcome of its latest attempt."""

    id: str = field(metadata={"description": "The `webhook-id` of every attempt."})
    type: WebhookEvent
    subject_id: str = field(metadata={"description": "Id of the job or of the batch."})
    status: DeliveryStatus
    num_attempts: int
    created_at: str
    next_attempt_at: str | None
    last_attempt_at: str | None
    last_status: int | None
    last_error: str | None


@dataclass(frozen=True, kw_only=True)
class DeliveryPage(Page):
    """Page of deliveries, newest first."""

    data: tuple[DeliveryResource, ...]


@dataclass(frozen=True, kw_only=True)
class WebhookSecretResource(Resource):
    """Secret that signs a tenant's webhook messages."""

    secret: str


@dataclass(frozen=True, kw_only=True)
class DeletedSubject(Resource):
    """Stand-in for a job or a batch that was deleted before its message was sent."""

    id: str
    status: str


@dataclass(frozen=True, kw_only=True)
class OpenAISubject(Resource):
    """Clip, or batch from a file, as OpenAI's events name it."""

    id: str = field(
        metadata={"description": "`video_x` is the job `job_x`, and `batch_file_x` the batch `batch_x`."}
    )


@dataclass(frozen=True, kw_only=True)
class WebhookMessage(Resource):
    """Body that an endpoint receives; `timestamp` is the time of the event.

    It is an event of OpenAI's as well: their client's `webhooks.unwrap` reads it.
    """

    id: str = field(metadata={"description": "The `webhook-id`."})
    object: Literal["event"] = "event"
    type: WebhookEvent
    created_at: int = field(metadata={"description": "The same time, in seconds since 1970."})
    timestamp: str
    data: JobResource | BatchResource | DeletedSubject | OpenAISubject
