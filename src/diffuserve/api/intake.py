"""From what a client asks for to a job in the queue: model, limits, price, plan."""

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson
from pydantic import BaseModel

from diffuserve.api.access import Caller
from diffuserve.api.schemas import NewJobBody
from diffuserve.api.services import Services
from diffuserve.domain.errors import BandNotAllowed, InvalidParams
from diffuserve.domain.job import Band, Job, NewJob
from diffuserve.domain.params import GenerationParams
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.pricing import predict

_SEEDS = 2**32


async def submit(
    services: Services, caller: Caller, body: NewJobBody, idempotency_key: str | None = None
) -> Job:
    """Store a job that is checked and priced.

    The seed is drawn here, so that a second attempt draws the same picture. Raises `InvalidParams`
    with the bare names of `GenerationParams`, `ModelNotFound`, `BandNotAllowed`, and what
    `JobStore.submit` raises.
    """
    served = await services.catalog.pick(body.model)
    plan = await services.catalog.plan(caller.tenant_id)
    params = GenerationParams(**body.input.model_dump())
    resolved = served.spec.resolve(params, seed=secrets.randbelow(_SEEDS))
    cost_seconds, step_tokens = predict(served.spec, served.fit, resolved)
    new = NewJob(
        tenant_id=caller.tenant_id,
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
        idempotency_key=idempotency_key,
        fingerprint=fingerprint(body) if idempotency_key else "",
    )
    job = await services.store.submit(new)
    services.times.accepted(job)
    return job


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
