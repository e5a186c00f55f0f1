"""Batches from files, as OpenAI's Batch API has them: each line of an uploaded file is a request.

Such a batch is one of the server's own, with what a client of that API sees of it beside.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.jobs.webhook import Webhook

_BATCH, _FILE_BATCH = "batch_", "batch_file_"
_ID = re.compile(r"batch_file_([0-9a-f]{20})")

Ending = Literal["expired", "cancelled"]
Endpoint = Literal["/v1/images/generations", "/v1/images/edits", "/v1/videos"]


class FileBatchStatus(StrEnum):
    """Status of a batch from a file: `validating → in_progress → finalizing → completed`, in OpenAI's words.

    It is `failed` if its file is no batch, and `expired` or `cancelled` once what was done is written down.
    """

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


OPEN_STATUSES = (FileBatchStatus.VALIDATING, FileBatchStatus.IN_PROGRESS, FileBatchStatus.FINALIZING)
"""Statuses in which the server still has work to do."""


@dataclass(frozen=True, kw_only=True)
class FileError:
    """Why a file is no batch; `line` counts from 1, and `param` names the value at fault."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True)
class RefusedLine:
    """A line that becomes no job: the HTTP status and the body with which its endpoint would refuse it."""

    status: int
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class NewFileBatch:
    """A batch whose file was not read yet; `window_seconds` is `completion_window` in seconds.

    Its output is kept for `output_seconds`. URLs in it begin with `base_url`. Its `webhook` is told its end.
    """

    id: str
    tenant_id: str
    endpoint: Endpoint
    input_file_id: str
    completion_window: str
    window_seconds: float
    metadata: Mapping[str, str] | None
    output_seconds: float
    base_url: str
    webhook: Webhook | None = None


@dataclass(frozen=True, kw_only=True)
class LineCounts:
    """Lines of a batch by what became of them."""

    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """Tokens of the finished images of a batch."""

    input_tokens: int = 0
    output_tokens: int = 0

    def plus(self, more: "TokenCounts") -> "TokenCounts":
        """Return the sum of both."""
        return TokenCounts(
            input_tokens=self.input_tokens + more.input_tokens,
            output_tokens=self.output_tokens + more.output_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class FileBatch(NewFileBatch):
    """A batch from a file. Times are seconds since the epoch, by the store's clock.

    `cost_seconds` are the predicted device-seconds of all lines, `None` until they are checked. `ending` is
    why it ends early, `num_stored` how many of its `counts.total` lines have become jobs or were refused, and
    `is_over` that no job of it is left to run.
    """

    status: FileBatchStatus
    created_at: float
    expires_at: float
    counts: LineCounts
    cost_seconds: float | None = None
    ending: Ending | None = None
    model: str | None = None
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    cancelling_at: float | None = None
    ended_at: float | None = None
    errors: Sequence[FileError] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    tokens: TokenCounts | None = None
    num_stored: int = 0
    is_over: bool = False

    @property
    def file_batch_id(self) -> str:
        """Id under which OpenAI's clients know it."""
        return file_batch_id_of(self.id)


def file_batch_id_of(batch_id: str) -> str:
    """Return the id under which OpenAI's clients know a batch: `batch_file_x` is the batch `batch_x`."""
    return _FILE_BATCH + batch_id.removeprefix(_BATCH)


def batch_id_of(file_batch_id: str) -> str | None:
    """Return the id of the server's own batch behind one of a file; `None` if no such batch has this id."""
    match = _ID.fullmatch(file_batch_id)
    return None if match is None else _BATCH + match[1]


def counted(num_refused: int, total: int, by_status: Mapping[JobStatus, int]) -> LineCounts:
    """Count the lines of a batch that is not over by the statuses of its jobs."""
    failed = (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.EXPIRED)
    return LineCounts(
        total=total,
        completed=by_status.get(JobStatus.SUCCEEDED, 0),
        failed=num_refused + sum(by_status.get(status, 0) for status in failed),
    )
