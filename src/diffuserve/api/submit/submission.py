"""Submission of a job: choice of the model, check against its limits and the plan, price, prompt."""

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import orjson
from pydantic import BaseModel

from diffuserve.api.auth.access import Caller
from diffuserve.api.files.inputs import resolve_inputs
from diffuserve.api.outbound.address_policy import AddressPolicy
from diffuserve.api.services import Services
from diffuserve.api.submit.file_formats import file_format
from diffuserve.api.submit.request_bodies import MAX_JOB_SECONDS, GenerationInput, NewJobBody, WebhookBody
from diffuserve.domain.errors import BandNotAllowed, ImageBlocked, InvalidParams, PromptBlocked
from diffuserve.domain.jobs.clips import with_frames
from diffuserve.domain.jobs.job import VIDEO_GENERATE, Band, Job, NewJob
from diffuserve.domain.jobs.prompt import PromptRecord
from diffuserve.domain.jobs.webhook import JOB_EVENTS, Webhook, WebhookEvent
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.models.tiers import replaced_values
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.safety import Verdict
from diffuserve.domain.tenant import Plan
from diffuserve.domain.workers.exactness import check_exact
from diffuserve.jobs.policy.pricing import predict
from diffuserve.jobs.queue.idempotency import Stamp
from diffuserve.jobs.reads.operations import OfferedModel
from diffuserve.jobs.security.audit import blocked_prompt
from diffuserve.prompts.base import Expansion
from diffuserve.prompts.cleaning import clean
from diffuserve.telemetry import tracing

_NUM_SEEDS = 2**32

InputResolver = Callable[[Services, str, GenerationParams], Awaitable[GenerationParams]]
"""Returns a tenant's parameters with images in place of what named them."""


async def submit(
    services: Services,
    caller: Caller,
    body: NewJobBody,
    base_url: str,
    idempotency_key: str | None = None,
    resolve: InputResolver = resolve_inputs,
) -> Job:
    """Check, price and store a job, and process its prompt.

    Everything that can be refused without looking at input images is refused before they are. Raise what
    `build_job`, `resolve_inputs`, `process_prompt` and `JobStore.submit` raise, `ModelNotFound`, and
    `DeadlineUnreachable`.
    """
    services.prompts.check_offered(body.expand_prompt)
    served = await services.catalog.pick(body.model, body.kind)
    if body.exact:
        check_exact(served.spec.name, await services.catalog.workers())
    plan = await services.catalog.plan(caller.tenant_id)
    webhook = build_webhook(services.address_policy, body.webhook, base_url)
    params = requested_params(body.kind, body.input, served.spec)
    new = build_job(body, params, caller.tenant_id, served, plan)
    stamp = Stamp(caller.tenant_id, idempotency_key, fingerprint(body)) if idempotency_key else None
    if params.images or new.has_to_be_in_time:
        earlier = await services.store.jobs.find_room(caller.tenant_id, stamp)
        if earlier is not None:
            return earlier
        await services.store.jobs.check_deadline(new)
    if params.images:
        params = await resolve(services, caller.tenant_id, params)
        new = build_job(body, params, caller.tenant_id, served, plan)
    new = await process_prompt(services, new, body.expand_prompt)
    new = replace(
        new,
        webhook=webhook,
        idempotency_key=idempotency_key,
        fingerprint=stamp.fingerprint if stamp else "",
    )
    job = await services.store.jobs.submit(new)
    services.job_metrics.record_accepted(job)
    return job


async def process_prompt(services: Services, new: NewJob, expand: bool) -> NewJob:
    """Return the job with the prompt that its model will read, and the record of the client's own prompt.

    Raise `PromptBlocked`, after adding an entry to the audit log, and `ModerationUnavailable`.
    """
    prompt, expansion = str(new.input["prompt"]), None
    verdict = await moderate_prompt(services, new.tenant_id, prompt)
    if expand:
        expansion, expanded_verdict = await services.prompts.expand(
            prompt, int(new.input["seed"]), new.tenant_id
        )
        prompt, verdict = expansion.prompt, verdict.merge(expanded_verdict)
    new = replace(new, input={**new.input, "prompt": prompt})
    return with_prompt_record(services, new, verdict, expansion)


def with_prompt_record(
    services: Services, new: NewJob, verdict: Verdict, expansion: Expansion | None = None
) -> NewJob:
    """Return the job with the record of how its prompt was processed."""
    assert new.prompt is not None
    return replace(new, prompt=services.prompts.record(new.prompt.original, verdict, expansion))


async def moderate_prompt(services: Services, tenant_id: str, prompt: str) -> Verdict:
    """Return the verdict. Raise `PromptBlocked`, after adding an audit entry, and `ModerationUnavailable`."""
    try:
        return await services.prompts.moderate(prompt, tenant_id)
    except PromptBlocked as error:
        await note_blocked(services, tenant_id, prompt, error.category)
        raise


