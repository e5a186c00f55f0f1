"""ComfyUI's routes for prompts: send, list, interrupt, view."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import ValidationError

from diffuserve.api.auth.access import Caller
from diffuserve.api.auth.dependencies import BaseUrl, key_of
from diffuserve.api.auth.quota import ClientCaller, SubmittingCaller
from diffuserve.api.comfyui.errors import refusal
from diffuserve.api.comfyui.graphs import Graph, GraphRequest, NodeFault, image_id, with_sampler
from diffuserve.api.comfyui.sent_prompts import (
    SentPrompt,
    client_topic,
    file_name,
    history_entry,
    images_of,
    queue_entry,
)
from diffuserve.api.door.json_route import JsonRoute
from diffuserve.api.files.job_files import JobFiles
from diffuserve.api.files.serving import Part, StoredContent, serve
from diffuserve.api.http.field_errors import field_error, validation_error
from diffuserve.api.http.json_body import UnreadableJson, parsed_json
from diffuserve.api.http.parts import Uses
from diffuserve.api.http.responses import json_response
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.submit.request_bodies import GenerationInput, NewJobBody
from diffuserve.api.submit.submission import Submission, Submissions
from diffuserve.domain.errors import (
    ArtifactNotFound,
    ImageBlocked,
    InvalidParams,
    JobNotFound,
    ModelNotFound,
)
from diffuserve.domain.jobs.job import FINAL_STATUSES, MAX_PREVIEWS, Job, JobStatus
from diffuserve.events.base import EventBus
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import input_key

router = APIRouter(tags=["comfyui"], route_class=JsonRoute)

OPEN = (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.CANCELING)
_MOST_JOBS = 100  # jobs of a tenant among which the prompts of a key are looked for
_MAX_CLIENT_CHARACTERS = 200


@dataclass(frozen=True)
class PromptParts:
    """Parts that these routes use."""

    store: JobStore
    bus: EventBus
    catalog: Catalog
    submissions: Submissions
    files: JobFiles


Used = Annotated[PromptParts, Depends(Uses(PromptParts))]


@router.post("/prompt", summary="Draw what a graph says")
async def send_prompt(request: Request, parts: Used, caller: SubmittingCaller, base_url: BaseUrl) -> Response:
    """Queue a job; its id is the prompt's. The body is JSON, whatever its content type says.

    Pages of other sites cannot use it: a session's cookie needs its token, and an open server looks at where
    a request comes from.
    """
    body = _body_in(await request.body())
    client_id = _client_in(body)
    try:
        graph = Graph(body["prompt"])
        asked = graph.asked()
        with _faults_at_nodes(graph, asked):
            sent = _sent(graph, asked, key_of(caller), client_id)
            new = await _job_of(parts.catalog, graph, asked, sent, _has_previews(body))
            job = await parts.submissions.submit(Submission(caller.tenant_id, new, base_url))
    except NodeFault as fault:
        return refusal(fault)
    parts.bus.publish(client_topic(caller.tenant_id, client_id), {"job_id": job.id})
    number = len(await prompts_of(parts.store, caller, OPEN))
    return json_response({"prompt_id": job.id, "number": number, "node_errors": {}})


def _body_in(content: bytes) -> dict[str, Any]:
    """Return the body. Raise `RequestValidationError`."""
    try:
        body = parsed_json(content)
    except UnreadableJson as error:
        raise validation_error(("body",), str(error)) from error
    if not isinstance(body, dict) or not isinstance(body.get("prompt"), dict):
        raise validation_error(("body", "prompt"), "must be an object with the nodes by their ids")
    return body


def _client_in(body: Mapping[str, Any]) -> str:
    extra = body.get("extra_data")
    found = body.get("client_id") or (extra.get("client_id") if isinstance(extra, dict) else None) or ""
    if not isinstance(found, str) or len(found) > _MAX_CLIENT_CHARACTERS or not found.isprintable():
        remedy = f"must be a text of at most {_MAX_CLIENT_CHARACTERS} characters"
        raise validation_error(("body", "client_id"), remedy)
    return found


def _has_previews(body: Mapping[str, Any]) -> bool:
    """Return whether a prompt asks for previews, which ComfyUI sends to nobody else."""
    extra = body.get("extra_data")
    method = extra.get("preview_method") if isinstance(extra, dict) else None
    return method not in (None, "none", "default")


def _sent(graph: Graph, asked: GraphRequest, key: str, client_id: str) -> SentPrompt:
    over_socket = [each for each in asked.last_ids if graph.class_of(each) == "SaveImageWebsocket"]
    return SentPrompt(key, client_id, asked.sampler_id, asked.last_ids, tuple(over_socket))


async def _job_of(
    catalog: Catalog, graph: Graph, asked: GraphRequest, sent: SentPrompt, has_previews: bool
) -> NewJobBody:
    """Return the job of a graph. Raise `NodeFault` and what `Catalog.pick` raises."""
    spec = (await catalog.pick(asked.model)).spec
    return NewJobBody.model_construct(
        model=spec.name,
        input=_input_of(with_sampler(asked, graph, spec), graph, asked),
        metadata=sent.metadata,
        output_format="png",
        num_previews=MAX_PREVIEWS if has_previews and spec.has_previews else 0,
    )


def _input_of(values: Mapping[str, Any], graph: Graph, asked: GraphRequest) -> GenerationInput:
    try:
        return GenerationInput.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        raise _fault_at(
            field, field_error({**first, "loc": ("input", field)}).message, graph, asked
        ) from error


@contextmanager
def _faults_at_nodes(graph: Graph, asked: GraphRequest) -> Iterator[None]:
    """Turn refusals within the block into faults of the nodes whose inputs are refused."""
    try:
        yield
    except ModelNotFound as error:
        raise _fault_at("model", str(error), graph, asked, "value_not_in_list") from error
    except InvalidParams as error:
        node_id, name = _place(error.field.partition(".")[0], asked)
        told = InvalidParams(name or error.field, error.value, error.remedy)
        raise graph.fault(node_id, str(told), name) from error
    except ImageBlocked as error:
        raise _fault_at(error.field, str(error), graph, asked) from error


def _fault_at(
    field: str, details: str, graph: Graph, asked: GraphRequest, kind: str = "custom_validation_failed"
) -> NodeFault:
    node_id, name = _place(field, asked)
    return graph.fault(node_id, f"{name or field}: {details}", name, kind=kind)


def _place(field: str, asked: GraphRequest) -> tuple[str, str | None]:
    """Return the node and the input that a field came from; without one, the node that draws."""
    return asked.places.get(field, (asked.sampler_id, None))


async def prompts_of(
    store: JobStore, caller: Caller, statuses: Sequence[JobStatus], limit: int = _MOST_JOBS
) -> list[tuple[Job, SentPrompt]]:
    """Return the prompts of the caller's key in these statuses, oldest first."""
    jobs = await store.jobs.list_jobs(tenant_id=caller.tenant_id, statuses=statuses, limit=limit)
    found = ((job, SentPrompt.of(job)) for job in reversed(jobs))
    return [(job, sent) for job, sent in found if sent is not None and sent.key == key_of(caller)]


