"""Bodies and query parameters of the requests that submit batches."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from diffuserve.api.http.storable import Storable
from diffuserve.api.submit.file_formats import FILE_FORMAT, FileFormat
from diffuserve.api.submit.request_bodies import (
    Exact,
    GenerationInput,
    Kind,
    Metadata,
    ModelName,
    OptionsBody,
    RequestBody,
    Seconds,
    WebhookUrl,
    takes_options,
)
from diffuserve.domain.jobs.job import Band

MAX_INLINE_ITEMS = 1_000
MAX_ITEMS = 50_000
_JOB_OPTIONS = ("max_attempts", "start_timeout_seconds", "worker_hint")
"""Options that items have; a batch stays whole and is of one model."""


class BatchWebhookBody(RequestBody):
    """Endpoint to notify when the batch has ended, in a message signed after Standard Webhooks."""

    url: WebhookUrl


@takes_options(*_JOB_OPTIONS)
class BatchOptions(OptionsBody):
    """Options of every item of a batch."""

    kind: Kind = "image.generate"
    model: ModelName | None = Field(default=None, description="The server's default if left out.")
    priority: Annotated[Band, Field(strict=False)] = Band.BATCH
    expires_in: Seconds | None = Field(default=None, description="Longest wait in the queue, in seconds.")
    timeout: Seconds | None = Field(default=None, description="Longest run of an attempt, in seconds.")
    output_format: FileFormat | None = FILE_FORMAT
    metadata: Metadata = Field(
        default_factory=dict, description="Of the batch itself; at most 16 KB as JSON."
    )
    webhook: BatchWebhookBody | None = None


class BatchItem(RequestBody):
    """Job of a batch. `custom_id` is unique within the batch."""

    custom_id: Annotated[str, Field(min_length=1, max_length=64), Storable]
    input: GenerationInput
    metadata: Metadata = Field(default_factory=dict, description="Returned unchanged.")
    exact: Exact = False


class BatchBody(BatchOptions):
    """Batch of at most 1,000 items; larger ones are sent as JSON lines."""

    items: Annotated[list[BatchItem], Field(min_length=1, max_length=MAX_INLINE_ITEMS)]


@takes_options(*_JOB_OPTIONS)
class BatchQuery(BaseModel):
    """Options of every item of a batch that is sent as JSON lines."""

    model_config = ConfigDict(extra="forbid")

    kind: Kind = "image.generate"
    model: ModelName | None = None
    priority: Band = Band.BATCH
    expires_in: Seconds | None = None
    timeout: Seconds | None = None
    output_format: FileFormat | None = FILE_FORMAT
    webhook_url: WebhookUrl | None = None

    def options(self) -> BatchOptions:
        """Return the options in the form that a JSON body gives them."""
        values = self.model_dump(exclude={"webhook_url"})
        webhook = None if self.webhook_url is None else BatchWebhookBody(url=self.webhook_url)
        return BatchOptions(**values, webhook=webhook)
