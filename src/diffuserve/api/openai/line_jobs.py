"""Jobs of a batch's lines: the bodies are those of OpenAI's routes, and are refused as there."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from diffuserve.api.config import ApiConfig
from diffuserve.api.http.field_errors import nested_errors, with_few_unknown
from diffuserve.api.http.openai_errors import OpenAIErrorEnvelope
from diffuserve.api.http.problem import Problem
from diffuserve.api.http.problems import openai_error, openai_status, problem_of
from diffuserve.api.openai import image_routes, video_routes
from diffuserve.api.openai.batch_lines import LineRequest
from diffuserve.api.openai.request_bodies import CommonImageFields, EditBody, ImagesBody
from diffuserve.api.openai.video_bodies import VideoBody
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.submit.submission import Submission, Submissions
from diffuserve.domain.errors import DiffuserveError, InvalidParams
from diffuserve.domain.jobs.file_batch import Endpoint, FileBatch, RefusedLine
from diffuserve.domain.jobs.job import Band, NewJob

log = logging.getLogger(__name__)

LineBody = ImagesBody | EditBody | VideoBody
Taken = TypeVar("Taken")

_BODIES: Mapping[Endpoint, type[LineBody]] = {
    "/v1/images/generations": ImagesBody,
    "/v1/images/edits": EditBody,
    "/v1/videos": VideoBody,
}


@dataclass(frozen=True)
class LinePrice:
    """Predicted device-seconds of a line's job, and its model."""

    cost_seconds: float
    model: str


@dataclass(frozen=True)
class LineJobs:
    """Makes jobs of lines."""

    config: ApiConfig
    catalog: Catalog
    submissions: Submissions

    async def price(self, batch: FileBatch, request: LineRequest) -> LinePrice | None:
        """Return what a line's job will cost, before its images are known; `None` if it is refused."""
        try:
            draft = await self._taken(batch, request, self.submissions.drafted)
        except (DiffuserveError, RequestValidationError):
            return None  # it is refused, with the reason, once its turn comes
        return LinePrice(draft.job.cost_seconds, draft.job.model)

    async def job(self, batch: FileBatch, request: LineRequest, seconds_left: float) -> NewJob | RefusedLine:
        """Return a line's job, which does not start after the batch's end, or the answer that refuses it.

        Raise the error of what may succeed later.
        """
        try:
            new = await self._taken(batch, request, self.submissions.prepared)
        except Exception as error:  # a line alone fails, whatever is wrong with it
            return _refused(error)
        return replace(new, batch_id=batch.id, custom_id=request.custom_id, expires_in=max(1.0, seconds_left))

    async def _taken(
        self, batch: FileBatch, request: LineRequest, take: Callable[[Submission], Awaitable[Taken]]
    ) -> Taken:
        body = line_body(batch.endpoint, request)
        new = body.job().model_copy(update={"priority": Band.BATCH})
        submission = Submission(batch.tenant_id, new, batch.base_url)
        if isinstance(body, VideoBody):
            return await video_routes.taken(self.catalog, self.config.openai_sizes, submission, take)
        return await image_routes.taken(self.catalog, self.config.openai_sizes, body, submission, take)


def line_body(endpoint: Endpoint, request: LineRequest) -> LineBody:
    """Return the body of a line's request. Raise `RequestValidationError` and `InvalidParams`."""
    model = _BODIES[endpoint]
    try:
        body = model.model_validate(with_few_unknown(request.body, model))
    except ValidationError as error:
        raise nested_errors(("body",), error, model) from error
    if isinstance(body, CommonImageFields) and body.stream:
        raise InvalidParams("stream", True, "is not for batches; leave it out")
    return body


def refusal(problem: Problem) -> RefusedLine:
    """Return the answer that tells a problem, as the line's endpoint would."""
    envelope: dict[str, Any] = orjson.loads(orjson.dumps(OpenAIErrorEnvelope(error=openai_error(problem))))
    return RefusedLine(openai_status(problem), envelope)


def _refused(error: Exception) -> RefusedLine:
    problem = problem_of(error)
    if isinstance(error, DiffuserveError) and (problem.is_retryable or problem.status >= 500):
        raise error
    if problem.status >= 500:
        log.error("a line of a batch failed", exc_info=error)
    return refusal(replace(problem, is_retryable=False))
