"""Drafts of jobs: what a client asks for, checked against its model and its plan, and priced. Pure."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Self

from diffuserve.api.submit.file_formats import file_format
from diffuserve.api.submit.request_bodies import GenerationInput, NewJobBody
from diffuserve.domain.errors import BandNotAllowed, InvalidParams, ModelNotCapable, OptionNotAllowed
from diffuserve.domain.jobs.job import AUDIO_GENERATE, VIDEO_GENERATE, Band, Fallback, NewJob
from diffuserve.domain.jobs.job_options import JOB_OPTIONS, MAX_JOB_SECONDS
from diffuserve.domain.jobs.kinds import with_length
from diffuserve.domain.jobs.prompt import PromptRecord
from diffuserve.domain.jobs.webhook import Webhook
from diffuserve.domain.models.limits import naming_able
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.models.tiers import replaced_values
from diffuserve.domain.requests.params import IMAGE_FIELDS, GenerationParams
from diffuserve.domain.requests.prompt_syntax import with_named_adapters
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.policy.pricing import predict
from diffuserve.jobs.reads.operations import OfferedModel
from diffuserve.prompts.cleaning import cleaned
from diffuserve.telemetry import tracing

_NUM_SEEDS = 2**32


@dataclass(frozen=True)
class Draft:
    """A body that a model and a plan permit, with every default filled in; `asked` is what the client gave.

    Until the images are known, their names stand for them. `fallback` is the draft of the same body for the
    job's fallback model; where that draws the job from the beginning, `requested_model` was asked for.
    """

    tenant_id: str
    body: NewJobBody
    served: OfferedModel
    band: Band
    asked: GenerationParams
    resolved: GenerationParams
    webhook: Webhook | None = None
    fallback: "Draft | None" = None
    requested_model: str | None = None

    @property
    def has_to_be_in_time(self) -> bool:
        """True if the job has a deadline that it must not miss."""
        return self.body.deadline is not None and not self.body.best_effort

    def with_found(self, asked: GenerationParams) -> Self:
        """Return the draft with what was named: the job's size may follow from its images'."""
        assert self.resolved.seed is not None
        resolved = _resolved(self.served, asked, self.resolved.seed)
        return replace(self, asked=asked, resolved=resolved, fallback=self._fallback_with(asked))

    def _fallback_with(self, asked: GenerationParams) -> "Draft | None":
        if self.fallback is None:
            return None
        named = {name: getattr(asked, name) for name in (*IMAGE_FIELDS, "adapters")}
        return self.fallback.with_found(replace(self.fallback.asked, **named))

    @cached_property
    def job(self) -> NewJob:
        """The job, with its price."""
        body, served, options = self.body, self.served, self.body.options
        price = predict(served.spec, served.fit, self.resolved)
        return NewJob(
            tenant_id=self.tenant_id,
            kind=body.kind,
            model=served.spec.name,
            input=self.resolved.to_dict(),
            asked=replaced_values(self.asked, self.resolved),
            cost_seconds=price.cost_seconds,
            decode_seconds=price.decode_seconds,
            step_tokens=price.step_tokens,
            latent_bytes=price.latent_bytes,
            band=self.band,
            expires_in=body.expires_in or options.start_timeout_seconds,
            finish_in=_finish_in(body.deadline),
            best_effort=body.best_effort,
            exact=body.exact,
            timeout=body.timeout,
            metadata=body.metadata,
            num_previews=body.num_previews,
            live=body.live,
            output_format=file_format(body.kind, body.output_format, self.resolved, served.spec),
            prompt=PromptRecord(original=body.input.prompt),
            webhook=self.webhook,
            traceparent=None if (trace := tracing.current()) is None else str(trace),
            retention_seconds=options.retention_seconds,
            forget_delivered=not options.store,
            max_attempts=options.max_attempts,
            fallback=None if self.fallback is None else _fallback_of(self.fallback.job),
            requested_model=self.requested_model,
            worker_hint=options.worker_hint,
        )


def _fallback_of(new: NewJob) -> Fallback:
    return Fallback(**{declared.name: getattr(new, declared.name) for declared in fields(Fallback)})


def requested_params(kind: str, requested: GenerationInput, spec: ModelSpec) -> GenerationParams:
    """Return the parameters, with clean prompts, named images and the length of a job of this kind.

    Adapters that the prompt names, as other programs' do, are read where the model takes any. Raise
    `InvalidParams`.
    """
    values = requested.model_dump()
    if spec.max_adapters:
        values = dict(with_named_adapters(values))
    return with_length(kind, spec, GenerationParams(**values | cleaned(values)))


def _check_watched(body: NewJobBody) -> None:
    """Raise `InvalidParams` if the job has nothing to be watched, and it shall be."""
    if body.num_previews and body.kind == AUDIO_GENERATE:
        raise InvalidParams("num_previews", body.num_previews, "is for pictures; a sound has none")
    if body.live and body.kind != VIDEO_GENERATE:
        remedy = f'is for clips; leave it out, or ask for the kind "{VIDEO_GENERATE}"'
        raise InvalidParams("live", True, remedy)


def _check_previews(body: NewJobBody, spec: ModelSpec) -> None:
    """Raise `ModelNotCapable` for previews of a model that has none."""
    if body.num_previews and not spec.has_previews:
        remedy = f"{spec.name} shows nothing before it is done; leave it out"
        raise ModelNotCapable("num_previews", body.num_previews, remedy)


def drafted(
    tenant_id: str,
    body: NewJobBody,
    params: GenerationParams,
    served: OfferedModel,
    plan: Plan,
    models: Mapping[str, OfferedModel] = MappingProxyType({}),
) -> Draft:
    """Return what `body` asks for with `params`, if the model and the plan permit it.

    The seed is chosen here, so that a retry generates the same image. Raise `InvalidParams` with the
    field names of `GenerationParams`, `BandNotAllowed` and `OptionNotAllowed`. A refusal names those of the
    `models` that can.
    """
    try:
        resolved = _resolved(served, params, secrets.randbelow(_NUM_SEEDS))
    except ModelNotCapable as error:
        others = {name: model.spec for name, model in models.items()}
        raise naming_able(error, served.spec, others) from error
    band = _band(body.priority, plan)
    _finish_in(body.deadline)
    _check_options(body, plan)
    _check_watched(body)
    _check_previews(body, served.spec)
    file_format(body.kind, body.output_format, resolved, served.spec)
    return Draft(tenant_id, body, served, band, params, resolved)


def _check_options(body: NewJobBody, plan: Plan) -> None:
    """Raise `OptionNotAllowed` for options that the plan does not include, and `InvalidParams`."""
    given = {name for name, value in vars(body.options).items() if value != JOB_OPTIONS[name].default}
    if refused := given.difference(plan.job_options):
        raise OptionNotAllowed(f"the plan {plan.name!r} does not include {', '.join(sorted(refused))}")
    seconds = body.options.start_timeout_seconds
    if seconds is not None and body.expires_in is not None:
        remedy = "says the same as expires_in; give one of them"
        raise InvalidParams("start_timeout_seconds", seconds, remedy)


def _resolved(served: OfferedModel, params: GenerationParams, seed: int) -> GenerationParams:
    return served.spec.resolve(served.tiers.allowed(served.spec, params), seed=seed)


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
