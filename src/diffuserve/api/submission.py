"""From what a client asks for to a job in the queue: model, limits, price, plan."""

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import orjson
from pydantic import BaseModel

from diffuserve.api.auth.access import Caller
from diffuserve.api.schemas import NewJobBody, WebhookBody
from diffuserve.api.services import Services
from diffuserve.api.webhooks.guarded_http import Guard
from diffuserve.domain.errors import BandNotAllowed, InvalidParams, PromptBlocked
from diffuserve.domain.job import Band, Job, NewJob
from diffuserve.domain.params import GenerationParams
from diffuserve.domain.prompt import PromptRecord
from diffuserve.domain.safety import Verdict
from diffuserve.domain.tenant import Plan
from diffuserve.domain.webhook import JOB_EVENTS, Webhook, WebhookEvent
from diffuserve.jobs.audit import blocked_prompt
from diffuserve.jobs.operations import ServedModel
from diffuserve.jobs.pricing import predict
from diffuserve.prompts.base import Expansion
from diffuserve.prompts.cleaning import clean

_SEEDS = 2**32


async def submit(
    services: Services,
    caller: Caller,
    body: NewJobBody,
    base_url: str,
    idempotency_key: str | None = None,
) -> Job:
    """Store a job that is checked, screened and priced.

    Raises what `check` and `screened` raise, `ModelNotFound`, and what `JobStore.submit` raises.
    """
    served = await services.catalog.pick(body.model)
    plan = await services.catalog.plan(caller.tenant_id)
    new = await screened(services, check(body, caller.tenant_id, served, plan), body.expand_prompt)
    new = replace(
        new,
        webhook=webhook_of(services.guard, body.webhook, base_url),
        idempotency_key=idempotency_key,
        fingerprint=fingerprint(body) if idempotency_key else "",
    )
    job = await services.store.jobs.submit(new)
    services.times.accepted(job)
    return job


async def screened(services: Services, new: NewJob, expand: bool) -> NewJob:
    """The job with the prompt that its model will read, and what became of the client's own.

    Raises `PromptBlocked`, of which nothing is kept but an entry in the audit, and `ModerationUnavailable`.
    """
    prompt, expansion = str(new.input["prompt"]), None
    verdict = await judged(services, new.tenant_id, prompt)
    if expand:
        expansion, of_longer = await services.prompts.expand(prompt, int(new.input["seed"]), new.tenant_id)
        prompt, verdict = expansion.prompt, verdict.and_also(of_longer)
    return recorded(services, replace(new, input={**new.input, "prompt": prompt}), verdict, expansion)


def recorded(services: Services, new: NewJob, verdict: Verdict, expansion: Expansion | None = None) -> NewJob:
    """With what became of its prompt."""
    assert new.prompt is not None
    return replace(new, prompt=services.prompts.record(new.prompt.original, verdict, expansion))


async def judged(services: Services, tenant_id: str, prompt: str) -> Verdict:
    """Raises `PromptBlocked`, which the audit then knows of, and `ModerationUnavailable`."""
    try:
        return await services.prompts.judge(prompt, tenant_id)
    except PromptBlocked as error:
        assert services.prompts.info is not None
        entry = blocked_prompt(tenant_id, prompt, error.category, services.prompts.info)
        await services.store.audit.note(entry)
        raise


def check(body: NewJobBody, tenant_id: str, served: ServedModel, plan: Plan) -> NewJob:
    """The job that `body` asks for, with every default filled in, and its price.

    The seed is drawn here, so that a second attempt draws the same image. Raises `InvalidParams`
    with the bare names of `GenerationParams`, and `BandNotAllowed`.
    """
    drawing = body.input.model_dump()
    cleaned = {name: clean(drawing[name]) for name in ("prompt", "negative_prompt")}
    params = GenerationParams(**drawing | cleaned)
    resolved = served.spec.resolve(params, seed=secrets.randbelow(_SEEDS))
    cost_seconds, step_tokens = predict(served.spec, served.fit, resolved)
    return NewJob(
        tenant_id=tenant_id,
        kind=body.kind,
        model=served.spec.name,
        input=resolved.to_dict(),
        cost_seconds=cost_seconds,
        step_tokens=step_tokens,
        band=_band(body.priority, plan),
        expires_in=body.expires_in,
        timeout=body.timeout,
        metadata=body.metadata,
        num_previews=body.num_previews,
        output_format=body.output_format,
        prompt=PromptRecord(original=body.input.prompt),
    )


def webhook_of(guard: Guard, body: WebhookBody | None, base_url: str) -> Webhook | None:
    """Raises `InvalidParams`."""
    if body is None:
        return None
    guard.check("webhook.url", body.url)
    events = JOB_EVENTS if body.events is None else tuple(WebhookEvent(one) for one in body.events)
    return Webhook(body.url, events, base_url)


@contextmanager
def field_names(rename: Callable[[str], str]) -> Iterator[None]:
    """Name the fields of `InvalidParams` as the client's own body names them."""
    try:
        yield
    except InvalidParams as error:
        raise type(error)(rename(error.field), error.value, error.remedy) from error


def fingerprint(body: BaseModel) -> str:
    """The same for bodies that say the same, in whatever order."""
    content = body.model_dump(mode="json", exclude_unset=True)
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _band(wish: Band | None, plan: Plan) -> Band:
    band = wish or plan.default_band
    if not plan.allows(band):
        raise BandNotAllowed(
            f"the plan {plan.name!r} reaches up to the priority {plan.highest_band!s}, not {band!s}"
        )
    return band
