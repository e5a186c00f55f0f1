"""Submission of a job, by whichever door: choice of the model, check against its limits, price, prompt."""

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import orjson
from pydantic import BaseModel

from diffuserve.api.files.inputs import InputImages
from diffuserve.api.following.job_metrics import JobMetrics
from diffuserve.api.outbound.address_policy import AddressPolicy
from diffuserve.api.reads.adapter_names import AdapterNames
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.submit.draft import Draft, drafted, requested_params
from diffuserve.api.submit.model_choice import choose_model, naming_fallback
from diffuserve.api.submit.request_bodies import NewJobBody, WebhookBody
from diffuserve.api.submit.screening import PromptScreening
from diffuserve.domain.errors import ImageBlocked, InvalidParams
from diffuserve.domain.jobs.job import Job, NewJob
from diffuserve.domain.jobs.webhook import JOB_EVENTS, Webhook, WebhookEvent
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.text.timed_ids import timed_id
from diffuserve.domain.workers.exactness import check_exact
from diffuserve.jobs.queue.idempotency import Stamp
from diffuserve.jobs.reads.operations import OfferedModel
from diffuserve.jobs.store import JobStore

InputResolver = Callable[[str, GenerationParams], Awaitable[GenerationParams]]
"""Returns a tenant's parameters with images, which are stored, in place of what stood for them."""


@dataclass(frozen=True)
class Submission:
    """Request of a tenant for a job. `base_url` is where it finds this server, for the URLs in webhooks.

    `resolve` stores images that came along, of which `brought` is a hash where the job has a key; others that
    the body names are files of the tenant, or URLs.
    `webhook_form` is the form of the message to its webhook.
    """

    tenant_id: str
    body: NewJobBody
    base_url: str
    idempotency_key: str | None = None
    resolve: InputResolver | None = None
    brought: str = ""
    webhook_form: str = ""

    @cached_property
    def stamp(self) -> Stamp | None:
        """Stamp by which a repetition gives the same job, if the client asks for that."""
        if not self.idempotency_key:
            return None
        return Stamp(self.tenant_id, self.idempotency_key, fingerprint(self.body, self.brought))

    def stamped(self, new: NewJob) -> NewJob:
        """Return the job with what a repetition is recognized by."""
        known = self.stamp.fingerprint if self.stamp else ""
        return replace(new, idempotency_key=self.idempotency_key, fingerprint=known)

    @cached_property
    def job_id(self) -> str:
        """Id of the job, unless the submission is a repetition, which gives a job with another."""
        return timed_id("job_")


