"""Estimates of jobs, before they are submitted."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from diffuserve.api.auth.dependencies import BaseUrl
from diffuserve.api.auth.quota import ClientCaller
from diffuserve.api.clients.jobs import JobParts, path_in_body
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.submit.draft import Draft
from diffuserve.api.submit.request_bodies import NewJobBody
from diffuserve.api.submit.submission import Submission, renamed_fields
from diffuserve.domain.jobs.job import QueueEstimate
from diffuserve.domain.resources.estimate import EstimateResource

router = APIRouter(tags=["jobs"], route_class=JsonRoute)

Used = Annotated[JobParts, Depends(Uses(JobParts))]


@router.post("/v1/jobs/estimate", summary="Estimate a job", response_model=EstimateResource)
async def estimate_job(body: NewJobBody, parts: Used, caller: ClientCaller, base_url: BaseUrl) -> Response:
    """Check a job, its deadline too, and predict its cost and its end, without submitting it.

    Neither its prompt is judged nor its images are read: a size that follows from them is not known here.
    Whether the queue has room for it is not looked at.
    """
    with renamed_fields(path_in_body):
        draft = await parts.submissions.drafted(Submission(caller.tenant_id, body, base_url))
    return json_response(_estimate_of(draft, await parts.store.jobs.foresee_in_time(draft.job)))


def _estimate_of(draft: Draft, queue: QueueEstimate) -> EstimateResource:
    spec, resolved = draft.served.spec, draft.resolved
    warnings = (
        *spec.size_warnings(resolved),
        *spec.sampler_warnings(draft.asked),
        *spec.syntax_warnings(draft.asked),
    )
    return EstimateResource(
        model=spec.name,
        width=resolved.width,
        height=resolved.height,
        cost_seconds=draft.job.cost_seconds,
        eta_s_low=queue.eta_s_low,
        eta_s_high=queue.eta_s_high,
        warnings=warnings,
    )
