"""The bodies that make batches, and the shapes of what is said of them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from diffuserve.api.schemas import (
    Answer,
    Body,
    ErrorShape,
    GenerationInput,
    Metadata,
    ModelName,
    OutputFormat,
    ResultShape,
    Seconds,
)
from diffuserve.domain.batch import BatchStatus
from diffuserve.domain.job import Band, JobStatus

MAX_INLINE_ITEMS = 1_000
MAX_ITEMS = 50_000


class BatchWebhookBody(Body):
    """Where to tell that the batch has ended, in a message signed after Standard Webhooks."""

    url: Annotated[str, Field(min_length=1, max_length=2_000)]


class BatchOptions(Body):
    """What holds for every item of a batch."""

    model: ModelName | None = Field(default=None, description="The server's default if left out.")
    priority: Annotated[Band, Field(strict=False)] = Band.BATCH
    expires_in: Seconds | None = Field(default=None, description="Seconds to wait in the queue at most.")
    timeout: Seconds | None = Field(default=None, description="Seconds that one run of an item may take.")
    output_format: OutputFormat = "png"
    metadata: Metadata = Field(default_factory=dict, description="Of the batch; at most 16 KB as JSON.")
    webhook: BatchWebhookBody | None = None


class BatchItem(Body):
    """One job of a batch. `custom_id` is unique within it."""

    custom_id: Annotated[str, Field(min_length=1, max_length=64)]
    input: GenerationInput
    metadata: Metadata = Field(default_factory=dict, description="Given back as it is.")


class BatchBody(BatchOptions):
    """A batch of at most 1,000 items; more of them go as JSON lines."""

    items: Annotated[list[BatchItem], Field(min_length=1, max_length=MAX_INLINE_ITEMS)]


class BatchQuery(BaseModel):
    """What holds for every item of a batch that comes as JSON lines."""

    model_config = ConfigDict(extra="forbid")

    model: ModelName | None = None
    priority: Band = Band.BATCH
    expires_in: Seconds | None = None
    timeout: Seconds | None = None
    output_format: OutputFormat = "png"
    webhook_url: Annotated[str, Field(min_length=1, max_length=2_000)] | None = None

    def options(self) -> BatchOptions:
        values = self.model_dump(exclude={"webhook_url"})
        webhook = None if self.webhook_url is None else BatchWebhookBody(url=self.webhook_url)
        return BatchOptions(**values, webhook=webhook)


class BatchUrlsShape(Answer):
    self: str
    cancel: str
    results: str


class BatchShape(Answer):
    id: str
    status: BatchStatus
    counts: dict[JobStatus, int] = Field(description="Items by status, of those that were taken in.")
    num_items: int
    metadata: dict[str, Any]
    urls: BatchUrlsShape
    created_at: str
    finished_at: str | None


class BatchPageShape(Answer):
    data: list[BatchShape]
    has_more: bool
    next: str | None = Field(description="The `after` of the next page.")


class BatchResult(Answer):
    """A line of a batch's results; what it says is said as in a job."""

    custom_id: str
    job_id: str
    status: JobStatus
    result: ResultShape | None
    error: ErrorShape | None