@dataclass(frozen=True)
class Submissions:
    """Takes jobs of tenants, through any of the doors."""

    store: JobStore
    catalog: Catalog
    adapters: AdapterNames
    inputs: InputImages
    screening: PromptScreening
    address_policy: AddressPolicy
    job_metrics: JobMetrics

    async def submit(self, submission: Submission) -> Job:
        """Check, price and store a job, and process its prompt.

        Everything that can be refused without looking at input images is refused before they are. Raise what
        `drafted`, `AdapterNames.resolve`, `InputImages.resolve`, `PromptScreening.screened` and
        `JobStore.submit` raise, `ModelNotFound`, and `DeadlineUnreachable`.
        """
        draft = await self.drafted(submission)
        if draft.asked.input_images or draft.asked.adapters or draft.has_to_be_in_time:
            earlier = await self.store.jobs.find_room(submission.tenant_id, submission.stamp)
            if earlier is not None:
                return earlier
        if draft.has_to_be_in_time:
            await self.store.jobs.check_deadline(draft.job)
        new = await self._completed(submission, draft)
        jobs, new = self.store.jobs, submission.stamped(new)
        submit = jobs.submit_in_time if draft.has_to_be_in_time else jobs.submit
        job = await submit(new, submission.job_id)
        self.job_metrics.record_accepted(job)
        return job

    async def prepared(self, submission: Submission) -> NewJob:
        """Do all that `submit` does but storing the job, for which room in the queue is reserved."""
        return await self._completed(submission, await self.drafted(submission))

    async def _completed(self, submission: Submission, draft: Draft) -> NewJob:
        """Return the job with the adapters and images that it names, and a prompt that may be drawn."""
        if draft.asked.adapters:
            with _naming_prompt(len(submission.body.input.adapters or ())):
                draft = draft.with_found(await self._with_adapters(submission.tenant_id, draft))
        if draft.asked.input_images:
            draft = draft.with_found(await self._with_images(submission, draft.asked))
        return await self.screening.screened(draft.job, submission.body.expand_prompt)

    async def _with_adapters(self, tenant_id: str, draft: Draft) -> GenerationParams:
        """Return the parameters with the adapters' digests, which a fallback model has to fit too."""
        if draft.fallback is not None:
            with naming_fallback(draft.body.options.fallback_model):
                await self.adapters.resolve(tenant_id, draft.asked, draft.fallback.served.spec)
        return await self.adapters.resolve(tenant_id, draft.asked, draft.served.spec)

    async def _with_images(self, submission: Submission, params: GenerationParams) -> GenerationParams:
        """Return the parameters with images in place of names: what came along, then the others."""
        if submission.resolve is not None:
            params = await submission.resolve(submission.tenant_id, params)
        return await self.inputs.resolve(submission.tenant_id, params)

    async def drafted(self, submission: Submission) -> Draft:
        """Return what is asked for, if this server, the model and the tenant's plan permit it."""
        body = submission.body
        self.screening.prompts.check_offered(body.expand_prompt)
        _check_retention(body, self.store.config.longest_kept)
        choice = await choose_model(self.catalog, body)
        webhook = build_webhook(
            self.address_policy, body.webhook, submission.base_url, submission.webhook_form
        )
        draft = await self._draft_for(submission, choice.served)
        draft = replace(draft, webhook=webhook, requested_model=choice.requested)
        if choice.fallback is None:
            return draft
        with naming_fallback(body.options.fallback_model):
            fallback = await self._draft_for(submission, choice.fallback, draft.resolved.seed)
        return replace(draft, fallback=fallback)

    async def _draft_for(
        self, submission: Submission, served: OfferedModel, seed: int | None = None
    ) -> Draft:
        """Return what is asked for as a job of one model, with this `seed` if there is one."""
        body, tenant_id = submission.body, submission.tenant_id
        if body.exact:
            check_exact(served.spec.name, await self.catalog.workers())
        plan, models = await self.catalog.plan(tenant_id), await self.catalog.models()
        params = requested_params(body.kind, body.input, served.spec)
        params = params if seed is None else replace(params, seed=seed)
        return drafted(tenant_id, body, params, served, plan, models)


@contextmanager
def _naming_prompt(num_listed: int) -> Iterator[None]:
    """Blame the prompt for an adapter that it names, which comes after those that the request lists."""
    try:
        yield
    except InvalidParams as error:
        field, _, place = error.field.removesuffix(".name").rpartition(".")
        if field != "adapters" or int(place) < num_listed:
            raise
        raise InvalidParams("prompt", f"<lora:{error.value}>", error.remedy) from error


def _check_retention(body: NewJobBody, longest: float) -> None:
    """Raise `InvalidParams` for a job that shall be kept for longer than any."""
    seconds = body.options.retention_seconds
    if seconds is not None and seconds > longest:
        remedy = f"this server keeps no job for longer than {longest:,.0f} s; give at most that"
        raise InvalidParams("retention_seconds", seconds, remedy)


def build_webhook(
    policy: AddressPolicy, body: WebhookBody | None, base_url: str, form: str = ""
) -> Webhook | None:
    """Build the job's webhook, or `None` if the body has none. Raise `InvalidParams` for a forbidden URL."""
    if body is None:
        return None
    policy.check("webhook.url", body.url)
    events = JOB_EVENTS if body.events is None else tuple(map(WebhookEvent, body.events))
    return Webhook(body.url, events, base_url, form)


@contextmanager
def renamed_fields(rename: Callable[[str], str]) -> Iterator[None]:
    """Rename the field of an error raised in the block to its name in the client's body."""
    try:
        yield
    except InvalidParams as error:
        raise type(error)(rename(error.field), error.value, error.remedy) from error
    except ImageBlocked as error:
        raise ImageBlocked(rename(error.field), error.category) from error


def fingerprint(body: BaseModel, brought: str = "") -> str:
    """Return a hash that is equal for equal bodies, regardless of the order of their fields.

    `brought` is the hash of the files that came with the body.
    """
    content = body.model_dump(mode="json", exclude_unset=True)
    text = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text + brought.encode()).hexdigest()
