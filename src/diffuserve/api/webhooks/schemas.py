"""The shapes of what is said of webhooks."""

from pydantic import Field

from diffuserve.api.schemas import Answer
from diffuserve.domain.webhook import DeliveryStatus, WebhookEvent


class EndpointShape(Answer):
    id: str
    url: str
    is_disabled: bool = Field(description="It answered 410, and is told nothing until it is enabled.")
    created_at: str


class EndpointsShape(Answer):
    data: list[EndpointShape]


class DeliveryShape(Answer):
    id: str = Field(description="The `webhook-id` of every try.")
    type: WebhookEvent
    subject_id: str = Field(description="The job's or the batch's id.")
    status: DeliveryStatus
    num_attempts: int
    created_at: str
    next_attempt_at: str | None
    last_attempt_at: str | None
    last_status: int | None
    last_error: str | None


class DeliveryPageShape(Answer):
    data: list[DeliveryShape]
    has_more: bool
    next: str | None = Field(description="The `after` of the next page.")


class WebhookSecretShape(Answer):
    secret: str