async def note_blocked(services: Services, tenant_id: str, prompt: str, category: str) -> None:
    """Add an audit entry for a prompt that the filter blocks."""
    assert services.prompts.filter_info is not None
    await services.store.audit.note(blocked_prompt(tenant_id, prompt, category, services.prompts.filter_info))


def requested_params(kind: str, requested: GenerationInput, spec: ModelSpec) -> GenerationParams:
    """Return the parameters, with clean prompts, named images and the number of frames of a job of this kind.

    Raise `InvalidParams`.
    """
    values = requested.model_dump(exclude={"seconds"})
    prompts = {name: values[name] for name in ("prompt", "negative_prompt")}
    cleaned = {name: clean(text) for name, text in prompts.items() if text is not None}
    return with_frames(kind, spec, GenerationParams(**values | cleaned), requested.seconds)


def _checked_live(body: NewJobBody) -> bool:
    """Return whether the job is live. Raise `InvalidParams` if it has nothing to be watched."""
    if body.live and body.kind != VIDEO_GENERATE:
        remedy = f'is for clips; leave it out, or ask for the kind "{VIDEO_GENERATE}"'
        raise InvalidParams("live", True, remedy)
    return body.live


def build_job(
    body: NewJobBody, params: GenerationParams, tenant_id: str, served: OfferedModel, plan: Plan
) -> NewJob:
    """Build the job that `body` asks for with `params`, every default filled in, and its price.

    The seed is chosen here, so that a retry generates the same image. Raise `InvalidParams` with the
    field names of `GenerationParams`, and `BandNotAllowed`.
    """
    allowed = served.tiers.allowed(served.spec, params)
    resolved = served.spec.resolve(allowed, seed=secrets.randbelow(_NUM_SEEDS))
    price = predict(served.spec, served.fit, resolved)
    return NewJob(
        tenant_id=tenant_id,
        kind=body.kind,
        model=served.spec.name,
        input=resolved.to_dict(),
        asked=replaced_values(params, resolved),
        cost_seconds=price.cost_seconds,
        decode_seconds=price.decode_seconds,
        step_tokens=price.step_tokens,
        latent_bytes=price.latent_bytes,
        band=_band(body.priority, plan),
        expires_in=body.expires_in,
        finish_in=_finish_in(body.deadline),
        best_effort=body.best_effort,
        exact=body.exact,
        timeout=body.timeout,
        metadata=body.metadata,
        num_previews=body.num_previews,
        live=_checked_live(body),
        output_format=file_format(body.kind, body.output_format, resolved),
        prompt=PromptRecord(original=body.input.prompt),
        traceparent=None if (trace := tracing.current()) is None else str(trace),
    )


def build_webhook(policy: AddressPolicy, body: WebhookBody | None, base_url: str) -> Webhook | None:
    """Build the job's webhook, `None` if the body names none. Raise `InvalidParams` for a forbidden URL."""
    if body is None:
        return None
    policy.check("webhook.url", body.url)
    events = JOB_EVENTS if body.events is None else tuple(map(WebhookEvent, body.events))
    return Webhook(body.url, events, base_url)


@contextmanager
def renamed_fields(rename: Callable[[str], str]) -> Iterator[None]:
    """Rename the field of an error raised in the block to what the client's own body calls it."""
    try:
        yield
    except InvalidParams as error:
        raise type(error)(rename(error.field), error.value, error.remedy) from error
    except ImageBlocked as error:
        raise ImageBlocked(rename(error.field), error.category) from error


def fingerprint(body: BaseModel) -> str:
    """Return a hash that is equal for equal bodies, whatever the order of their fields."""
    content = body.model_dump(mode="json", exclude_unset=True)
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _finish_in(deadline: float | datetime | None) -> float | None:
    """Return the seconds until a deadline. Raise `InvalidParams` for one that is past, or too far away."""
    if not isinstance(deadline, datetime):
        return deadline
    seconds = (deadline - datetime.now(UTC)).total_seconds()
    if 0 < seconds <= MAX_JOB_SECONDS:
        return seconds
    remedy = (
        f"is in {seconds:,.0f} s by this server's clock; give one within {MAX_JOB_SECONDS:,.0f} s from now"
    )
    raise InvalidParams("deadline", deadline.isoformat(), remedy)


def _band(requested: Band | None, plan: Plan) -> Band:
    band = requested or plan.default_band
    if not plan.allows(band):
        raise BandNotAllowed(
            f"priority {band!s} is not allowed; the plan {plan.name!r} allows {plan.highest_band!s} at most"
        )
    return band
