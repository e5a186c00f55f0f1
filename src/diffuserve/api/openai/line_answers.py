"""Answers to a batch's lines, as its output and error files tell them: one JSON object on each line."""

from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError

from diffuserve.api.door.origin import RequestOrigin
from diffuserve.api.following.awaited_jobs import failure_problem
from diffuserve.api.http.problems import problem_of
from diffuserve.api.openai.batch_lines import LineRequest
from diffuserve.api.openai.images import EDIT, GENERATION, ImageParts, OpenAIImageSerializer
from diffuserve.api.openai.line_jobs import line_body, refusal
from diffuserve.api.openai.video_bodies import VideoBody
from diffuserve.api.openai.videos import VideoParts, video_of
from diffuserve.domain.errors import DiffuserveError, JobNotFound
from diffuserve.domain.jobs.file_batch import FileBatch, FileBatchStatus, RefusedLine, TokenCounts
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.jobs.batches.submission import item_id

_NOT_RUN = {
    FileBatchStatus.EXPIRED: (
        "batch_expired",
        "the completion window ended before this request was executed",
    ),
    FileBatchStatus.CANCELLED: (
        "batch_cancelled",
        "the batch was cancelled before this request was executed",
    ),
}


@dataclass(frozen=True)
class LineAnswer:
    """A line of an output or error file, and the tokens that it counts."""

    text: bytes
    tokens: TokenCounts = field(default_factory=TokenCounts)


@dataclass(frozen=True)
class LineAnswers:
    """Writes the answers to lines."""

    images: ImageParts
    videos: VideoParts

    async def output(
        self, batch: FileBatch, number: int, request: LineRequest, job: Job
    ) -> LineAnswer | RefusedLine:
        """Return the line of a job that succeeded, or what to answer if its files are gone.

        Raise the error of what may succeed later.
        """
        try:
            body, tokens = await self._body(batch, request, job)
        except (DiffuserveError, RequestValidationError) as error:
            problem = problem_of(error)
            if problem.is_retryable or problem.status >= 500:
                raise
            return refusal(problem)
        return LineAnswer(_response(batch, number, request.custom_id, 200, body), tokens)

    async def _body(self, batch: FileBatch, request: LineRequest, job: Job) -> tuple[object, TokenCounts]:
        fields = line_body(batch.endpoint, request)
        if isinstance(fields, VideoBody):
            return await video_of(self.videos, job, batch.base_url, fields), TokenCounts()
        kind = EDIT if batch.endpoint.endswith("edits") else GENERATION
        serializer = OpenAIImageSerializer(self.images, RequestOrigin(batch.base_url), kind, fields)
        images = await serializer.images(job)
        usage = images.usage
        return images, TokenCounts(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)


def error_line(batch: FileBatch, number: int, custom_id: str, answer: Job | RefusedLine | None) -> bytes:
    """Return the line of a request that was refused, failed, or was not executed."""
    if isinstance(answer, RefusedLine):
        return _response(batch, number, custom_id, answer.status, answer.body)
    if (reason := _reason_not_run(batch, answer)) is not None:
        code, message = _NOT_RUN[reason]
        return _line(batch, number, custom_id, response=None, error={"code": code, "message": message})
    problem = (
        failure_problem(answer) if answer is not None else problem_of(JobNotFound("the job was deleted"))
    )
    refused = refusal(problem)
    return _response(batch, number, custom_id, refused.status, refused.body)


def _reason_not_run(batch: FileBatch, answer: Job | None) -> FileBatchStatus | None:
    """Return why a line was not executed; `None` if it was, and failed, or was canceled by itself."""
    if answer is not None and answer.status is JobStatus.EXPIRED:
        return FileBatchStatus.EXPIRED
    was_stopped = answer is None or answer.status is JobStatus.CANCELED
    return FileBatchStatus(batch.ending) if batch.ending is not None and was_stopped else None


def _response(batch: FileBatch, number: int, custom_id: str, status: int, body: object) -> bytes:
    request_id = f"req_{_digits(batch, number)}"
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line(batch, number, custom_id, response=response, error=None)


def _line(batch: FileBatch, number: int, custom_id: str, **values: Any) -> bytes:
    named = {"id": f"batch_req_{_digits(batch, number)}", "custom_id": custom_id}
    return orjson.dumps(named | values, option=orjson.OPT_APPEND_NEWLINE)


def _digits(batch: FileBatch, number: int) -> str:
    """Return what the ids of a line share with its job: `req_x` is the request of the job `job_x`."""
    return item_id(batch.id, number).removeprefix("job_")
