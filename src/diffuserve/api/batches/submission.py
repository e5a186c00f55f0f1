"""Submission of a batch: every item is checked and judged before the first is stored."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from diffuserve.api.auth.quota import RequestRates
from diffuserve.api.batches.body_parser import BatchRequest, Item
from diffuserve.api.batches.inputs import with_inputs
from diffuserve.api.batches.item_adapters import with_adapters
from diffuserve.api.batches.item_parser import BatchItemParser, CheckedItems
from diffuserve.api.batches.judging import judge_items
from diffuserve.api.batches.request_bodies import BatchOptions
from diffuserve.api.files.inputs import InputImages
from diffuserve.api.http.background_tasks import BackgroundTasks
from diffuserve.api.http.field_errors import validation_error
from diffuserve.api.outbound.address_policy import AddressPolicy
from diffuserve.api.reads.adapter_names import AdapterNames
from diffuserve.api.reads.catalog import Catalog
from diffuserve.api.submit.file_formats import check_format_fits
from diffuserve.api.submit.screening import PromptScreening
from diffuserve.domain.errors import InvalidParams, TooLarge
from diffuserve.domain.jobs.batch import Batch, NewBatch
from diffuserve.domain.jobs.webhook import Webhook, WebhookEvent
from diffuserve.domain.safety import PASSES, Verdict
from diffuserve.domain.workers.exactness import check_exact
from diffuserve.jobs.batches.store import ITEMS_AT_ONCE
from diffuserve.jobs.store import JobStore
from diffuserve.telemetry.metrics import ControlMetrics


@dataclass(frozen=True)
class BatchSubmissions:
    """Takes batches of tenants."""

    store: JobStore
    catalog: Catalog
    rates: RequestRates
    adapters: AdapterNames
    inputs: InputImages
    screening: PromptScreening
    address_policy: AddressPolicy
    metrics: ControlMetrics
    background_tasks: BackgroundTasks

    async def submit(
        self,
        tenant_id: str,
        request: BatchRequest,
        base_url: str,
        idempotency_key: str | None,
    ) -> Batch:
        """Check all items, look for room in the queue, judge the prompts, and store the items.

        Raise `TooLarge`, `RequestValidationError`, `ModelNotFound`, `BandNotAllowed`, `RateLimited`,
        `ModerationUnavailable`, and what the store raises.
        """
        options, items = request.options, request.items
        served = await self.catalog.pick(options.model, options.kind)
        if options.output_format is not None:
            check_format_fits(options.kind, options.output_format)
        plan = await self.catalog.plan(tenant_id)
        _check_fits(len(items), plan.max_queued, tenant_id)  # checking the items first would take long
        parser = BatchItemParser(request, served, plan, tenant_id, await self.catalog.models())
        checked = await parser.check_all()
        if checked.exact:
            await self._check_exact(request, served.spec.name, checked.exact[0])
        new = NewBatch(
            tenant_id=tenant_id,
            num_items=len(items),
            cost_seconds=checked.cost_seconds,
            metadata=options.metadata,
            webhook=self._webhook(options, base_url),
            idempotency_key=idempotency_key,
            fingerprint=await asyncio.to_thread(_fingerprint, options, items) if idempotency_key else "",
        )
        batch = await self.store.batches.find_room(new)
        num_stored = 0 if batch is None else batch.num_stored
        if batch is None or num_stored < new.num_items:
            await self.rates.charge_items(tenant_id, new.num_items - num_stored)  # before images are decoded
            parser, new = await self._completed(parser, checked, new)
            batch = await self._store(parser, new, num_stored)
        self.metrics.accepted.labels(served.spec.name, options.priority).inc(len(items))
        return await self.store.batches.get(batch.id)

    async def _completed(
        self, parser: BatchItemParser, checked: CheckedItems, new: NewBatch
    ) -> tuple[BatchItemParser, NewBatch]:
        """Return a parser that knows the adapters and images of the items, and what the batch costs then."""
        if checked.with_adapters:
            parser = await with_adapters(self.adapters, parser, checked.with_adapters)
        if checked.with_images:
            parser = await with_inputs(self.inputs, parser, checked.with_images)
            new = replace(new, cost_seconds=(await parser.check_all()).cost_seconds)
        return parser, new

    async def _check_exact(self, request: BatchRequest, model: str, number: int) -> None:
        """Raise `RequestValidationError`, which names item `number`, if no worker can run exact jobs."""
        try:
            check_exact(model, await self.catalog.workers())
        except InvalidParams as error:
            location = (*request.location(number), error.field)
            raise validation_error(location, error.remedy, input=error.value) from error

    async def _store(self, parser: BatchItemParser, new: NewBatch, num_stored: int) -> Batch:
        """Judge and store the items, from where an interrupted submission with the same key stopped."""
        batches = self.store.batches
        flagged = await judge_items(self.screening, parser, num_stored)
        batch = await batches.open(new)
        try:
            await self._store_items(batch, parser, flagged)
        except Exception:
            if not new.idempotency_key:  # nobody can continue it
                self.background_tasks.start(self._cancel(batch.id))
            raise
        return batch

    async def _store_items(
        self, batch: Batch, parser: BatchItemParser, flagged: Mapping[int, Verdict]
    ) -> None:
        num_stored = batch.num_stored
        while num_stored < batch.num_items:
            end = min(num_stored + ITEMS_AT_ONCE, batch.num_items)
            chunk = [
                self.screening.recorded(replace(new, batch_id=batch.id), flagged.get(number, PASSES))
                async for number, new in parser.parse_in_turns(num_stored, end)
            ]
            num_stored = await self.store.batches.add(batch.id, num_stored, chunk)

    async def _cancel(self, batch_id: str) -> None:
        await self.store.batches.cancel(batch_id)
        await self.store.batches.cancel_items(batch_id)

    def _webhook(self, options: BatchOptions, base_url: str) -> Webhook | None:
        if options.webhook is None:
            return None
        self.address_policy.check("webhook.url", options.webhook.url)
        return Webhook(options.webhook.url, (WebhookEvent.BATCH_COMPLETED,), base_url)


def _check_fits(num_items: int, max_queued: int, tenant_id: str) -> None:
    """Raise `TooLarge` for more items than a tenant may ever have in the queue."""
    if num_items > max_queued:
        raise TooLarge(
            f"{num_items:,} items are more than the {max_queued:,} jobs that the queue of tenant "
            f"{tenant_id!r} has room for, even empty; split the batch"
        )


def _fingerprint(options: BatchOptions, items: Sequence[Item]) -> str:
    """Return a hash that is equal for equal options and equal items in the same order."""
    digest = hashlib.sha256(options.model_dump_json().encode())
    for item in items:
        digest.update(item if isinstance(item, bytes) else orjson.dumps(item, option=orjson.OPT_SORT_KEYS))
        digest.update(b"\n")
    return digest.hexdigest()
