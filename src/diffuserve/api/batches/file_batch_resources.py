"""Batches from files as OpenAI's API shows them. Times are seconds since 1970."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from diffuserve.domain.jobs.file_batch import FileBatch, FileError, LineCounts
from diffuserve.domain.resource_base import Resource


@dataclass(frozen=True, kw_only=True)
class FileErrorList(Resource):
    """Why a file is no batch."""

    object: Literal["list"] = "list"
    data: Sequence[FileError]


@dataclass(frozen=True, kw_only=True)
class FileBatchUsage(Resource):
    """Tokens as the models pack them, of all finished images; clips have none."""

    input_tokens: int
    input_tokens_details: Mapping[str, int]
    output_tokens: int
    output_tokens_details: Mapping[str, int]
    total_tokens: int


@dataclass(frozen=True, kw_only=True)
class FileBatchResource(Resource):
    """Batch whose items are the lines of a file."""

    id: str = field(metadata={"description": "`batch_file_x` is the server's own batch `batch_x`."})
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None = field(metadata={"description": "Null if lines name several models, or none."})
    errors: FileErrorList | None
    input_file_id: str
    completion_window: str
    status: str = field(
        metadata={
            "description": "`validating`, `failed`, `in_progress`, `finalizing`, `completed`, `expired`, "
            "`cancelling` or `cancelled`."
        }
    )
    output_file_id: str | None = field(metadata={"description": "File of the lines that succeeded."})
    error_file_id: str | None = field(metadata={"description": "File of the others."})
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: LineCounts
    usage: FileBatchUsage | None = field(metadata={"description": "Null until it has ended."})
    metadata: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class FileBatchPage(Resource):
    """Page of the caller's batches from files, newest first."""

    object: Literal["list"] = "list"
    data: tuple[FileBatchResource, ...]
    first_id: str | None
    last_id: str | None = field(metadata={"description": "The `after` of the next page."})
    has_more: bool


def file_batch_resource(batch: FileBatch) -> FileBatchResource:
    """Build a batch's resource."""
    ends: dict[str, Any] = {
        f"{status}_at": _seconds(batch.ended_at) if batch.status == status else None
        for status in ("completed", "failed", "expired", "cancelled")
    }
    is_cancelling = batch.ending == "cancelled" and batch.ended_at is None
    return FileBatchResource(
        id=batch.file_batch_id,
        endpoint=batch.endpoint,
        model=batch.model,
        errors=FileErrorList(data=batch.errors) if batch.errors else None,
        input_file_id=batch.input_file_id,
        completion_window=batch.completion_window,
        status="cancelling" if is_cancelling else str(batch.status),
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=int(batch.created_at),
        in_progress_at=_seconds(batch.in_progress_at),
        expires_at=int(batch.expires_at),
        finalizing_at=_seconds(batch.finalizing_at),
        cancelling_at=_seconds(batch.cancelling_at),
        request_counts=batch.counts,
        usage=_usage(batch),
        metadata=batch.metadata,
        **ends,
    )


def file_batch_page(batches: Sequence[FileBatch], has_more: bool) -> FileBatchPage:
    """Build a page."""
    resources = tuple(map(file_batch_resource, batches))
    return FileBatchPage(
        data=resources,
        first_id=resources[0].id if resources else None,
        last_id=resources[-1].id if resources else None,
        has_more=has_more,
    )


def _usage(batch: FileBatch) -> FileBatchUsage | None:
    if (tokens := batch.tokens) is None:
        return None
    return FileBatchUsage(
        input_tokens=tokens.input_tokens,
        input_tokens_details={"cached_tokens": 0},
        output_tokens=tokens.output_tokens,
        output_tokens_details={"reasoning_tokens": 0},
        total_tokens=tokens.input_tokens + tokens.output_tokens,
    )


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)
