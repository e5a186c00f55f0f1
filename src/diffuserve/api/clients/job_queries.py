"""The query of a list of jobs, and the tag of its response."""

import zlib
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from diffuserve.api.auth.access import Caller
from diffuserve.api.http.path_params import checked_batch_id, checked_job_id
from diffuserve.api.http.storable import Storable
from diffuserve.api.resources.serializers import JobSerializer
from diffuserve.api.submit.request_bodies import Kind, ModelName
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.jobs.reads.search import FoundJobs, JobFilter
from diffuserve.jobs.store import JobStore

_MAX_QUERY_CHARACTERS = 200
_AFTER = "The `next` of the previous page."
_QUERY = "Words of the prompt, all of which occur in it, in whatever case."
_PROMPT_OF = "Id of a job: those that have its prompt, to the letter."

JobIdText = Annotated[str, AfterValidator(checked_job_id)]


_TENANT = "Jobs of this tenant alone, for operators; others see their own jobs whatever it says."


class JobQuery(BaseModel):
    """Filters, of which a job matches every one that is given, and the page."""

    status: Annotated[list[JobStatus], Field(description="Any of these; all if left out.")] = []
    model: ModelName | None = None
    kind: Kind | None = None
    query: Annotated[str, Field(max_length=_MAX_QUERY_CHARACTERS, description=_QUERY), Storable] = ""
    batch_id: Annotated[str, AfterValidator(checked_batch_id)] | None = None
    prompt_of: Annotated[JobIdText, Field(description=_PROMPT_OF)] | None = None
    tenant_id: Annotated[str, Field(max_length=200, description=_TENANT), Storable] | None = None
    after: Annotated[JobIdText, Field(description=_AFTER)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


async def find_jobs(store: JobStore, caller: Caller, query: JobQuery) -> FoundJobs:
    """Return a page of the caller's jobs. Raise `JobNotFound` for a job in the query that is not there."""
    prompt = None
    if query.prompt_of is not None:
        prompt = str((await store.jobs.get(query.prompt_of, caller.scope)).input.get("prompt", ""))
    wanted = JobFilter(
        tenant_id=query.tenant_id if caller.scope is None else caller.scope,
        statuses=query.status,
        kind=query.kind,
        model=query.model,
        batch_id=query.batch_id,
        words=tuple(query.query.split()),
        prompt=prompt,
    )
    return await store.jobs.search(wanted, after=query.after, limit=query.limit)


def etag_of(found: FoundJobs, serializer: JobSerializer) -> str:
    """Return a tag that changes with the page and with every job on it."""
    tags = [f"{job.id}{serializer.etag(job)}" for job in found.jobs]
    return f'W/"{zlib.crc32(" ".join([*tags, str(found.next)]).encode()):08x}-{len(tags)}"'