@router.get("/prompt", summary="See how many prompts wait")
async def get_remaining(parts: Used, caller: ClientCaller) -> Response:
    """Return the number of the key's prompts that are not done."""
    return json_response({"exec_info": {"queue_remaining": len(await prompts_of(parts.store, caller, OPEN))}})


@router.get("/queue", summary="List the key's prompts that are not done")
async def get_queue(parts: Used, caller: ClientCaller) -> Response:
    """List running and waiting prompts."""
    found = await prompts_of(parts.store, caller, OPEN)
    running = [queue_entry(job, sent) for job, sent in found if job.status is not JobStatus.QUEUED]
    waiting = [queue_entry(job, sent) for job, sent in found if job.status is JobStatus.QUEUED]
    return json_response({"queue_running": running, "queue_pending": waiting})


@router.post("/queue", summary="Cancel prompts that wait")
async def change_queue(body: dict[str, Any], parts: Used, caller: ClientCaller) -> Response:
    """Cancel the prompts in `delete`, or with `clear` all of the key's that wait."""
    wanted = body.get("delete") or ()
    for job, _ in await prompts_of(parts.store, caller, (JobStatus.QUEUED,)):
        if body.get("clear") or job.id in wanted:
            await parts.store.jobs.cancel(job.id, caller.tenant_id)
    return Response()


@router.post("/interrupt", summary="Cancel what is drawn")
async def interrupt(request: Request, parts: Used, caller: ClientCaller) -> Response:
    """Cancel the key's running prompts, or only that of `prompt_id`."""
    content = await request.body()
    try:
        said = parsed_json(content) if content else {}
    except UnreadableJson as error:
        raise validation_error(("body",), str(error)) from error
    wanted = said.get("prompt_id") if isinstance(said, dict) else None
    for job, _ in await prompts_of(parts.store, caller, (JobStatus.RUNNING,)):
        if wanted in (None, job.id):
            await parts.store.jobs.cancel(job.id, caller.tenant_id)
    return Response()


@router.get("/history", summary="List the key's prompts that have ended")
async def list_history(
    parts: Used, caller: ClientCaller, max_items: Annotated[int, Query(ge=1, le=_MOST_JOBS)] = _MOST_JOBS
) -> Response:
    """List the newest of them by id."""
    found = await prompts_of(parts.store, caller, tuple(sorted(FINAL_STATUSES)))
    return json_response({job.id: history_entry(job, sent) for job, sent in found[-max_items:]})


@router.get("/history/{prompt_id}", summary="Get a prompt that has ended")
async def get_history(prompt_id: str, parts: Used, caller: ClientCaller) -> Response:
    """Return it by its id, or an empty object until it has ended."""
    try:
        job = await parts.store.jobs.get(prompt_id, caller.tenant_id)
    except JobNotFound:
        return json_response({})
    sent = SentPrompt.of(job)
    if sent is None or not job.status.is_final:
        return json_response({})
    return json_response({job.id: history_entry(job, sent)})


@router.get("/view", summary="Fetch an image")
async def view_image(
    parts: Used,
    caller: ClientCaller,
    part: Part,
    filename: Annotated[str, Query(max_length=300)],
    kind: Annotated[str, Query(alias="type")] = "output",
) -> Response:
    """Fetch a finished image, or one that was uploaded (`type=input`). Raise `ArtifactNotFound`."""
    if kind == "input":
        file_id = image_id(filename) or ""
        if file_id not in await parts.store.files.get_many([file_id], caller.tenant_id):
            raise ArtifactNotFound(f"there is no uploaded image {filename!r}")
        return await serve(parts.files.artifacts, StoredContent(input_key(file_id), filename), part)
    job_id = "_".join(filename.split("_")[:2])
    try:
        job = await parts.store.jobs.get(job_id, caller.tenant_id)
    except JobNotFound:
        raise ArtifactNotFound(f"there is no image {filename!r}") from None
    artifact = next((each for each in images_of(job) if file_name(job, each) == filename), None)
    if artifact is None:
        raise ArtifactNotFound(f"there is no image {filename!r}")
    return await parts.files.response(job, artifact, part)
